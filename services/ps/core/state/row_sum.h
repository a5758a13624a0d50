// A sum of gradients that is zero except for some rows of a table: as long as every contribution is
// in CODEC_ROWS, rows that no contribution names are not stored.
#ifndef SLUICE_SERVICES_PS_CORE_STATE_ROW_SUM_H_
#define SLUICE_SERVICES_PS_CORE_STATE_ROW_SUM_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/types/span.h"
#include "services/protocol/codec/rows.h"
#include "services/ps/core/base/model.h"
#include "services/ps/core/state/block.h"

namespace sluice::ps {

// Its values have the same bits as the dense sum (zeros plus all contributions) in these rows.
struct RowSum {
  std::vector<RowPart> parts;  // ascending, apart, none empty
  std::vector<char> values;    // of BlockInfo::sum_dtype, part after part

  // Elements of the block that are in a part.
  uint64_t Count(const BlockInfo& info) const;

  // The values as elements of T, which is the type of BlockInfo::sum_dtype.
  template <typename T>
  absl::Span<const T> As() const {
    return {reinterpret_cast<const T*>(values.data()), values.size() / sizeof(T)};
  }
  template <typename T>
  absl::Span<T> MutableAs() {
    return {reinterpret_cast<T*>(values.data()), values.size() / sizeof(T)};
  }
};

// Makes a payload in CODEC_ROWS a sum of one contribution. INVALID_ARGUMENT, with nothing changed,
// if it does not fit this block.
absl::Status DecodeRows(const BlockInfo& info, const absl::Cord& payload, RowSum* sum);

// A sum as a payload in CODEC_ROWS whose elements are of BlockInfo::sum_dtype, and back.
// INVALID_ARGUMENT, with nothing changed, if the payload does not fit this block.
absl::Cord EncodeRowSum(const ShardModel& model, const BlockInfo& info, const RowSum& sum);
absl::Status DecodeRowSum(const BlockInfo& info, const absl::Cord& payload, RowSum* sum);

// to += from. False, with nothing changed, if the two divide the block into rows differently.
bool AddRows(const BlockInfo& info, const RowSum& from, RowSum* to);

// Rounds a sum of two to the tensor's own type, as a worker does (BitExact).
void RoundRows(const BlockInfo& info, RowSum* sum);

// Writes the whole sum to `block`, with zeros outside the parts.
void Spread(const BlockInfo& info, const RowSum& sum, Block* block);

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_CORE_STATE_ROW_SUM_H_
