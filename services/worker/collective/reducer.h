// The worker's groups, one after another: each view that sums gradients among its members has its
// own group (gloo_group.h). Members find each other through the coordinator
// (proto/rendezvous.proto).
#ifndef SLUICE_SERVICES_WORKER_COLLECTIVE_REDUCER_H_
#define SLUICE_SERVICES_WORKER_COLLECTIVE_REDUCER_H_

#include <grpcpp/security/credentials.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/common.pb.h"
#include "services/worker/collective/reduction_plan.h"

namespace sluice::worker {

class Reducer {
 public:
  // Any thread. After Leave or another Join, no results of the older group are reported, except for
  // a call that is already running.
  using Done =
      std::function<void(const v1::ViewId& view, uint64_t step, absl::StatusOr<ReducedPart> part)>;

  struct Options {
    std::string coordinator;  // host:port; in plain text, as gloo speaks
    // Those of the job's secret, or null.
    std::shared_ptr<grpc::ChannelCredentials> credentials;
    // At which other workers reach this one; empty: the local address of the route to the
    // coordinator.
    std::string advertised_host;
    v1::ProcessId process;  // this worker
    Done done;
  };

  explicit Reducer(Options options);
  // Waits for its groups to end, one after another, as ~GlooGroup does.
  ~Reducer();

  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // The functions below are for one thread at a time; none blocks.

  // Joins the group of a view and leaves the group before. `idle_timeout`: GlooGroup::Options.
  void Join(const v1::ViewId& view, std::shared_ptr<const ReductionPlan> plan,
            absl::Duration idle_timeout);
  void Leave();
  // In the current group; does nothing without one.
  void Reduce(uint64_t step, DenseGradients gradients);
  // Bytes sent to other workers so far.
  uint64_t sent_bytes() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// The local address of this machine on the route to an endpoint (host:port); nothing is sent.
// UNAVAILABLE: the host is unknown, or there is no route.
absl::StatusOr<std::string> AddressTowards(const std::string& endpoint);

}  // namespace sluice::worker

#endif  // SLUICE_SERVICES_WORKER_COLLECTIVE_REDUCER_H_
