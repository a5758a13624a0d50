#include "services/worker/collective/reduction_plan.h"

#include <xxhash.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "services/protocol/elements.h"
#include "services/protocol/layout.h"

namespace sluice::worker {

ReductionPlan MakeReductionPlan(const v1::TensorTable& table, const v1::Layout& layout,
                                std::vector<uint32_t> tensors, std::vector<uint64_t> members,
                                uint32_t rank) {
  ReductionPlan plan;
  plan.tensors = std::move(tensors);
  plan.members = std::move(members);
  plan.rank = rank;
  plan.parts.resize(plan.members.size());

  const auto place_of = [&plan](uint32_t tensor) {
    return std::lower_bound(plan.tensors.begin(), plan.tensors.end(), tensor);
  };

  // The blocks to sum, largest first.
  std::vector<uint32_t> blocks;
  for (int block = 0; block < layout.blocks_size(); ++block) {
    const uint32_t tensor = layout.blocks(block).tensor();
    const auto place = place_of(tensor);
    if (place != plan.tensors.end() && *place == tensor) {
      blocks.push_back(static_cast<uint32_t>(block));
    }
  }

  const auto bytes_of = [&](uint32_t block) {
    return BlockBytes(table, layout.blocks(static_cast<int>(block)));
  };
  std::stable_sort(blocks.begin(), blocks.end(),
                   [&](uint32_t a, uint32_t b) { return bytes_of(a) > bytes_of(b); });

  // Each goes to the member that has the fewest bytes so far.
  for (uint32_t number : blocks) {
    ReductionPlan::Part& part =
        *std::min_element(plan.parts.begin(), plan.parts.end(),
                          [](const ReductionPlan::Part& a, const ReductionPlan::Part& b) {
                            return a.bytes < b.bytes;
                          });

    const v1::Block& block = layout.blocks(static_cast<int>(number));
    ReductionPlan::Piece piece;
    piece.block = number;
    piece.place = static_cast<uint32_t>(place_of(block.tensor()) - plan.tensors.begin());
    piece.offset = block.offset();
    piece.count = block.count();
    piece.dtype = table.tensors(static_cast<int>(block.tensor())).dtype();
    part.pieces.push_back(piece);
    part.bytes += (bytes_of(number) + 7) / 8 * 8;
  }

  // Places within a part: in the order of the layout, each at a multiple of 8 bytes.
  for (ReductionPlan::Part& part : plan.parts) {
    std::sort(part.pieces.begin(), part.pieces.end(),
              [](const auto& a, const auto& b) { return a.block < b.block; });
    uint64_t at = 0;
    for (ReductionPlan::Piece& piece : part.pieces) {
      piece.at = at;
      at += (piece.count * ElementBytes(piece.dtype) + 7) / 8 * 8;
    }
  }

  const std::string text =
      absl::StrCat(LayoutHash(table, layout), ";", absl::StrJoin(plan.tensors, ","), ";",
                   absl::StrJoin(plan.members, ","));
  plan.hash = XXH3_64bits(text.data(), text.size());
  return plan;
}

}  // namespace sluice::worker
