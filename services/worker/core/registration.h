// The worker's registration with the coordinator: the newest connection and its wire version, what
// is sent again on each, heartbeats, progress, and leaving.
#ifndef SLUICE_SERVICES_WORKER_CORE_REGISTRATION_H_
#define SLUICE_SERVICES_WORKER_CORE_REGISTRATION_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "proto/control.pb.h"
#include "services/protocol/member_registration.h"
#include "services/worker/core/worker_context.h"
#include "services/worker/core/worker_output.h"

namespace sluice::worker {

class Registration final : public MemberRegistration {
 public:
  // Both must outlive it.
  Registration(const WorkerContext* context, WorkerOutput* out, v1::Register identity)
      : MemberRegistration(std::move(identity)), context_(*context), out_(*out) {}

  // A connection to a coordinator: registers on it.
  void OnConnected(bool was_member);
  void OnDisconnected() {
    Disconnect();
    registered_ = false;
  }
  // The coordinator has accepted the worker: sends what was set before.
  void OnRegistered();
  bool registered() const { return registered_; }

  // No effect without a connection.
  void Send(v1::MemberMessage message) override;
  // Sends it now, and on each new connection.
  void SetReady(v1::Ready ready);
  // Sends WorkerOutput::progress, if there is any.
  void SendProgress();

  // Asks the coordinator to end training (the first reason counts) or to save a checkpoint, now and
  // on each new connection. Repetitions have the number of the request.
  void Request(v1::JobRequest::Kind kind, std::string reason);

  // Sends progress and a heartbeat if they are due.
  void SendDue();
  // The next deadline of SendDue and of leaving.
  absl::Time NextDeadline() const;

 private:
  void SendReady();
  void SendRequest(const v1::JobRequest& request);

  const WorkerContext& context_;
  WorkerOutput& out_;
  bool registered_ = false;  // on this connection
  std::optional<v1::Ready> ready_;
  std::map<v1::JobRequest::Kind, v1::JobRequest> requests_;
  uint64_t request_number_ = 0;
  absl::Time next_progress_ = absl::InfinitePast();
};

}  // namespace sluice::worker

#endif  // SLUICE_SERVICES_WORKER_CORE_REGISTRATION_H_
