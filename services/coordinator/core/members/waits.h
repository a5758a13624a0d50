// The members and shards for which the job has waited too long, although they send heartbeats
// (docs/protocol.md 7.10): timeouts.gradients and timeouts.weights.
//
// It says which process is to be expelled and why; the core expels it.

#ifndef SLUICE_SERVICES_COORDINATOR_CORE_MEMBERS_WAITS_H_
#define SLUICE_SERVICES_COORDINATOR_CORE_MEMBERS_WAITS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "proto/control.pb.h"
#include "services/coordinator/core/facts/facts.h"
#include "services/coordinator/core/facts/membership.h"
#include "services/coordinator/core/facts/output.h"

namespace sluice::coordinator {

class Waits {
 public:
  struct Expulsion {
    uint64_t incarnation = 0;
    std::string why;
  };

  // All must outlive it.
  Waits(const Facts& facts, Output* output) : facts_(facts), output_(*output) {}

  // Samples were applied, or are being evaluated: workers do not train meanwhile.
  void OnApplied(absl::Time now) { applied_at_ = now; }
  // A view was decided.
  void OnView(absl::Time now);
  // The whole machine may have slept: nothing was waited for.
  void ExtendDeadlines(absl::Time now) { evaluated_at_ = applied_at_ = now; }

  // A report on the current view, of a shard: members whose gradients or updates are overdue.
  std::vector<Expulsion> OnAwaited(const Process& shard, const v1::ShardProgress& progress,
                                   bool evaluating, absl::Time now);
  // A report of a worker: a shard that owes a version to it and to other members.
  std::optional<Expulsion> OnOwing(const Process& worker, const v1::WorkerProgress& progress,
                                   absl::Time now);

  // Asynchronous: the time by which a sample must be applied while workers hold leases.
  absl::Time LeasesOverdue(bool evaluating) const;
  // The same while it counts: no change of the view is under way.
  absl::Time NextDeadline(bool evaluating) const;

 private:
  const Facts& facts_;
  Output& output_;
  // By shard: the members of the view that wait for a version of it, and when each last reported
  // that.
  std::map<uint64_t, std::map<uint64_t, absl::Time>> owed_;
  absl::Time applied_at_;
  // When a step last waited while an evaluation was under way.
  absl::Time evaluated_at_ = absl::InfinitePast();
};

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_CORE_MEMBERS_WAITS_H_
