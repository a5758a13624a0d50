// Keeps a member's stream to the coordinator open: when the stream breaks or cannot be opened, the
// link opens a new one with backoff.

#ifndef SLUICE_SERVICES_TRANSPORT_STREAMS_COORDINATOR_LINK_H_
#define SLUICE_SERVICES_TRANSPORT_STREAMS_COORDINATOR_LINK_H_

#include <grpcpp/security/credentials.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/control.pb.h"
#include "services/common/time/backoff.h"
#include "services/transport/streams/event_loop.h"

namespace sluice {

class CoordinatorLink {
 public:
  struct Options {
    std::string address;  // host:port
    // The loop that runs the link's streams; must outlive the link.
    EventLoop* loop = nullptr;
    // Null: plain text.
    std::shared_ptr<grpc::ChannelCredentials> credentials;
    // Called with the time from each heartbeat to its reply; on the loop's thread, before
    // on_message. May be null.
    std::function<void(absl::Duration)> on_round_trip;
    Backoff::Options backoff = {.initial = absl::Milliseconds(50), .max = absl::Seconds(1)};
  };

  // Called on the loop's thread or the link's own, one at a time, for each stream in this order:
  // on_connected, on_message..., on_broken. They must not block. on_connected comes before anything
  // has arrived from the other side: messages sent from then on wait for the connection.
  struct Callbacks {
    std::function<void()> on_connected;
    std::function<void(v1::CoordinatorMessage)> on_message;
    std::function<void(absl::Status)> on_broken;
  };

  // Starts the link's thread, which begins to connect. Never fails: a coordinator that cannot be
  // reached is tried again, and on_broken says why.
  static std::unique_ptr<CoordinatorLink> Start(Options options, Callbacks callbacks);

  // Waits for a running callback; no further one is made. Must not be called from a callback.
  ~CoordinatorLink();

  CoordinatorLink(const CoordinatorLink&) = delete;
  CoordinatorLink& operator=(const CoordinatorLink&) = delete;

  // Sends on the current stream; the message is dropped if there is none. Any thread, also from
  // callbacks; does not block.
  void Send(v1::MemberMessage message);

  // Drops the current stream (on_broken is called) and looks for the coordinator again. Any thread;
  // does not block.
  void Reconnect();

  // Ends the current stream once everything sent before has gone out, opens no other, and waits for
  // the end, at most `timeout`. Must not be called from a callback.
  void Finish(absl::Duration timeout);

 private:
  class Impl;
  explicit CoordinatorLink(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_TRANSPORT_STREAMS_COORDINATOR_LINK_H_
