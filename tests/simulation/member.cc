#include "tests/simulation/member.h"

#include <memory>

#include "tests/simulation/coordinator_process.h"

namespace sluice::simulation {

v1::ProcessId MakeProcessId(v1::Role role, uint32_t index, uint64_t incarnation) {
  v1::ProcessId id;
  id.set_role(role);
  id.set_index(index);
  id.set_incarnation(incarnation);
  return id;
}

void Member::LookForCoordinator(absl::Duration after) {
  cluster_.scheduler().After(after, [self = std::static_pointer_cast<Member>(shared_from_this())] {
    self->Handle([self] {
      if (self->coordinator_ == nullptr) self->Connect();
    });
  });
}

void Member::LookForCoordinator() {
  const absl::Duration delay = cluster_.ConnectionDelay();
  if (delay == absl::ZeroDuration()) {
    Connect();
  } else {
    LookForCoordinator(delay);
  }
}

void Member::Connect() {
  auto self = std::static_pointer_cast<Member>(shared_from_this());
  cluster_.network().Open(
      self, [self] { return self->cluster_.FindCoordinator(); },
      [](const StreamRef& stream) {
        static_cast<CoordinatorProcess*>(stream->server.process.get())->Accept(stream);
      },
      [self](const StreamRef& stream) {
        self->coordinator_ = stream;
        stream->client.on_closed = [self, stream] {
          if (self->coordinator_ != stream) return;
          self->coordinator_ = nullptr;
          self->OnCoordinatorDisconnected();
          self->LookForCoordinator(kCoordinatorRetry + self->cluster_.ConnectionDelay());
        };
        self->OnCoordinatorConnected();
      },
      [self] { self->LookForCoordinator(kCoordinatorRetry); });
}

void Member::DeliverToCoordinator(const v1::MemberMessage& message) {
  if (coordinator_ == nullptr) return;
  StreamRef stream = coordinator_;
  cluster_.TraceMessage(name(), "coordinator", message);
  cluster_.Record(message);
  cluster_.network().ToServer(stream, [stream, message] {
    static_cast<CoordinatorProcess*>(stream->server.process.get())->OnMessage(stream, message);
  });
}

void Member::LeaveCoordinator() {
  if (coordinator_ == nullptr) return;
  cluster_.network().CloseByClient(coordinator_);
  coordinator_ = nullptr;
}

}  // namespace sluice::simulation
