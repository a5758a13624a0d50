#ifndef SLUICE_SERVICES_PS_CORE_STATE_GRADIENT_SUM_H_
#define SLUICE_SERVICES_PS_CORE_STATE_GRADIENT_SUM_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "services/common/check.h"
#include "services/ps/core/base/model.h"
#include "services/ps/core/state/block.h"
#include "services/ps/core/state/row_sum.h"

namespace sluice::ps {

// A sum of contributions: the received payload itself, while it is the only one and has the type in
// which sums are computed; rows, while all contributions have few rows and the block's rows can be
// updated by themselves; else a block of that type. At most one of the three is set.
struct Sum {
  absl::Cord payload;
  std::optional<RowSum> rows;
  MutableBlockRef block;
};

// The sum of one block's gradients (or buffer changes) over a step or an update.
//
// Intuition. The first contribution is kept as the slices that the transport received. If it stays
// the only one, the optimizer reads the gradient from the slices without a copy; a second one turns
// the sum into a recycled block.
//
// Two ways of adding, never mixed in one sum: in order of arrival, or (BitExact) as nodes of the
// fixed binary tree over microbatches, where siblings are merged as soon as both have arrived, so
// that the result has the same bits for every order of arrival and every split into nodes. In the
// tree, a sum of two is rounded to the tensor's own type, as workers round the nodes that they
// send.
class GradientSum {
 public:
  // Whether no contribution is held.
  bool empty() const { return nodes_.empty(); }

  // INVALID_ARGUMENT, with nothing changed, if the payload is not a block of that codec.
  absl::Status Add(const BlockInfo& info, v1::Codec codec, const absl::Cord& payload,
                   BlockPool& pool);

  // Adds a node that covers microbatches [begin, begin + size): `size` a power of two, `begin` a
  // multiple of it, disjoint from what was added before.
  absl::Status AddNode(const BlockInfo& info, v1::Codec codec, const absl::Cord& payload,
                       uint64_t begin, uint64_t size, BlockPool& pool);

  // Takes the whole sum and leaves this one empty. A node without a sibling (its microbatches had
  // no gradient for this tensor) is merged as if the sibling were zero. Must not be empty.
  absl::Status Take(const BlockInfo& info, BlockPool& pool, Sum* sum);

  // Merges all that was added to one sum, as Take does, and keeps it. Must not be empty.
  absl::Status Settle(const BlockInfo& info, BlockPool& pool);
  // Requires Settle or Put.
  const Sum& settled() const {
    SLUICE_DCHECK(nodes_.size() == 1, "a settled sum is one sum");
    return nodes_.front().sum;
  }

  // Adds another sum of the block and leaves that one empty. Neither has tree nodes.
  absl::Status Merge(const BlockInfo& info, GradientSum* from, BlockPool& pool);

  // Puts back a sum that was taken.
  void Put(Sum sum) {
    SLUICE_DCHECK(nodes_.empty(), "a sum is put back where it was taken");
    nodes_.push_back({0, 0, std::move(sum)});
  }

  // Drops all contributions.
  void Clear() { nodes_.clear(); }

  // Number of sums held.
  size_t nodes() const { return nodes_.size(); }

 private:
  // A partial sum, over microbatches [begin, begin + size) in the tree.
  struct Node {
    uint64_t begin = 0;
    uint64_t size = 0;
    Sum sum;
  };

  // Merges the nodes at `left` and `left + 1`, which are siblings, into their parent at `left`.
  absl::Status MergeAt(const BlockInfo& info, size_t left, BlockPool& pool);

  std::vector<Node> nodes_;  // ascending
};

// Turns the sum into a block, if it is not one.
absl::Status Materialize(const BlockInfo& info, BlockPool& pool, Sum* sum);

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_CORE_STATE_GRADIENT_SUM_H_
