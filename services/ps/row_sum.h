// A sum of gradients that is zero but for some rows of a table: as long as every contribution came
// in CODEC_ROWS, the rows that nobody named are not written out.
#ifndef SLUICE_SERVICES_PS_ROW_SUM_H_
#define SLUICE_SERVICES_PS_ROW_SUM_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/types/span.h"
#include "services/protocol/codec/rows.h"
#include "services/ps/block.h"
#include "services/ps/shard_model.h"

namespace sluice::ps {

// Its values have the bits that the dense sum (zeros, to which contributions are added) has there.
struct RowSum {
  std::vector<RowPart> parts;  // ascending, apart, none empty
  std::vector<char> values;    // of BlockInfo::sum_dtype, part behind part

  // Elements of the block that are in a part.
  uint64_t Count(const BlockInfo& info) const;

  template <typename T>
  absl::Span<const T> As() const {
    return {reinterpret_cast<const T*>(values.data()), values.size() / sizeof(T)};
  }
  template <typename T>
  absl::Span<T> MutableAs() {
    return {reinterpret_cast<T*>(values.data()), values.size() / sizeof(T)};
  }
};

// A payload in CODEC_ROWS as a sum of one. INVALID_ARGUMENT, with nothing changed, if it is none of
// this block.
absl::Status DecodeRows(const BlockInfo& info, const absl::Cord& payload, RowSum* sum);

// to += from. False, with nothing changed, if the two cut the block into rows differently.
bool AddRows(const BlockInfo& info, const RowSum& from, RowSum* to);

// What a worker does with a sum of two (BitExact): rounds it to the tensor's own type.
void RoundRows(const BlockInfo& info, RowSum* sum);

// The whole sum, zeros where there is no part.
void Spread(const BlockInfo& info, const RowSum& sum, Block* block);

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_ROW_SUM_H_
