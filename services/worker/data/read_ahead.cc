#include "services/worker/data/read_ahead.h"

#include <optional>
#include <utility>

#include "services/common/status_macros.h"

namespace sluice {

absl::StatusOr<Batch> ReadAhead::Read(PositionRange positions) {
  const bool alike = positions.size() == last_.size() && positions.begin > last_.begin;
  const uint64_t stride = alike ? positions.begin - last_.begin : 0;
  steady_ = stride != 0 && stride == stride_;
  stride_ = stride;
  last_ = positions;
  std::optional<Batch> ahead = std::exchange(ahead_, std::nullopt);
  if (ahead.has_value() && ahead_positions_ == positions) return *std::move(ahead);
  return data_->Read(order_->IndicesOf(positions));
}

absl::StatusOr<const Batch*> ReadAhead::Peek(PositionRange positions) {
  if (!ahead_.has_value() || !(ahead_positions_ == positions)) {
    ASSIGN_OR_RETURN(Batch batch, data_->Read(order_->IndicesOf(positions)));
    ahead_positions_ = positions;
    ahead_ = std::move(batch);
  }
  return &*ahead_;
}

void ReadAhead::Prepare() {
  if (!steady_ || ahead_.has_value()) return;
  const PositionRange next = {last_.begin + stride_, last_.end + stride_};
  absl::StatusOr<Batch> batch = data_->Read(order_->IndicesOf(next));
  if (!batch.ok()) return;
  ahead_positions_ = next;
  ahead_ = *std::move(batch);
}

}  // namespace sluice
