#include "services/worker/core/row_puller.h"

#include <algorithm>
#include <utility>

#include "services/common/check.h"
#include "services/protocol/interval_set.h"

namespace sluice::worker {

bool RowPuller::active() const { return !context_->row_tensors.empty() && context_->RowsTravel(); }

void RowPuller::Want(Positions positions) {
  if (wanted_ && positions == positions_) return;
  SLUICE_DCHECK(active(), "rows are looked for where workers pull rows");

  wanted_ = true;
  positions_ = std::move(positions);
  rows_.clear();
  for (uint32_t tensor : context_->row_tensors) rows_[tensor] = {};

  known_ = positions_.empty();
  if (known_) return;

  asked_ = out_->NewRows();
  out_->Add(FindRows{asked_, positions_});
}

void RowPuller::OnRows(RowsId id, RowSelections rows) {
  if (known_ || id != asked_) return;
  SLUICE_DCHECK(rows_.size() == context_->row_tensors.size(), "each table has a list of rows");
  known_ = true;

  for (auto& [tensor, selected] : rows_) {
    if (const auto found = rows.find(tensor); found != rows.end()) {
      selected = std::move(found->second);
    }
  }
}

absl::Cord RowPuller::AddTo(const ShardLink& link, v1::Pull* pull) const {
  SLUICE_DCHECK(known_, "rows are pulled once they are known");
  if (!link.takes_rows()) return absl::Cord();
  return AppendSelections(rows_, pull);
}

bool Contains(const Positions& whole, const Positions& part) {
  IntervalSet set;
  for (const PositionRange& range : whole) set.Add(Interval{range.begin, range.end});
  return std::all_of(part.begin(), part.end(), [&](const PositionRange& range) {
    return set.ContainsAll(Interval{range.begin, range.end});
  });
}

}  // namespace sluice::worker
