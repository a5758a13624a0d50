#include "services/ps/core/state/row_sum.h"

#include <cstring>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "services/common/arithmetic/half.h"
#include "services/common/arithmetic/kernels.h"
#include "services/common/check.h"
#include "services/common/status_macros.h"
#include "services/protocol/elements.h"

namespace sluice::ps {
namespace {

// Calls `visit(ElementTag<T>{})` with the type of the block's sums.
template <typename Visit>
void VisitSum(const BlockInfo& info, Visit&& visit) {
  if (info.sum_dtype == v1::FLOAT64) {
    visit(ElementTag<double>{});
  } else {
    visit(ElementTag<float>{});
  }
}

uint64_t EndOf(const RowPart& part) { return part.offset + part.count; }

bool IsWellFormed(const BlockInfo& info, const RowSum& sum) {
  uint64_t end = 0;
  uint64_t count = 0;
  for (const RowPart& part : sum.parts) {
    if (part.count == 0 || part.offset < end) return false;
    end = EndOf(part);
    count += part.count;
  }

  return end <= info.count && sum.values.size() == count * ElementBytes(info.sum_dtype);
}

// The parts of both, in order. False if two parts overlap without being equal.
bool Unite(absl::Span<const RowPart> a, absl::Span<const RowPart> b, std::vector<RowPart>* united) {
  united->reserve(a.size() + b.size());

  size_t i = 0, j = 0;
  while (i < a.size() || j < b.size()) {
    const bool both = i < a.size() && j < b.size() && a[i].offset == b[j].offset;
    const bool first = both || j == b.size() || (i < a.size() && a[i].offset < b[j].offset);
    const RowPart& next = first ? a[i] : b[j];

    if (both && a[i].count != b[j].count) return false;
    if (!united->empty() && EndOf(united->back()) > next.offset) return false;

    united->push_back(next);
    if (first) ++i;
    if (both || !first) ++j;
  }
  return true;
}

// Adds `from` to a sum whose parts are a superset.
template <typename T>
void AddTo(const RowSum& from, const std::vector<RowPart>& parts, absl::Span<T> values) {
  absl::Span<const T> rest = from.As<T>();
  size_t place = 0;
  for (const RowPart& part : parts) {
    if (place == from.parts.size()) break;
    if (part.offset == from.parts[place].offset) {
      sluice::Add(rest.subspan(0, part.count), values.subspan(0, part.count));
      rest.remove_prefix(part.count);
      ++place;
    }
    values.remove_prefix(part.count);
  }
}

template <typename Half>
void RoundTo(absl::Span<float> values) {
  for (float& value : values) {
    if constexpr (std::is_same_v<Half, BFloat16>) {
      value = ToFloat(ToBFloat16(value));
    } else {
      value = ToFloat(ToFloat16(value));
    }
  }
}

}  // namespace

uint64_t RowSum::Count(const BlockInfo& info) const {
  return values.size() / ElementBytes(info.sum_dtype);
}

absl::Status DecodeRows(const BlockInfo& info, const absl::Cord& payload, RowSum* sum) {
  ASSIGN_OR_RETURN(RowParts split, SplitRows(payload, info.dtype, info.count));
  // In one piece, aligned for every element, because a payload's chunks may end anywhere.
  const std::string bytes(payload.Subcord(split.values_at, payload.size() - split.values_at));
  const size_t count = bytes.size() / ElementBytes(info.dtype);

  sum->parts = std::move(split.parts);
  sum->values.assign(count * ElementBytes(info.sum_dtype), 0);
  // Added to zeros, as in every sum, so that a zero of the sum has no sign.
  VisitFloatingPoint(info.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    sluice::Add(absl::MakeConstSpan(reinterpret_cast<const T*>(bytes.data()), count),
                sum->MutableAs<ComputeType<T>>());
  });
  SLUICE_DCHECK(IsWellFormed(info, *sum), "decoded rows are ascending, apart and of the block");
  return absl::OkStatus();
}

absl::Cord EncodeRowSum(const ShardModel& model, const BlockInfo& info, const RowSum& sum) {
  uint64_t row_elements = 1;
  const v1::TensorSpec& tensor = model.table().tensors(static_cast<int>(info.tensor));
  for (int i = 1; i < tensor.shape_size(); ++i) row_elements *= tensor.shape(i);
  const RowCut cut{row_elements, info.offset, info.count};

  // EncodeRows takes pointers to whole rows: the first row may begin before the block.
  const size_t element = ElementBytes(info.sum_dtype);
  const size_t lead = (info.offset % row_elements) * element;
  const std::string values = absl::StrCat(std::string(lead, '\0'),
                                          absl::string_view(sum.values.data(), sum.values.size()));

  std::vector<uint64_t> rows;
  std::vector<const char*> starts;
  size_t at = lead;
  for (const RowPart& part : sum.parts) {
    rows.push_back((info.offset + part.offset) / row_elements);
    const uint64_t in_row = (info.offset + part.offset) % row_elements;
    starts.push_back(values.data() + at - in_row * element);
    at += part.count * element;
  }
  return EncodeRows(cut, rows, info.sum_dtype, [&](size_t row) { return starts[row]; });
}

absl::Status DecodeRowSum(const BlockInfo& info, const absl::Cord& payload, RowSum* sum) {
  ASSIGN_OR_RETURN(RowParts split, SplitRows(payload, info.sum_dtype, info.count));
  const std::string bytes(payload.Subcord(split.values_at, payload.size() - split.values_at));
  sum->parts = std::move(split.parts);
  sum->values.assign(bytes.begin(), bytes.end());
  SLUICE_DCHECK(IsWellFormed(info, *sum), "decoded rows are ascending, apart and of the block");
  return absl::OkStatus();
}

bool AddRows(const BlockInfo& info, const RowSum& from, RowSum* to) {
  RowSum united;
  if (!Unite(to->parts, from.parts, &united.parts)) return false;
  if (united.parts.size() > to->parts.size()) {
    uint64_t count = 0;
    for (const RowPart& part : united.parts) count += part.count;
    united.values.assign(count * ElementBytes(info.sum_dtype), 0);
    VisitSum(info, [&](auto tag) {
      using T = typename decltype(tag)::type;
      AddTo<T>(*to, united.parts, united.MutableAs<T>());
    });
    *to = std::move(united);
  }

  VisitSum(info, [&](auto tag) {
    using T = typename decltype(tag)::type;
    AddTo<T>(from, to->parts, to->MutableAs<T>());
  });
  SLUICE_DCHECK(IsWellFormed(info, *to), "summed rows are ascending, apart and of the block");
  return true;
}

void RoundRows(const BlockInfo& info, RowSum* sum) {
  if (info.dtype == v1::BFLOAT16) RoundTo<BFloat16>(sum->MutableAs<float>());
  if (info.dtype == v1::FLOAT16) RoundTo<Float16>(sum->MutableAs<float>());
}

void Spread(const BlockInfo& info, const RowSum& sum, Block* block) {
  SLUICE_DCHECK(block->size() == info.sum_bytes, "a sum is spread over a block of its own size");
  const size_t element = ElementBytes(info.sum_dtype);
  const absl::Span<char> bytes = block->mutable_bytes();
  if (!bytes.empty()) std::memset(bytes.data(), 0, bytes.size());

  const char* at = sum.values.data();
  for (const RowPart& part : sum.parts) {
    std::memcpy(bytes.data() + part.offset * element, at, part.count * element);
    at += part.count * element;
  }
}

}  // namespace sluice::ps
