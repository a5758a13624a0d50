#include "services/ps/core/state/gradient_sum.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "services/common/arithmetic/cord_reader.h"
#include "services/common/arithmetic/half.h"
#include "services/common/arithmetic/kernels.h"
#include "services/common/check.h"
#include "services/common/status_macros.h"
#include "services/protocol/codec/codec.h"
#include "services/protocol/elements.h"

namespace sluice::ps {
namespace {

Elements SumElements(const BlockInfo& info, Block& block) {
  return Elements(info.sum_dtype, block.mutable_bytes().data(), info.count);
}

// Rows are worthwhile only while they are few.
bool AreFew(const BlockInfo& info, const RowSum& rows) {
  return rows.Count(info) <= info.count / 2;
}

absl::Status Decode(const BlockInfo& info, v1::Codec codec, const absl::Cord& payload, Block& to) {
  if (codec == v1::CODEC_RAW && info.dtype == info.sum_dtype) {
    return CopyPayload(payload, to.mutable_bytes());
  }
  ASSIGN_OR_RETURN(const Codec* const found, FindCodec(codec));
  std::memset(to.mutable_bytes().data(), 0, to.size());
  return found->DecodeAdd(payload, info.dtype, SumElements(info, to));
}

// A sum of one contribution.
absl::Status MakeSum(const BlockInfo& info, v1::Codec codec, const absl::Cord& payload,
                     BlockPool& pool, Sum* sum) {
  if (codec == v1::CODEC_RAW && info.dtype == info.sum_dtype) {
    if (payload.size() != info.bytes) {
      return absl::InvalidArgumentError("the payload's size is not the block's");
    }
    sum->payload = payload;
    return absl::OkStatus();
  }

  if (codec == v1::CODEC_ROWS && info.rows_apart) {
    RowSum rows;
    RETURN_IF_ERROR(DecodeRows(info, payload, &rows));
    const bool few = AreFew(info, rows);
    sum->rows = std::move(rows);
    return few ? absl::OkStatus() : Materialize(info, pool, sum);
  }

  MutableBlockRef block = pool.Take(info.sum_bytes);
  RETURN_IF_ERROR(Decode(info, codec, payload, *block));
  sum->block = std::move(block);
  return absl::OkStatus();
}

// to += from, as rows. False, with nothing changed, if the sum must become a block.
bool AddAsRows(const BlockInfo& info, const Sum& from, Sum* to) {
  return to->rows.has_value() && from.rows.has_value() && AddRows(info, *from.rows, &*to->rows);
}

// to += from, which is not a sum of rows.
absl::Status AddSum(const BlockInfo& info, const Sum& from, Block& to) {
  if (from.block == nullptr) {
    return info.sum_dtype == v1::FLOAT64 ? AddPayload<double>(from.payload, to.MutableAs<double>())
                                         : AddPayload<float>(from.payload, to.MutableAs<float>());
  }
  if (info.sum_dtype == v1::FLOAT64) {
    sluice::Add(std::as_const(*from.block).As<double>(), to.MutableAs<double>());
  } else {
    sluice::Add(std::as_const(*from.block).As<float>(), to.MutableAs<float>());
  }
  return absl::OkStatus();
}

// Rounds a sum of two, as a worker does, so that a node has the same bits wherever it is summed.
void RoundToStorage(const BlockInfo& info, Block& sum) {
  if (info.dtype == v1::BFLOAT16) {
    for (float& value : sum.MutableAs<float>()) value = ToFloat(ToBFloat16(value));
  } else if (info.dtype == v1::FLOAT16) {
    for (float& value : sum.MutableAs<float>()) value = ToFloat(ToFloat16(value));
  }
}

}  // namespace

absl::Status Materialize(const BlockInfo& info, BlockPool& pool, Sum* sum) {
  SLUICE_DCHECK((sum->block != nullptr) + sum->rows.has_value() + !sum->payload.empty() <= 1,
                "a sum is a payload, rows or a block");
  if (sum->block != nullptr) return absl::OkStatus();

  MutableBlockRef block = pool.Take(info.sum_bytes);
  if (sum->rows.has_value()) {
    Spread(info, *sum->rows, block.get());
    sum->rows.reset();
    sum->block = std::move(block);
    return absl::OkStatus();
  }

  RETURN_IF_ERROR(CopyPayload(sum->payload, block->mutable_bytes()));
  sum->payload.Clear();
  sum->block = std::move(block);
  return absl::OkStatus();
}

namespace {

// to += from, which is consumed.
absl::Status MergeBlocks(const BlockInfo& info, BlockPool& pool, Sum* from, Sum* to) {
  if (to->block == nullptr && from->block != nullptr) std::swap(*to, *from);
  if (from->rows.has_value()) {
    RETURN_IF_ERROR(Materialize(info, pool, from));
  }
  RETURN_IF_ERROR(Materialize(info, pool, to));
  return AddSum(info, *from, *to->block);
}

}  // namespace

absl::Status GradientSum::Add(const BlockInfo& info, v1::Codec codec, const absl::Cord& payload,
                              BlockPool& pool) {
  if (nodes_.empty()) {
    Node node;
    RETURN_IF_ERROR(MakeSum(info, codec, payload, pool, &node.sum));
    nodes_.push_back(std::move(node));
    return absl::OkStatus();
  }

  SLUICE_DCHECK(nodes_.size() == 1 && nodes_.front().size == 0,
                "a sum in order of arrival has no nodes of the tree");

  ASSIGN_OR_RETURN(const Codec* const found, FindCodec(codec));
  Sum& sum = nodes_.front().sum;
  if (sum.rows.has_value() && codec == v1::CODEC_ROWS) {
    Sum more;
    more.rows.emplace();
    RETURN_IF_ERROR(DecodeRows(info, payload, &*more.rows));
    if (AddAsRows(info, more, &sum)) {
      return AreFew(info, *sum.rows) ? absl::OkStatus() : Materialize(info, pool, &sum);
    }
  }

  RETURN_IF_ERROR(Materialize(info, pool, &sum));
  return found->DecodeAdd(payload, info.dtype, SumElements(info, *sum.block));
}

absl::Status GradientSum::AddNode(const BlockInfo& info, v1::Codec codec, const absl::Cord& payload,
                                  uint64_t begin, uint64_t size, BlockPool& pool) {
  SLUICE_DCHECK(size > 0 && (size & (size - 1)) == 0 && begin % size == 0,
                "a node of the tree is aligned to its size, a power of two");
  SLUICE_DCHECK(nodes_.empty() || nodes_.front().size > 0,
                "a sum by the tree has nothing that was added in order of arrival");

  Node node;
  node.begin = begin;
  node.size = size;
  RETURN_IF_ERROR(MakeSum(info, codec, payload, pool, &node.sum));
  const auto place =
      std::lower_bound(nodes_.begin(), nodes_.end(), begin,
                       [](const Node& held, uint64_t wanted) { return held.begin < wanted; });
  SLUICE_DCHECK(
      (place == nodes_.end() || begin + size <= place->begin) &&
          (place == nodes_.begin() || std::prev(place)->begin + std::prev(place)->size <= begin),
      "nodes of the tree are disjoint");
  size_t index = place - nodes_.begin();
  nodes_.insert(place, std::move(node));

  // While the sibling is there, the two become their parent, which may have a sibling too.
  for (;;) {
    const Node& held = nodes_[index];
    const bool is_left = (held.begin / held.size) % 2 == 0;
    if (!is_left && index == 0) return absl::OkStatus();
    const size_t left = is_left ? index : index - 1;
    if (left + 1 >= nodes_.size()) return absl::OkStatus();
    const Node& a = nodes_[left];
    const Node& b = nodes_[left + 1];
    if (a.size != b.size || a.begin + a.size != b.begin || (a.begin / a.size) % 2 != 0) {
      return absl::OkStatus();
    }
    RETURN_IF_ERROR(MergeAt(info, left, pool));
    index = left;
  }
}

// Addition of two values is commutative to the bit, so the sum that is already a block receives the
// other.
absl::Status GradientSum::MergeAt(const BlockInfo& info, size_t left, BlockPool& pool) {
  Sum& a = nodes_[left].sum;
  Sum& b = nodes_[left + 1].sum;

  if (AddAsRows(info, b, &a)) {
    RoundRows(info, &*a.rows);
  } else {
    RETURN_IF_ERROR(MergeBlocks(info, pool, &b, &a));
    RoundToStorage(info, *a.block);
  }

  nodes_[left].size *= 2;
  nodes_.erase(nodes_.begin() + static_cast<std::ptrdiff_t>(left) + 1);
  return absl::OkStatus();
}

absl::Status GradientSum::Merge(const BlockInfo& info, GradientSum* from, BlockPool& pool) {
  if (from->empty()) return absl::OkStatus();
  if (nodes_.empty()) {
    nodes_ = std::exchange(from->nodes_, {});
    return absl::OkStatus();
  }

  Sum& sum = nodes_.front().sum;
  Sum& more = from->nodes_.front().sum;
  absl::Status added =
      AddAsRows(info, more, &sum) ? absl::OkStatus() : MergeBlocks(info, pool, &more, &sum);
  from->Clear();
  return added;
}

absl::Status GradientSum::Settle(const BlockInfo& info, BlockPool& pool) {
  SLUICE_DCHECK(!nodes_.empty(), "a sum that is taken has a contribution");
  // Level by level, a node without a sibling becomes its parent.
  for (uint64_t size = 1; nodes_.size() > 1; size *= 2) {
    for (size_t i = 0; i < nodes_.size(); ++i) {
      Node& node = nodes_[i];
      if (node.size != size) continue;
      if ((node.begin / size) % 2 != 0) node.begin -= size;
      node.size = size * 2;
      const bool has_sibling = i > 0 && nodes_[i - 1].begin == node.begin;
      if (!has_sibling) continue;
      nodes_[i - 1].size = size;  // MergeAt doubles it again
      RETURN_IF_ERROR(MergeAt(info, i - 1, pool));
      --i;
    }
  }
  return absl::OkStatus();
}

absl::Status GradientSum::Take(const BlockInfo& info, BlockPool& pool, Sum* sum) {
  RETURN_IF_ERROR(Settle(info, pool));
  *sum = std::move(nodes_.front().sum);
  nodes_.clear();
  return absl::OkStatus();
}

}  // namespace sluice::ps
