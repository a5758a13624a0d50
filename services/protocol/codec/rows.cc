#include "services/protocol/codec/rows.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/common/arithmetic/half.h"
#include "services/common/arithmetic/kernels.h"
#include "services/common/status_macros.h"
#include "services/protocol/codec/checks.h"
#include "services/protocol/elements.h"

namespace sluice {
namespace {

constexpr size_t kHead = 4 * sizeof(uint32_t);
constexpr uint64_t kMostElements = std::numeric_limits<uint32_t>::max();

uint32_t Load(const char* from) {
  uint32_t value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

char* Store(uint64_t value, char* to) {
  const auto narrow = static_cast<uint32_t>(value);
  std::memcpy(to, &narrow, sizeof(narrow));
  return to + sizeof(narrow);
}

template <typename... What>
absl::Status Invalid(What... what) {
  return absl::InvalidArgumentError(absl::StrCat("CODEC_ROWS: ", what...));
}

// Writes the head and the row numbers. Returns where the values begin.
char* WriteHead(const RowCut& cut, absl::Span<const uint64_t> rows, char* to) {
  to = Store(rows.size(), to);
  to = Store(cut.row_elements, to);
  to = Store(cut.offset % cut.row_elements, to);
  to = Store(0, to);
  for (uint64_t row : rows) to = Store(row - cut.begin_row(), to);
  return to;
}

absl::Cord Owning(std::string bytes) {
  auto* kept = new std::string(std::move(bytes));
  return absl::MakeCordFromExternal(*kept, [kept] { delete kept; });
}

// The values in one piece, aligned for every element type: rows are short, and a payload may be
// split into chunks anywhere.
std::string Values(const absl::Cord& payload, const RowParts& split) {
  return std::string(payload.Subcord(split.values_at, payload.size() - split.values_at));
}

class Rows final : public Codec {
 public:
  v1::Codec id() const override { return v1::CODEC_ROWS; }

  absl::Status Supports(v1::DataType dtype) const override {
    if (ElementBytes(dtype) > 0) return absl::OkStatus();
    return Invalid("a block of data type ", static_cast<int>(dtype), ", which is unknown");
  }

  absl::StatusOr<size_t> EncodedBytes(size_t count, v1::DataType dtype) const override {
    RETURN_IF_ERROR(Supports(dtype));
    if (count > kMostElements) return Invalid("a block of ", count, " elements");
    return kHead + sizeof(uint32_t) + count * ElementBytes(dtype);
  }

  absl::StatusOr<size_t> Encode(ConstElements values, absl::Span<char> to) const override {
    ASSIGN_OR_RETURN(const size_t most, EncodedBytes(values.count(), values.dtype()));
    RETURN_IF_ERROR(CheckRoom(*this, to.size(), most));
    const RowCut cut{std::max<uint64_t>(1, values.count()), 0, values.count()};
    const uint64_t only = 0;
    const absl::Span<const char> bytes = values.bytes();
    char* end = WriteHead(cut, {&only, values.count() > 0 ? size_t{1} : size_t{0}}, to.data());
    if (!bytes.empty()) std::memcpy(end, bytes.data(), bytes.size());
    return static_cast<size_t>(end - to.data()) + bytes.size();
  }

  absl::Status Validate(const absl::Cord& payload, v1::DataType dtype,
                        size_t count) const override {
    return SplitRows(payload, dtype, count).status();
  }

  absl::Status Decode(const absl::Cord& payload, Elements to) const override {
    ASSIGN_OR_RETURN(const RowParts split, SplitRows(payload, to.dtype(), to.count()));
    const absl::Span<char> bytes = to.bytes();
    if (!bytes.empty()) std::memset(bytes.data(), 0, bytes.size());

    const size_t element = ElementBytes(to.dtype());
    const std::string values = Values(payload, split);
    const char* at = values.data();
    for (const RowPart& part : split.parts) {
      std::memcpy(bytes.data() + part.offset * element, at, part.count * element);
      at += part.count * element;
    }
    return absl::OkStatus();
  }

  absl::Status DecodeAdd(const absl::Cord& payload, v1::DataType dtype,
                         Elements accumulator) const override {
    if (!IsFloatingPoint(dtype)) {
      return Invalid("a gradient of ", v1::DataType_Name(dtype), ", only floating point is summed");
    }
    RETURN_IF_ERROR(CheckAccumulator(*this, dtype, accumulator.dtype()));

    ASSIGN_OR_RETURN(const RowParts split, SplitRows(payload, dtype, accumulator.count()));
    const std::string values = Values(payload, split);

    VisitFloatingPoint(dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      const absl::Span<ComputeType<T>> sums = accumulator.As<ComputeType<T>>();
      const T* at = reinterpret_cast<const T*>(values.data());
      for (const RowPart& part : split.parts) {
        sluice::Add(absl::MakeConstSpan(at, part.count), sums.subspan(part.offset, part.count));
        at += part.count;
      }
    });
    return absl::OkStatus();
  }
};

}  // namespace

RowPart PartOf(const RowCut& cut, uint64_t row) {
  const uint64_t begin = std::max(row * cut.row_elements, cut.offset);
  const uint64_t end = std::min((row + 1) * cut.row_elements, cut.offset + cut.count);
  return {begin - cut.offset, end - begin};
}

absl::Span<const uint64_t> RowsIn(const RowCut& cut, absl::Span<const uint64_t> rows) {
  const auto* const begin = std::lower_bound(rows.begin(), rows.end(), cut.begin_row());
  const auto* const end = std::lower_bound(begin, rows.end(), cut.end_row());
  return {begin, static_cast<size_t>(end - begin)};
}

size_t RowsBytes(const RowCut& cut, absl::Span<const uint64_t> rows, v1::DataType dtype) {
  uint64_t elements = 0;
  for (uint64_t row : rows) elements += PartOf(cut, row).count;
  return kHead + rows.size() * sizeof(uint32_t) + elements * ElementBytes(dtype);
}

absl::Cord EncodeRows(const RowCut& cut, absl::Span<const uint64_t> rows, v1::DataType dtype,
                      RowAt row_at) {
  const size_t element = ElementBytes(dtype);
  std::string bytes(RowsBytes(cut, rows, dtype), '\0');
  char* to = WriteHead(cut, rows, bytes.data());
  for (size_t i = 0; i < rows.size(); ++i) {
    const RowPart part = PartOf(cut, rows[i]);
    const uint64_t in_row = cut.offset + part.offset - rows[i] * cut.row_elements;
    std::memcpy(to, row_at(i) + in_row * element, part.count * element);
    to += part.count * element;
  }
  return Owning(std::move(bytes));
}

absl::Cord EncodeRowsOfBlock(const RowCut& cut, absl::Span<const uint64_t> rows, v1::DataType dtype,
                             absl::Span<const char> block) {
  const size_t element = ElementBytes(dtype);
  std::string bytes(RowsBytes(cut, rows, dtype), '\0');
  char* to = WriteHead(cut, rows, bytes.data());
  for (uint64_t row : rows) {
    const RowPart part = PartOf(cut, row);
    std::memcpy(to, block.data() + part.offset * element, part.count * element);
    to += part.count * element;
  }
  return Owning(std::move(bytes));
}

absl::StatusOr<RowParts> SplitRows(const absl::Cord& payload, v1::DataType dtype, size_t count) {
  const size_t element = ElementBytes(dtype);
  if (element == 0) {
    return Invalid("a block of data type ", static_cast<int>(dtype), ", which is unknown");
  }
  if (payload.size() < kHead) return Invalid("a payload of ", payload.size(), " bytes");

  // The head and the numbers are copied before they are checked: the sender may change shared
  // memory meanwhile.
  const std::string head(payload.Subcord(0, kHead));
  const uint64_t rows = Load(head.data());
  const uint64_t row_elements = Load(head.data() + 4);
  const uint64_t lead = Load(head.data() + 8);
  if (row_elements == 0) return Invalid("rows of no elements");
  if (lead >= row_elements) {
    return Invalid(lead, " elements before the block in rows of ", row_elements);
  }
  if (Load(head.data() + 12) != 0) return Invalid("bytes 12 to 15 are not zeros");

  const RowCut cut{row_elements, lead, count};
  if (rows > cut.end_row()) return Invalid(rows, " rows in a block of ", cut.end_row());

  RowParts split;
  split.values_at = kHead + rows * sizeof(uint32_t);
  if (payload.size() < split.values_at) {
    return Invalid("a payload of ", payload.size(), " bytes ends within the numbers of ", rows,
                   " rows");
  }

  const std::string numbers(payload.Subcord(kHead, rows * sizeof(uint32_t)));
  split.parts.reserve(rows);
  uint64_t next = 0;
  size_t need = split.values_at;
  for (uint64_t i = 0; i < rows; ++i) {
    const uint64_t row = Load(numbers.data() + i * sizeof(uint32_t));
    if (row >= cut.end_row()) return Invalid("row ", row, " in a block of ", cut.end_row());
    if (row < next) return Invalid("row ", row, " is not above the one before it");
    next = row + 1;
    split.parts.push_back(PartOf(cut, row));
    need += split.parts.back().count * element;
  }

  if (payload.size() != need) {
    return Invalid("a payload of ", payload.size(), " bytes for ", rows, " rows, which take ",
                   need);
  }
  return split;
}

std::unique_ptr<const Codec> MakeRows() { return std::make_unique<Rows>(); }

}  // namespace sluice
