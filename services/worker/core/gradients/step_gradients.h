// The gradients of one step that a worker holds, by microbatches.
//
// Intuition. A worker pushes its part of a step as a few *partial sums*: sums over contiguous
// microbatches. Normally a partial sum is what was computed as one batch. With BitExact
// (docs/protocol.md 7) partial sums are the maximal complete subtrees of its assignment in the
// fixed binary tree over the step's microbatches (a power of two); each microbatch is computed by
// itself, and a node is the sum of its two children. Sums are computed here, tensor by tensor, as
// soon as both halves are available, so that a partial sum's tensor can be pushed while backward
// still runs.
//
// When the view changes, Assign keeps the nodes that are wholly inside the new assignment and
// returns what remains to be computed. A node that is partly outside is never used again: it would
// overlap another member's.
#ifndef SLUICE_SERVICES_WORKER_CORE_GRADIENTS_STEP_GRADIENTS_H_
#define SLUICE_SERVICES_WORKER_CORE_GRADIENTS_STEP_GRADIENTS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "proto/model.pb.h"
#include "services/protocol/samples/sequence.h"
#include "services/worker/core/base/rules.h"
#include "services/worker/core/gradients/gradient.h"

namespace sluice::worker {

// Microbatches [begin, end) of a step. (PositionRange is a pair of numbers; here they count
// microbatches.)
using MicrobatchRange = PositionRange;

// The maximal complete subtrees of a set of microbatches, ascending: aligned ranges whose sizes are
// powers of two. At most 2 log2(M) for one contiguous range of M microbatches. The ranges are
// ascending and disjoint; adjacent ones count as one.
std::vector<MicrobatchRange> MaximalSubtrees(const std::vector<MicrobatchRange>& ranges);

// The gradients of one step, tensor by tensor, in the nodes that the assignment requires. Bounded
// by the assignment: a node's halves are dropped when it is whole. For one thread, like the core.
class StepGradients {
 public:
  // A tensor of a partial sum: unresolved, without a gradient, or with a gradient.
  struct TensorState {
    bool resolved = false;
    std::optional<Gradient> gradient;
  };

  // `table` and `rules` must outlive it. `tree`: BitExact.
  StepGradients(const v1::TensorTable* table, bool tree, const WorkerRules* rules);

  // Sets the assignment (ascending, disjoint), forgets what cannot be used for it, and returns what
  // is to be computed now: ranges that were not returned before or had to be forgotten. With
  // `tree`, single microbatches.
  std::vector<MicrobatchRange> Assign(const std::vector<MicrobatchRange>& assignment);

  // Whether a range that Assign returned is still wanted.
  bool Wants(const MicrobatchRange& computed) const { return nodes_.count(Key(computed)) != 0; }

  // Resolves `tensor` of a computed range in the partial sums that contain it: none or one. Called
  // for each tensor; nullopt: no gradient. A range that is not wanted and a tensor that is resolved
  // are ignored. Returns the partial sum in which the tensor is now resolved, if any.
  absl::StatusOr<std::optional<MicrobatchRange>> Resolve(const MicrobatchRange& computed,
                                                         uint32_t tensor,
                                                         std::optional<Gradient> gradient);

  // Ascending, disjoint; together the assignment.
  const std::vector<MicrobatchRange>& partial_sums() const { return partial_sums_; }
  // The state of a tensor in a partial sum; unresolved while the partial sum has no node yet.
  const TensorState& Get(const MicrobatchRange& partial_sum, uint32_t tensor) const;

  // Whether every tensor of every partial sum is resolved.
  bool IsComplete() const;

 private:
  using NodeKey = std::pair<uint64_t, uint64_t>;  // begin, end
  // A range of microbatches with the state of each tensor.
  struct Node {
    std::vector<TensorState> tensors;
    size_t unresolved = 0;
    bool IsWhole() const { return unresolved == 0; }
  };

  static NodeKey Key(const MicrobatchRange& range) { return {range.begin, range.end}; }
  // Whether the range is one of the partial sums that are pushed.
  bool IsPartialSum(const NodeKey& key) const;
  // Whether the range is a part of a partial sum, or one itself.
  bool IsInsidePartialSum(const NodeKey& key) const;
  // Adds a node whose tensors are unresolved, except for counters, which have no gradient.
  Node& MakeNode(const NodeKey& key);
  // Sums a tensor upwards while both halves are available; returns the partial sum that it reaches,
  // if any.
  absl::StatusOr<std::optional<NodeKey>> MergeUp(NodeKey key, uint32_t tensor);
  // Drops the nodes below a node that is whole.
  void DropInside(const NodeKey& key);
  // The two ways of Assign: with `tree`, and without.
  std::vector<MicrobatchRange> AssignTree(const std::vector<MicrobatchRange>& assignment);
  std::vector<MicrobatchRange> AssignRanges(const std::vector<MicrobatchRange>& assignment);

  const v1::TensorTable* table_;
  const bool tree_;
  const WorkerRules* rules_;
  std::vector<MicrobatchRange> partial_sums_;
  std::map<NodeKey, Node> nodes_;
};

}  // namespace sluice::worker

#endif  // SLUICE_SERVICES_WORKER_CORE_GRADIENTS_STEP_GRADIENTS_H_
