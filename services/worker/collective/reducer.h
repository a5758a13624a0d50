// The worker's groups, one after the other: each view that sums gradients among its members has its
// own (gloo_group.h). Members find each other through the coordinator (proto/rendezvous.proto).
#ifndef SLUICE_SERVICES_WORKER_COLLECTIVE_REDUCER_H_
#define SLUICE_SERVICES_WORKER_COLLECTIVE_REDUCER_H_

#include <grpcpp/security/credentials.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/frame.pb.h"
#include "services/worker/collective/reduction_plan.h"

namespace sluice::worker {

class Reducer {
 public:
  // Any thread. After a Leave, or another Join, nothing of the older group is told any more, but
  // for what is being told just then.
  using Done =
      std::function<void(const v1::ViewId& view, uint64_t step, absl::StatusOr<ReducedPart> part)>;

  struct Options {
    std::string coordinator;  // host:port; in plain text, as gloo speaks
    // Those of a secret, or null.
    std::shared_ptr<grpc::ChannelCredentials> credentials;
    // By which the other workers reach this one; empty: its side of the way to the coordinator.
    std::string advertised_host;
    v1::ProcessId process;  // this worker
    Done done;
  };

  explicit Reducer(Options options);
  // Waits for groups to end, one after the other, as ~GlooGroup does.
  ~Reducer();

  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // What follows is for one thread at a time; none blocks.

  // The group of a view, in place of the one before. `silence`: GlooGroup::Options.
  void Join(const v1::ViewId& view, std::shared_ptr<const ReductionPlan> plan,
            absl::Duration silence);
  void Leave();
  // Of the present group; nothing without one.
  void Reduce(uint64_t step, DenseGradients gradients);
  // Bytes sent to other workers so far.
  uint64_t sent_bytes() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// The address of this machine's side of the way to an endpoint (host:port); nothing is sent.
// UNAVAILABLE: the host is not known, or there is no way.
absl::StatusOr<std::string> AddressTowards(const std::string& endpoint);

}  // namespace sluice::worker

#endif  // SLUICE_SERVICES_WORKER_COLLECTIVE_REDUCER_H_
