// Which worker sums which part of the dense gradients, when workers sum them among themselves
// (docs/protocol.md 7.12).
//
// Intuition. Each of N members ends up with the sum of one part of the gradients, and pushes it to
// the shards. Parts consist of whole blocks of the layout, because shards add blocks. Blocks are
// dealt to members largest first, each to the member that has the fewest bytes, so that all have
// about the same number of bytes. The plan is a pure function of table, layout and members, so all
// members compute the same plan.
#ifndef SLUICE_SERVICES_WORKER_COLLECTIVE_REDUCTION_PLAN_H_
#define SLUICE_SERVICES_WORKER_COLLECTIVE_REDUCTION_PLAN_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/cord.h"
#include "proto/common.pb.h"
#include "proto/model.pb.h"

namespace sluice::worker {

struct ReductionPlan {
  // A block, in the part of one member.
  struct Piece {
    uint32_t block = 0;  // of the layout
    uint32_t place = 0;  // of its tensor in `tensors`
    uint64_t offset = 0;
    uint64_t count = 0;
    v1::DataType dtype = v1::DATA_TYPE_UNSPECIFIED;
    uint64_t at = 0;  // in bytes from the part's beginning: a multiple of 8
  };
  struct Part {
    std::vector<Piece> pieces;  // ascending by block
    uint64_t bytes = 0;         // a multiple of 8
  };

  std::vector<uint64_t> members;  // incarnations, by rank; at least one
  uint32_t rank = 0;              // of this worker
  std::vector<uint32_t> tensors;  // whose gradients are summed, ascending
  std::vector<Part> parts;        // by rank
  uint64_t hash = 0;              // the same for all members that have the same plan

  const Part& own() const { return parts[rank]; }
};

// Whole gradients by place in ReductionPlan::tensors; none: no sample of this worker had one.
using DenseGradients = std::vector<std::optional<absl::Cord>>;

// Sums by piece of the worker's own part; none: no member had a gradient.
using ReducedPart = std::vector<std::optional<absl::Cord>>;

// `tensors` (ascending) are floating-point tensors of the table, `rank` is below the number of
// members.
ReductionPlan MakeReductionPlan(const v1::TensorTable& table, const v1::Layout& layout,
                                std::vector<uint32_t> tensors, std::vector<uint64_t> members,
                                uint32_t rank);

}  // namespace sluice::worker

#endif  // SLUICE_SERVICES_WORKER_COLLECTIVE_REDUCTION_PLAN_H_
