// A member's stream to the coordinator, kept open: when it breaks, or there is none, a new one is
// opened with backoff.

#ifndef SLUICE_SERVICES_TRANSPORT_COORDINATOR_LINK_H_
#define SLUICE_SERVICES_TRANSPORT_COORDINATOR_LINK_H_

#include <grpcpp/security/credentials.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/control.pb.h"
#include "services/common/backoff.h"
#include "services/transport/event_loop.h"

namespace sluice {

class CoordinatorLink {
 public:
  struct Options {
    std::string address;  // host:port
    // That its streams run on; must outlive it.
    EventLoop* loop = nullptr;
    // Null: plain text.
    std::shared_ptr<grpc::ChannelCredentials> credentials;
    // Told how long each heartbeat took until its reply was here; on the loop's thread, before
    // on_message. Null: nobody.
    std::function<void(absl::Duration)> on_round_trip;
    Backoff::Options backoff = {.initial = absl::Milliseconds(50), .max = absl::Seconds(1)};
  };

  // On the loop's thread or the link's own, one at a time, for each stream: on_connected,
  // on_message..., on_broken. They must not block. "Connected" is before anything has been heard
  // from the other side: what is sent waits until there is a connection.
  struct Callbacks {
    std::function<void()> on_connected;
    std::function<void(v1::CoordinatorMessage)> on_message;
    std::function<void(absl::Status)> on_broken;
  };

  static std::unique_ptr<CoordinatorLink> Start(Options options, Callbacks callbacks);

  // Waits for a running callback; no further one comes. Not from a callback.
  ~CoordinatorLink();

  CoordinatorLink(const CoordinatorLink&) = delete;
  CoordinatorLink& operator=(const CoordinatorLink&) = delete;

  // On the present stream; dropped if there is none. Any thread, also from callbacks; does not
  // block.
  void Send(v1::MemberMessage message);

  // Gives the present stream up (on_broken is called) and looks for the coordinator again. Any
  // thread; does not block.
  void Reconnect();

  // Ends the present stream once everything that was sent before is through, opens no other, and
  // waits for that, at most `timeout`. Not from a callback.
  void Finish(absl::Duration timeout);

 private:
  class Impl;
  explicit CoordinatorLink(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_TRANSPORT_COORDINATOR_LINK_H_
