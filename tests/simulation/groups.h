// The connections among workers that sum gradients with each other, on simulated time; the
// counterpart of services/worker/collective.
#ifndef SLUICE_TESTS_SIMULATION_GROUPS_H_
#define SLUICE_TESTS_SIMULATION_GROUPS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "proto/common.pb.h"
#include "services/worker/collective/reduction_plan.h"
#include "tests/simulation/network.h"
#include "tests/simulation/scheduler.h"

namespace sluice::simulation {

class Groups {
 public:
  using Done = std::function<void(const v1::ViewId& view, uint64_t step,
                                  absl::StatusOr<worker::ReducedPart> part)>;

  Groups(Scheduler* scheduler, Random* random) : scheduler_(*scheduler), random_(*random) {}

  // Replaces the group that the member was in.
  void Join(uint64_t member, const v1::ViewId& view,
            std::shared_ptr<const worker::ReductionPlan> plan, Done done);
  // Breaks the group for all its members. Members may lose a sum that is in flight.
  void Leave(uint64_t member);
  // Breaks a group although no member leaves it: the network between two members breaks, or a
  // rendezvous fails. False if there is no group.
  bool Break();
  // Sums once all members have called Reduce. `done` runs at a different time for each member.
  void Reduce(uint64_t member, uint64_t step, worker::DenseGradients gradients);

  uint64_t sums() const { return sums_; }      // steps that were summed
  uint64_t broken() const { return broken_; }  // sums that members did not receive

 private:
  struct Member {
    std::shared_ptr<const worker::ReductionPlan> plan;
    Done done;
    bool waits = false;
    bool loses = false;  // the sum in flight
    uint64_t step = 0;
    worker::DenseGradients gradients;
  };
  struct Group {
    v1::ViewId view;
    size_t size = 0;
    bool broken = false;
    std::map<uint64_t, Member> members;  // members that have joined, by incarnation
  };

  void Break(const std::shared_ptr<Group>& group);
  void Tell(const std::shared_ptr<Group>& group, uint64_t member,
            absl::StatusOr<worker::ReducedPart> part);
  void SumUp(const std::shared_ptr<Group>& group);

  Scheduler& scheduler_;
  Random& random_;
  std::map<std::string, std::shared_ptr<Group>> groups_;  // by view
  std::map<uint64_t, std::shared_ptr<Group>> group_of_;   // by member
  uint64_t sums_ = 0;
  uint64_t broken_ = 0;
};

}  // namespace sluice::simulation

#endif  // SLUICE_TESTS_SIMULATION_GROUPS_H_
