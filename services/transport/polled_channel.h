#ifndef SLUICE_SERVICES_TRANSPORT_POLLED_CHANNEL_H_
#define SLUICE_SERVICES_TRANSPORT_POLLED_CHANNEL_H_

#include <grpcpp/channel.h>

#include <memory>
#include <utility>

#include "services/transport/grpc_settings.h"

namespace sluice {

// A channel for a caller that makes a blocking call now and then, and wants an error rather than a
// wait where no server listens.
//
// Intuition. gRPC notices events at a channel's socket while a thread waits in a call or on a
// queue, or else every five seconds. A channel that could not connect fails calls at once until it
// has connected: then no thread waits, its next attempts time out before their success is noticed,
// and the caller does not find a server that has long been up. The first calls of a new channel
// wait for its first attempt. So PolledChannel replaces a channel that could not connect before the
// next call.
//
// Not for several threads at once.
class PolledChannel {
 public:
  explicit PolledChannel(ChannelOptions options) : options_(std::move(options)) {}

  // The channel for the next call: the same one unless it could not connect.
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
