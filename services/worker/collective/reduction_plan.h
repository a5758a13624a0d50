// Who sums which part of the dense gradients, where workers sum them among each other
// (docs/protocol.md 7.12).
//
// Intuition. Of N members each is to end up with the sum of one part of the gradients, and to push
// that to the shards. Parts are whole blocks of the layout, because that is what shards add; blocks
// are dealt to members largest first, each to the one that has least, so that all have about the
// same bytes. It is a pure function of table, layout and members, so whoever computes it gets the
// same.
#ifndef SLUICE_SERVICES_WORKER_COLLECTIVE_REDUCTION_PLAN_H_
#define SLUICE_SERVICES_WORKER_COLLECTIVE_REDUCTION_PLAN_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/cord.h"
#include "proto/frame.pb.h"
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

// `tensors` (ascending) are floating-point ones of the table, `rank` is below the number of
// members.
ReductionPlan MakeReductionPlan(const v1::TensorTable& table, const v1::Layout& layout,
                                std::vector<uint32_t> tensors, std::vector<uint64_t> members,
                                uint32_t rank);

}  // namespace sluice::worker

#endif  // SLUICE_SERVICES_WORKER_COLLECTIVE_REDUCTION_PLAN_H_
