// Sums of dense gradients among the members of one view, over gloo's TCP connections
// (docs/protocol.md 7.12). Why not gloo's collectives: docs/decisions/gloo.md.
//
// Intuition. Each member sends to each other member the part of its gradient that the other sums,
// and sums its own part as messages arrive: a reduce-scatter in one round, with the fewest possible
// bytes ((N - 1) / N of the gradient, out and in). The ReductionPlan assigns parts to members. A
// part is summed in the order of ranks, so the result does not depend on the order of arrival.
//
// A group belongs to one view and ends with it, or with the first connection that breaks. Nothing
// is repaired: the next view makes another group.
#ifndef SLUICE_SERVICES_WORKER_COLLECTIVE_GLOO_GROUP_H_
#define SLUICE_SERVICES_WORKER_COLLECTIVE_GLOO_GROUP_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "services/worker/collective/reduction_plan.h"

namespace sluice::worker {

// A member's announcement to this member.
struct MetMember {
  uint64_t plan_hash = 0;
  std::string address;  // gloo's, where it expects this member; empty for this member
};

// Publishes, by rank, the addresses at which this member expects each other member, and returns
// what all have published, by rank; nothing if some are still missing, for the group to ask again.
// UNAVAILABLE: may be asked again too. May block for a short while.
using MeetMembers = std::function<absl::StatusOr<std::optional<std::vector<MetMember>>>(
    uint64_t plan_hash, const std::vector<std::string>& addresses)>;

class GlooGroup {
 public:
  // The result of a Reduce. On the group's thread. An error ends the group: UNAVAILABLE names what
  // broke, INVALID_ARGUMENT says that members divide the gradients differently.
  using Done = std::function<void(uint64_t step, absl::StatusOr<ReducedPart> part)>;

  struct Options {
    std::shared_ptr<const ReductionPlan> plan;
    // An address of this machine at which the other members reach it. Called on the group's thread.
    std::function<absl::StatusOr<std::string>()> host;
    MeetMembers meet;
    Done done;
    // A connection that is not made within this time counts as broken.
    absl::Duration connect_timeout = absl::Seconds(10);
    // A connection whose peer acknowledges nothing for this long counts as broken. (A member that
    // computes for a long time still acknowledges.)
    absl::Duration idle_timeout = absl::Seconds(10);
  };

  // Starts to connect, on a thread of its own. Requires that SIGPIPE is ignored.
  explicit GlooGroup(Options options);

  // Cancels what is in progress; `done` is not called any more. While the group is being formed it
  // waits for the current operation: `host`, `meet`, or a connection (connect_timeout); otherwise
  // it does not block.
  ~GlooGroup();

  GlooGroup(const GlooGroup&) = delete;
  GlooGroup& operator=(const GlooGroup&) = delete;

  // Does not block. Each step once; steps are processed in the order given.
  void Reduce(uint64_t step, DenseGradients gradients);

  // Bytes sent to other members so far. Any thread.
  uint64_t sent_bytes() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::worker

#endif  // SLUICE_SERVICES_WORKER_COLLECTIVE_GLOO_GROUP_H_
