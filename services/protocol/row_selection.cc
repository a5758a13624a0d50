#include "services/protocol/row_selection.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/common/status_macros.h"

namespace sluice {
namespace {

constexpr size_t kRowBytes = sizeof(uint64_t);

absl::StatusOr<std::vector<uint64_t>> ReadRows(const v1::TensorSpec& tensor,
                                               const absl::Cord& numbers) {
  const std::string bytes(numbers);
  std::vector<uint64_t> rows(bytes.size() / kRowBytes);
  if (!rows.empty()) std::memcpy(rows.data(), bytes.data(), rows.size() * kRowBytes);
  uint64_t next = 0;
  for (uint64_t row : rows) {
    if (row >= static_cast<uint64_t>(tensor.shape(0))) {
      return absl::InvalidArgumentError(absl::StrCat("row ", row, " of '", tensor.name(),
                                                     "' is requested, but the tensor has ",
                                                     tensor.shape(0), " rows"));
    }
    if (row < next) {
      return absl::InvalidArgumentError(
          absl::StrCat("row ", row, " of '", tensor.name(), "' is requested after row ", next - 1));
    }
    next = row + 1;
  }
  return rows;
}

}  // namespace

void SortRows(std::vector<uint64_t>* rows) {
  std::sort(rows->begin(), rows->end());
  rows->erase(std::unique(rows->begin(), rows->end()), rows->end());
}

absl::Cord AppendSelections(const RowSelections& selections, v1::Pull* pull) {
  std::string payload;
  for (const auto& [tensor, rows] : selections) {
    v1::RowSelection& selection = *pull->add_rows();
    selection.set_tensor(tensor);
    selection.set_count(rows.size());
    payload.append(reinterpret_cast<const char*>(rows.data()), rows.size() * kRowBytes);
  }
  return absl::Cord(std::move(payload));
}

absl::StatusOr<RowSelections> ReadSelections(const v1::Pull& pull, const absl::Cord& payload,
                                             const v1::TensorTable& table) {
  RowSelections selections;
  size_t at = 0;
  for (const v1::RowSelection& selection : pull.rows()) {
    if (selection.tensor() >= static_cast<uint32_t>(table.tensors_size())) {
      return absl::InvalidArgumentError(
          absl::StrCat("rows of tensor ", selection.tensor(), " of ", table.tensors_size()));
    }

    const v1::TensorSpec& tensor = table.tensors(static_cast<int>(selection.tensor()));
    if (tensor.kind() != v1::PARAMETER || tensor.shape_size() != 2 || tensor.shape(1) == 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "rows of '", tensor.name(), "' are requested, but the tensor is not a matrix"));
    }

    if (selection.count() > (payload.size() - at) / kRowBytes) {
      return absl::InvalidArgumentError(absl::StrCat(selection.count(), " rows of '", tensor.name(),
                                                     "' are requested, but the payload ends after ",
                                                     payload.size(), " bytes"));
    }

    ASSIGN_OR_RETURN(std::vector<uint64_t> rows,
                     ReadRows(tensor, payload.Subcord(at, selection.count() * kRowBytes)));
    at += selection.count() * kRowBytes;
    if (!selections.emplace(selection.tensor(), std::move(rows)).second) {
      return absl::InvalidArgumentError(absl::StrCat("rows of '", tensor.name(), "' twice"));
    }
  }

  if (at != payload.size()) {
    return absl::InvalidArgumentError(absl::StrCat("a pull has a payload of ", payload.size(),
                                                   " bytes, of which its rows take ", at));
  }
  return selections;
}

}  // namespace sluice
