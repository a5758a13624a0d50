#ifndef SLUICE_SERVICES_TRANSPORT_POLLED_CHANNEL_H_
#define SLUICE_SERVICES_TRANSPORT_POLLED_CHANNEL_H_

#include <grpcpp/channel.h>

#include <memory>
#include <utility>

#include "services/transport/grpc_settings.h"

namespace sluice {

// The channel of somebody who makes a blocking call now and then, and fails rather than waits where
// nobody listens.
//
// Intuition. gRPC notices what happens at a channel's socket while somebody waits in a call or on a
// queue, or else every five seconds. A channel that could not connect refuses calls at once until
// it can: nobody waits then, its next attempts are over before their success is noticed, and a
// server that has long been there is not found. The first calls of a new channel wait for its first
// attempt: so one that could not connect is replaced before the next call.
//
// Not for several threads at once.
class PolledChannel {
 public:
  explicit PolledChannel(ChannelOptions options) : options_(std::move(options)) {}

  // For the next call. The same one while it connects, or can.
  std::shared_ptr<grpc::Channel> Get() {
    if (channel_ == nullptr ||
        channel_->GetState(/*try_to_connect=*/false) == GRPC_CHANNEL_TRANSIENT_FAILURE) {
      channel_ = MakeChannel(options_);
    }
    return channel_;
  }

 private:
  const ChannelOptions options_;
  std::shared_ptr<grpc::Channel> channel_;
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_TRANSPORT_POLLED_CHANNEL_H_
