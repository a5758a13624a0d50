#include "tests/simulation/groups.h"

#include <utility>
#include <vector>

#include "services/worker/collective/part_sum.h"

namespace sluice::simulation {

void Groups::Join(uint64_t member, const v1::ViewId& view,
                  std::shared_ptr<const worker::ReductionPlan> plan, Done done) {
  Leave(member);
  std::shared_ptr<Group>& group = groups_[view.SerializeAsString()];
  if (group == nullptr) {
    group = std::make_shared<Group>();
    group->view = view;
    group->size = plan->members.size();
  }
  Member& joined = group->members[member];
  joined.plan = std::move(plan);
  joined.done = std::move(done);
  group_of_[member] = group;
}

void Groups::Leave(uint64_t member) {
  const auto found = group_of_.find(member);
  if (found == group_of_.end()) return;
  const std::shared_ptr<Group> group = std::exchange(found->second, nullptr);
  group_of_.erase(found);
  group->members.erase(member);
  Break(group);
}

bool Groups::Break() {
  if (group_of_.empty()) return false;
  const auto pick =
      std::next(group_of_.begin(), static_cast<long>(random_.Below(group_of_.size())));
  Break(pick->second);
  return true;
}

void Groups::Break(const std::shared_ptr<Group>& group) {
  group->broken = true;
  for (auto& [member, state] : group->members) {
    if (state.waits) Tell(group, member, absl::UnavailableError("the group is broken"));
    state.loses = state.loses || random_.OneIn(2);
  }
}

void Groups::Reduce(uint64_t member, uint64_t step, worker::DenseGradients gradients) {
  const std::shared_ptr<Group> group = group_of_.at(member);
  Member& state = group->members.at(member);
  state.waits = true;
  state.step = step;
  state.gradients = std::move(gradients);
  if (group->broken) {
    Tell(group, member, absl::UnavailableError("the group is broken"));
  } else {
    SumUp(group);
  }
}

void Groups::SumUp(const std::shared_ptr<Group>& group) {
  if (group->members.size() < group->size) return;
  for (const auto& [incarnation, state] : group->members) {
    if (!state.waits) return;
  }
  ++sums_;
  for (auto& [incarnation, state] : group->members) {
    const worker::ReductionPlan& plan = *state.plan;
    worker::PartSum sum(&plan);
    sum.Begin();
    for (uint64_t other : plan.members) {
      std::vector<uint64_t> memory(MessageBytes(plan, plan.own()) / 8);
      const absl::Span<char> message(reinterpret_cast<char*>(memory.data()), memory.size() * 8);
      WriteMessage(plan, plan.own(), group->members.at(other).gradients, message);
      sum.Add(message);
    }
    Tell(group, incarnation, sum.Take());
  }
}

// A connection may break when some members have received their part and others have not.
void Groups::Tell(const std::shared_ptr<Group>& group, uint64_t member,
                  absl::StatusOr<worker::ReducedPart> part) {
  Member& state = group->members.at(member);
  state.waits = false;
  if (!part.ok()) ++broken_;
  scheduler_.After(
      random_.Between(absl::Microseconds(50), absl::Milliseconds(4)),
      [this, group, member, done = state.done, step = state.step, part = std::move(part)] {
        const auto found = group->members.find(member);
        const bool lost = part.ok() && found != group->members.end() && found->second.loses;
        if (lost) ++broken_;
        done(group->view, step, lost ? absl::UnavailableError("the group is broken") : part);
      });
}

}  // namespace sluice::simulation
