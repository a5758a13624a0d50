// The extension of sluice-ps-torch: the shard also computes the layers whose parameters it holds.

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "services/common/process/metrics.h"
#include "services/common/process/processors.h"
#include "services/execution/shard/host.h"
#include "services/execution/shard/layers.h"
#include "services/execution/shard/service.h"
#include "services/execution/stage_limits.h"
#include "services/ps/shard_extension.h"
#include "services/transport/server/grpc_server.h"

namespace sluice::stage {
namespace {

class StageExtension final : public ps::ShardExtension, public GrpcServer::Service {
 public:
  StageExtension(Logger logger, Metrics* metrics)
      : logger_(std::move(logger)),
        host_(HostOptions()),
        service_(&host_, [&received = metrics->counter("received_bytes_total"),
                          &sent = metrics->counter("sent_bytes_total")](uint64_t in, uint64_t out) {
          received.Increment(static_cast<double>(in));
          sent.Increment(static_cast<double>(out));
        }) {}

  ps::References* references() override { return &host_; }
  std::vector<GrpcServer::Service*> services() override { return {this}; }

  size_t max_message_bytes() const override { return kMaxStageMessageBytes; }
  ChannelKind kind() const override { return ChannelKind::kBulk; }
  void Register(grpc::ServerBuilder* builder) override { builder->RegisterService(&service_); }

 private:
  Host::Options HostOptions() const {
    Host::Options options;
    options.make_layers = MakeTorchLayers;
    options.max_computing = AvailableProcessors();
    options.on_warning = [this](const std::string& warning) { logger_.Warning(warning); };
    return options;
  }

  const Logger logger_;
  Host host_;
  StageService service_;
};

}  // namespace
}  // namespace sluice::stage

namespace sluice::ps {

std::unique_ptr<ShardExtension> MakeShardExtension(const Logger& logger, Metrics* metrics) {
  return std::make_unique<stage::StageExtension>(logger, metrics);
}

}  // namespace sluice::ps
