// A process's registration with the coordinator, as far as shards and workers do the same: the
// newest connection and its wire version, heartbeats, and leaving.
#ifndef SLUICE_SERVICES_PROTOCOL_MEMBER_REGISTRATION_H_
#define SLUICE_SERVICES_PROTOCOL_MEMBER_REGISTRATION_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "proto/control.pb.h"
#include "proto/frame.pb.h"
#include "services/protocol/member_exit.h"
#include "services/protocol/wire_version.h"

namespace sluice {

class MemberRegistration {
 public:
  bool connected() const { return connected_; }
  // The beginning of a stream to the shard.
  v1::Hello MakeHello(uint64_t shard) const;

  // How the process exits after a refusal. nullopt: it stays; the coordinator closes the stream,
  // and on the next one the process registers with an older wire version.
  std::optional<Exit> ExitAfter(const v1::Refusal& refusal);
  // The same after Finish, which it answers with Leave.
  Exit ExitAfter(const v1::Finish& finish);

  bool leaves() const { return leave_reason_.has_value(); }
  const std::string& leave_reason() const { return *leave_reason_; }  // requires leaves()
  // Asks the coordinator for permission to leave, once, and waits for it until then. Another call
  // may shorten the wait.
  void AskToLeave(std::string reason, absl::Time until);
  absl::Time leave_until() const { return leave_until_; }  // InfiniteFuture: it does not leave

 protected:
  // `identity`: what does not change from one connection to the next.
  explicit MemberRegistration(v1::Register identity) : identity_(std::move(identity)) {}
  ~MemberRegistration() = default;
  // To the coordinator.
  virtual void Send(v1::MemberMessage message) = 0;

  // Registers on a new connection. `newest_view`, `obeyed`: no attempt: none.
  void Connect(const v1::ViewId& newest_view, const v1::ViewId& obeyed);
  void Disconnect() { connected_ = false; }
  absl::Time next_heartbeat() const { return next_heartbeat_; }
  void SetNextHeartbeat(absl::Time time) { next_heartbeat_ = time; }
  void SendHeartbeat(absl::Time next);
  void SendLeave(const std::string& reason);

 private:
  const v1::Register identity_;
  bool connected_ = false;
  uint32_t wire_version_ = SpokenWireVersions().newest;  // with which it registers
  uint64_t heartbeats_ = 0;
  absl::Time next_heartbeat_ = absl::InfiniteFuture();
  std::optional<std::string> leave_reason_;
  absl::Time leave_until_ = absl::InfiniteFuture();
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_PROTOCOL_MEMBER_REGISTRATION_H_
