// Sums of dense gradients among the members of one view, over gloo's TCP connections
// (docs/protocol.md 7.12).
//
// Intuition. Each member sends to each other the part of its gradient that the other is to sum, and
// sums its own part as they come in: a reduce-scatter in one round, with the least bytes that there
// can be ((N - 1) / N of the gradient, out and in). Who sums what is said by the ReductionPlan. A
// part is summed in the order of ranks, so the result does not depend on who was first.
//
// A group is of one view and ends with it, or with the first connection that breaks; nothing is
// mended, the next view makes another group.
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

// What a member has said to this one.
struct MetMember {
  uint64_t plan_hash = 0;
  std::string address;  // gloo's, where it awaits this one; empty for this one
};

// Leaves, by rank, where this member awaits each other, and brings what all have said, by rank;
// nothing if they are not all there yet, for the group to ask again. UNAVAILABLE: may be asked
// again too. May block for a short while.
using MeetMembers = std::function<absl::StatusOr<std::optional<std::vector<MetMember>>>(
    uint64_t plan_hash, const std::vector<std::string>& addresses)>;

class GlooGroup {
 public:
  // Of a Reduce. On the group's thread. An error ends the group: UNAVAILABLE names what broke,
  // INVALID_ARGUMENT says that members do not cut their gradients alike.
  using Done = std::function<void(uint64_t step, absl::StatusOr<ReducedPart> part)>;

  struct Options {
    std::shared_ptr<const ReductionPlan> plan;
    // An address of this machine, at which the others reach it. Asked on the group's thread.
    std::function<absl::StatusOr<std::string>()> host;
    MeetMembers meet;
    Done done;
    // A connection that is not made within this is broken.
    absl::Duration connect_timeout = absl::Seconds(10);
    // One whose other side acknowledges nothing for this long is broken. (A member that computes
    // for long acknowledges.)
    absl::Duration silence = absl::Seconds(10);
  };

  // Begins to connect, on a thread of its own. Wants SIGPIPE ignored.
  explicit GlooGroup(Options options);

  // Gives up what is in progress; `done` is not called any more. While the group is being formed it
  // waits for what is under way: `host`, `meet`, or a connection (connect_timeout); else it does
  // not block.
  ~GlooGroup();

  GlooGroup(const GlooGroup&) = delete;
  GlooGroup& operator=(const GlooGroup&) = delete;

  // Does not block. Each step once; steps are done in the order given.
  void Reduce(uint64_t step, DenseGradients gradients);

  // Bytes sent to others so far. Any thread.
  uint64_t sent_bytes() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::worker

#endif  // SLUICE_SERVICES_WORKER_COLLECTIVE_GLOO_GROUP_H_
