#include "services/worker/core/gradients/gradient.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "services/common/check.h"
#include "services/common/status_macros.h"
#include "services/protocol/elements.h"
#include "services/protocol/layout.h"
#include "services/worker/core/gradients/gradient_sum.h"

namespace sluice::worker {
namespace {

uint64_t RowBytes(const v1::TensorSpec& tensor) {
  return static_cast<uint64_t>(tensor.shape(1)) * ElementBytes(tensor.dtype());
}

// The gradient's rows at their places within `all`; zeros between them.
absl::Cord Spread(const v1::TensorSpec& tensor, const Gradient& gradient,
                  const std::vector<uint64_t>& all) {
  const uint64_t row_bytes = RowBytes(tensor);
  SLUICE_DCHECK(gradient.values.size() == gradient.rows->size() * row_bytes,
                "a gradient of rows has the values of these rows");

  std::string values(all.size() * row_bytes, '\0');
  auto place = all.begin();
  absl::Cord::CharIterator at = gradient.values.char_begin();
  for (uint64_t row : *gradient.rows) {
    place = std::lower_bound(place, all.end(), row);
    SLUICE_DCHECK(place != all.end() && *place == row, "a sum has the rows of both gradients");
    char* to = values.data() + static_cast<uint64_t>(place - all.begin()) * row_bytes;

    for (uint64_t left = row_bytes; left > 0;) {
      const absl::string_view chunk = absl::Cord::ChunkRemaining(at).substr(0, left);
      to = std::copy(chunk.begin(), chunk.end(), to);
      absl::Cord::Advance(&at, chunk.size());
      left -= chunk.size();
    }
  }
  return absl::Cord(std::move(values));
}

}  // namespace

absl::Status CheckGradient(const v1::TensorSpec& tensor, const Gradient& gradient) {
  const auto fail = [&](const auto&... what) {
    return absl::InvalidArgumentError(
        absl::StrCat("the gradient of '", tensor.name(), "' ", what...));
  };

  uint64_t elements = ElementCount(tensor);
  if (gradient.rows != nullptr) {
    if (tensor.shape_size() != 2) return fail("has rows, but the tensor is not a matrix");
    uint64_t next = 0;
    for (uint64_t row : *gradient.rows) {
      if (row < next) return fail("names row ", row, " after row ", next - 1);
      if (row >= static_cast<uint64_t>(tensor.shape(0))) {
        return fail("names row ", row, ", but the tensor has ", tensor.shape(0), " rows");
      }
      next = row + 1;
    }
    elements = gradient.rows->size() * static_cast<uint64_t>(tensor.shape(1));
  }

  const uint64_t bytes = elements * ElementBytes(tensor.dtype());
  if (gradient.values.size() == bytes) return absl::OkStatus();
  return fail("has ", gradient.values.size(), " bytes, not ", bytes);
}

absl::StatusOr<Gradient> AddGradients(const v1::TensorSpec& tensor, const Gradient& left,
                                      const Gradient& right) {
  Gradient sum;
  if (left.rows == nullptr || right.rows == nullptr) {
    const uint64_t elements = ElementCount(tensor);
    ASSIGN_OR_RETURN(sum.values,
                     AddGradients(tensor.dtype(), DenseElements(tensor, left, 0, elements),
                                  DenseElements(tensor, right, 0, elements)));
    return sum;
  }

  std::vector<uint64_t> rows;
  std::set_union(left.rows->begin(), left.rows->end(), right.rows->begin(), right.rows->end(),
                 std::back_inserter(rows));

  ASSIGN_OR_RETURN(auto added, AddGradients(tensor.dtype(), Spread(tensor, left, rows),
                                            Spread(tensor, right, rows)));
  return Gradient(std::move(rows), std::move(added));
}

absl::Cord DenseElements(const v1::TensorSpec& tensor, const Gradient& gradient, uint64_t offset,
                         uint64_t count) {
  SLUICE_DCHECK(offset + count <= ElementCount(tensor), "a block is a part of its tensor");
  const uint64_t element = ElementBytes(tensor.dtype());
  SLUICE_DCHECK(
      gradient.rows != nullptr || gradient.values.size() == ElementCount(tensor) * element,
      "a gradient that is not by rows is whole");
  if (gradient.rows == nullptr) return gradient.values.Subcord(offset * element, count * element);

  const auto width = static_cast<uint64_t>(tensor.shape(1));
  std::string values(count * element, '\0');

  const std::vector<uint64_t>& rows = *gradient.rows;
  for (auto row = std::lower_bound(rows.begin(), rows.end(), offset / std::max<uint64_t>(1, width));
       row != rows.end() && *row * width < offset + count; ++row) {
    const uint64_t begin = std::max(*row * width, offset);
    const uint64_t end = std::min((*row + 1) * width, offset + count);

    const auto place = static_cast<uint64_t>(row - rows.begin());
    const absl::Cord part = gradient.values.Subcord(
        (place * width + begin - *row * width) * element, (end - begin) * element);

    char* to = values.data() + (begin - offset) * element;
    for (absl::string_view chunk : part.Chunks()) to = std::copy(chunk.begin(), chunk.end(), to);
  }
  return absl::Cord(std::move(values));
}

}  // namespace sluice::worker
