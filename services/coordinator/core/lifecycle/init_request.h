// The init request that brings the attempt's first state into the shards (R12): version 0 from one
// worker, or a checkpoint from storage.

#ifndef SLUICE_SERVICES_COORDINATOR_CORE_LIFECYCLE_INIT_REQUEST_H_
#define SLUICE_SERVICES_COORDINATOR_CORE_LIFECYCLE_INIT_REQUEST_H_

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "absl/time/time.h"
#include "proto/control.pb.h"
#include "services/coordinator/core/base/rules.h"

namespace sluice::coordinator {

class InitRequest {
 public:
  // `rules` must outlive it.
  explicit InitRequest(const CoordinatorRules* rules) : rules_(rules) {}

  // Begins an init request: all shards must report StateReady. With a worker, they must do so by
  // `deadline`.
  void Begin(v1::InitId init_id, const std::vector<uint64_t>& shards,
             std::optional<uint64_t> worker, absl::Time deadline);
  // False: it is of another init request, or `shard` does not take part in this one or has reported
  // already.
  bool OnStateReady(uint64_t shard, const v1::InitId& init_id);

  const v1::InitId& init_id() const { return init_id_; }
  bool active() const { return active_; }
  bool complete() const { return active_ && missing_.empty(); }
  std::optional<uint64_t> worker() const { return worker_; }
  absl::Time deadline() const { return worker_.has_value() ? deadline_ : absl::InfiniteFuture(); }

  // The worker to ask next: the first of the candidates that were asked least often. nullopt: there
  // are no candidates.
  std::optional<uint64_t> NextWorker(const std::vector<uint64_t>& candidates) const;

 private:
  const CoordinatorRules* rules_;
  bool active_ = false;
  v1::InitId init_id_;
  std::set<uint64_t> missing_;  // shards that have not sent StateReady
  std::optional<uint64_t> worker_;
  absl::Time deadline_ = absl::InfiniteFuture();
  std::multiset<uint64_t> asked_;  // workers
};

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_CORE_LIFECYCLE_INIT_REQUEST_H_
