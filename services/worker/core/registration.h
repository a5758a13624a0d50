// The worker's registration with the coordinator: the newest connection and its wire version, what
// is sent again on each, heartbeats, progress, and leaving.
#ifndef SLUICE_SERVICES_WORKER_CORE_REGISTRATION_H_
#define SLUICE_SERVICES_WORKER_CORE_REGISTRATION_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "proto/control.pb.h"
#include "services/protocol/wire_version.h"
#include "services/worker/core/worker_context.h"
#include "services/worker/core/worker_output.h"

namespace sluice::worker {

class Registration {
 public:
  // `request`: what does not change from one connection to the next. Both must outlive it.
  Registration(const WorkerContext* context, WorkerOutput* out, v1::Register request)
      : context_(*context), out_(*out), request_(std::move(request)) {}

  // A connection to a coordinator: registers on it.
  void OnConnected(bool was_member);
  void OnDisconnected() { connected_ = registered_ = false; }
  // The coordinator has accepted the worker: sends what was set before.
  void OnRegistered();
  bool connected() const { return connected_; }
  bool registered() const { return registered_; }
  // Whether the next connection offers an older wire version; false: there is none.
  bool OfferOlderVersion();

  // No effect without a connection.
  void Send(v1::MemberMessage message);
  // Sends it now, and on each new connection.
  void SetReady(v1::Ready ready);
  // Sends WorkerOutput::progress, if there is any.
  void SendProgress();
  void SendLeave(const std::string& reason);

  // Asks the coordinator to end training (the first reason counts) or to save a checkpoint, now and
  // on each new connection. Repetitions have the number of the request.
  void Request(v1::JobRequest::Kind kind, std::string reason);

  // Asks to leave, now and on each new connection. Once.
  void Leave(std::string reason, absl::Duration grace);
  // After Leave: waits for this long at most from now on.
  void ShortenLeave(absl::Duration grace) {
    leave_until_ = std::min(leave_until_, context_.now + grace);
  }
  bool leaves() const { return leave_reason_.has_value(); }
  const std::string& leave_reason() const { return *leave_reason_; }
  bool LeaveIsOver() const;

  // Sends progress and a heartbeat if they are due.
  void SendDue();
  // The next deadline of SendDue and LeaveIsOver.
  absl::Time NextDeadline() const;

 private:
  void SendReady();
  void SendRequest(const v1::JobRequest& request);

  const WorkerContext& context_;
  WorkerOutput& out_;
  const v1::Register request_;
  uint32_t wire_version_ = SpokenWireVersions().newest;  // with which it registers
  bool connected_ = false;
  bool registered_ = false;  // on this connection
  std::optional<v1::Ready> ready_;
  std::map<v1::JobRequest::Kind, v1::JobRequest> requests_;
  uint64_t request_number_ = 0;
  std::optional<std::string> leave_reason_;
  absl::Time leave_until_ = absl::InfiniteFuture();
  uint64_t heartbeats_ = 0;
  absl::Time next_heartbeat_ = absl::InfiniteFuture();
  absl::Time next_progress_ = absl::InfinitePast();
};

}  // namespace sluice::worker

#endif  // SLUICE_SERVICES_WORKER_CORE_REGISTRATION_H_
