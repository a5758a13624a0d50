#include "services/worker/core/gradients/step_gradients.h"

#include <algorithm>
#include <string>

#include "services/common/check.h"
#include "services/common/status_macros.h"
#include "services/protocol/interval_set.h"

namespace sluice::worker {
namespace {

std::vector<Interval> Merged(const std::vector<MicrobatchRange>& ranges) {
  IntervalSet set;
  for (const MicrobatchRange& range : ranges) {
    if (!range.empty()) set.Add(Interval{range.begin, range.end});
  }
  return set.Intervals();
}

// Whether `parts` are disjoint and cover `whole`.
bool Divide(const std::vector<MicrobatchRange>& parts, const std::vector<MicrobatchRange>& whole) {
  uint64_t size = 0;
  uint64_t united_size = 0;
  for (const MicrobatchRange& part : parts) size += part.size();
  for (const Interval& range : Merged(parts)) united_size += range.size();
  return size == united_size && Merged(parts) == Merged(whole);
}

}  // namespace

std::vector<MicrobatchRange> MaximalSubtrees(const std::vector<MicrobatchRange>& ranges) {
  std::vector<MicrobatchRange> roots;
  for (const Interval& range : Merged(ranges)) {
    uint64_t begin = range.begin;
    while (begin < range.end) {
      // The largest power of two that divides `begin` and fits.
      uint64_t size = begin == 0 ? uint64_t{1} << 62 : begin & (~begin + 1);
      while (size > range.end - begin) size >>= 1;
      SLUICE_DCHECK(begin % size == 0, "a complete subtree is aligned to its size");
      roots.push_back({begin, begin + size});
      begin += size;
    }
  }
  return roots;
}

StepGradients::StepGradients(const v1::TensorTable* table, bool tree, const WorkerRules* rules)
    : table_(table), tree_(tree), rules_(rules) {}

std::vector<MicrobatchRange> StepGradients::Assign(const std::vector<MicrobatchRange>& assignment) {
  std::vector<MicrobatchRange> compute = tree_ ? AssignTree(assignment) : AssignRanges(assignment);
  SLUICE_DCHECK(Divide(partial_sums_, assignment), "partial sums divide the assignment");
  SLUICE_DCHECK(std::all_of(compute.begin(), compute.end(),
                            [this](const MicrobatchRange& range) { return Wants(range); }),
                "what is computed is wanted");
  return compute;
}

std::vector<MicrobatchRange> StepGradients::AssignRanges(
    const std::vector<MicrobatchRange>& assignment) {
  IntervalSet wanted;
  for (const MicrobatchRange& range : assignment) {
    if (!range.empty()) wanted.Add(Interval{range.begin, range.end});
  }

  IntervalSet rest = wanted;
  for (auto it = nodes_.begin(); it != nodes_.end();) {
    const Interval range{it->first.first, it->first.second};
    const bool usable =
        rules_->UseOnlyContainedGradients() ? wanted.ContainsAll(range) : wanted.Intersects(range);
    if (usable) {
      rest.Remove(range);
      ++it;
    } else {
      it = nodes_.erase(it);
    }
  }

  std::vector<MicrobatchRange> compute;
  for (const Interval& range : rest.Intervals()) {
    compute.push_back({range.begin, range.end});
    MakeNode({range.begin, range.end});
  }

  partial_sums_.clear();
  for (const auto& [key, node] : nodes_) partial_sums_.push_back({key.first, key.second});
  return compute;
}

std::vector<MicrobatchRange> StepGradients::AssignTree(
    const std::vector<MicrobatchRange>& assignment) {
  partial_sums_ = MaximalSubtrees(assignment);

  IntervalSet rest;
  for (const MicrobatchRange& partial_sum : partial_sums_)
    rest.Add(Interval{partial_sum.begin, partial_sum.end});

  // Nodes inside the new partial sums are kept.
  for (auto it = nodes_.begin(); it != nodes_.end();) {
    const Interval range{it->first.first, it->first.second};
    const bool usable = IsInsidePartialSum(it->first) ||
                        (!rules_->UseOnlyContainedGradients() && rest.Intersects(range));
    if (!usable) {
      it = nodes_.erase(it);
      continue;
    }
    // A node that is not whole is a microbatch in progress, or a sum whose halves are both kept as
    // well: they cover it.
    if (it->second.IsWhole() || range.size() == 1) rest.Remove(range);
    if (!IsInsidePartialSum(it->first)) partial_sums_.push_back({range.begin, range.end});
    ++it;
  }

  std::vector<MicrobatchRange> compute;
  for (const Interval& range : rest.Intervals()) {
    for (uint64_t leaf = range.begin; leaf < range.end; ++leaf) {
      compute.push_back({leaf, leaf + 1});
      MakeNode({leaf, leaf + 1});
    }
  }

  // Kept nodes may now be siblings within a larger partial sum.
  std::vector<NodeKey> keys;
  for (const auto& [key, node] : nodes_) keys.push_back(key);
  std::stable_sort(keys.begin(), keys.end(), [](const NodeKey& a, const NodeKey& b) {
    return a.second - a.first < b.second - b.first;
  });
  for (const NodeKey& key : keys) {
    for (int tensor = 0; tensor < table_->tensors_size(); ++tensor) {
      // The sizes of one tensor's gradients agree (Resolve checked them): this cannot fail.
      (void)MergeUp(key, static_cast<uint32_t>(tensor));
    }
  }
  return compute;
}

absl::StatusOr<std::optional<MicrobatchRange>> StepGradients::Resolve(
    const MicrobatchRange& computed, uint32_t tensor, std::optional<Gradient> gradient) {
  auto it = nodes_.find(Key(computed));
  if (it == nodes_.end() || tensor >= it->second.tensors.size()) return std::nullopt;

  TensorState& state = it->second.tensors[tensor];
  if (state.resolved) return std::nullopt;

  SLUICE_DCHECK(it->second.unresolved > 0, "a tensor is resolved once");
  state.resolved = true;
  state.gradient = std::move(gradient);
  --it->second.unresolved;

  ASSIGN_OR_RETURN(auto partial_sum, MergeUp(it->first, tensor));
  if (!partial_sum.has_value()) return std::nullopt;
  return MicrobatchRange{partial_sum->first, partial_sum->second};
}

absl::StatusOr<std::optional<StepGradients::NodeKey>> StepGradients::MergeUp(NodeKey key,
                                                                             uint32_t tensor) {
  while (true) {
    auto it = nodes_.find(key);
    if (it == nodes_.end() || !it->second.tensors[tensor].resolved) return std::nullopt;
    if (IsPartialSum(key)) return key;
    if (!tree_) return std::nullopt;

    const uint64_t size = key.second - key.first;
    const bool is_left = (key.first / size) % 2 == 0;
    const NodeKey sibling =
        is_left ? NodeKey{key.second, key.second + size} : NodeKey{key.first - size, key.first};
    const NodeKey parent =
        is_left ? NodeKey{key.first, sibling.second} : NodeKey{sibling.first, key.second};

    auto other = nodes_.find(sibling);
    if (other == nodes_.end() || !other->second.tensors[tensor].resolved) return std::nullopt;

    auto parent_it = nodes_.find(parent);
    Node& sum = parent_it == nodes_.end() ? MakeNode(parent) : parent_it->second;
    if (sum.tensors[tensor].resolved) return std::nullopt;

    const TensorState& left = is_left ? it->second.tensors[tensor] : other->second.tensors[tensor];
    const TensorState& right = is_left ? other->second.tensors[tensor] : it->second.tensors[tensor];
    if (left.gradient && right.gradient) {
      ASSIGN_OR_RETURN(auto added, AddGradients(table_->tensors(static_cast<int>(tensor)),
                                                *left.gradient, *right.gradient));
      sum.tensors[tensor].gradient = std::move(added);
    } else {
      sum.tensors[tensor].gradient = left.gradient ? left.gradient : right.gradient;
    }

    SLUICE_DCHECK(sum.unresolved > 0, "a tensor is resolved once");
    sum.tensors[tensor].resolved = true;
    // The halves are kept until the sum is whole: a view change may still need one of them.
    if (--sum.unresolved == 0) DropInside(parent);

    key = parent;
  }
}

void StepGradients::DropInside(const NodeKey& key) {
  SLUICE_DCHECK(nodes_.at(key).IsWhole(), "halves are kept until their sum is whole");
  for (auto it = nodes_.lower_bound({key.first, 0});
       it != nodes_.end() && it->first.first < key.second;) {
    it = it->first != key && it->first.second <= key.second ? nodes_.erase(it) : std::next(it);
  }
}

const StepGradients::TensorState& StepGradients::Get(const MicrobatchRange& partial_sum,
                                                     uint32_t tensor) const {
  static const TensorState* const kUnresolved = new TensorState();

  // Also before the partial sum has a node: no event resolves a counter.
  static const TensorState* const kCounter = new TensorState{/*resolved=*/true, std::nullopt};
  if (table_->tensors(static_cast<int>(tensor)).kind() == v1::COUNTER) return *kCounter;

  auto it = nodes_.find(Key(partial_sum));
  if (it == nodes_.end()) return *kUnresolved;
  SLUICE_DCHECK(tensor < it->second.tensors.size(), "a node has a state for each tensor");
  return it->second.tensors[tensor];
}

bool StepGradients::IsComplete() const {
  return std::all_of(partial_sums_.begin(), partial_sums_.end(),
                     [&](const MicrobatchRange& partial_sum) {
                       auto it = nodes_.find(Key(partial_sum));
                       return it != nodes_.end() && it->second.IsWhole();
                     });
}

bool StepGradients::IsPartialSum(const NodeKey& key) const {
  return std::any_of(partial_sums_.begin(), partial_sums_.end(),
                     [&](const MicrobatchRange& partial_sum) { return Key(partial_sum) == key; });
}

bool StepGradients::IsInsidePartialSum(const NodeKey& key) const {
  return std::any_of(partial_sums_.begin(), partial_sums_.end(),
                     [&](const MicrobatchRange& partial_sum) {
                       return partial_sum.begin <= key.first && key.second <= partial_sum.end;
                     });
}

StepGradients::Node& StepGradients::MakeNode(const NodeKey& key) {
  SLUICE_DCHECK(nodes_.count(key) == 0, "gradients that are held are not made again");

  Node& node = nodes_[key];
  node.tensors.resize(static_cast<size_t>(table_->tensors_size()));
  node.unresolved = 0;
  for (int tensor = 0; tensor < table_->tensors_size(); ++tensor) {
    TensorState& state = node.tensors[static_cast<size_t>(tensor)];
    // Counters advance by themselves on the shards.
    state.resolved = table_->tensors(tensor).kind() == v1::COUNTER;
    if (!state.resolved) ++node.unresolved;
  }
  return node;
}

}  // namespace sluice::worker
