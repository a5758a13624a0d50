// Selects the rows of embedding tables that a worker pulls.
//
// Intuition. The samples of a step are known before its parameters are: they are a function of the
// seed. So a worker reads the samples that it will compute next, finds the rows that they name, and
// pulls only those. Its tables are then right for these samples and for no others: rows pulled for
// one assignment are of no use for another, and evaluation pulls whole versions.
#ifndef SLUICE_SERVICES_WORKER_CORE_ROW_PULLER_H_
#define SLUICE_SERVICES_WORKER_CORE_ROW_PULLER_H_

#include <cstdint>
#include <vector>

#include "absl/strings/cord.h"
#include "services/common/check.h"
#include "services/protocol/row_selection.h"
#include "services/worker/core/worker_context.h"
#include "services/worker/core/worker_output.h"

namespace sluice::worker {

// Ascending, disjoint, none empty.
using Positions = std::vector<PositionRange>;

// One selection at a time: a call of Want with other samples replaces it.
class RowPuller {
 public:
  RowPuller(const WorkerContext* context, WorkerOutput* out) : context_(context), out_(out) {}

  // Whether the workers of this job pull rows at all. Constant once the model is ready.
  bool active() const;

  // Starts to find the rows of these samples, unless they are the samples of the last call.
  void Want(Positions positions);
  // The result for this id; results for other ids are ignored.
  void OnRows(RowsId id, RowSelections rows);

  // Whether the rows of the samples of the last Want are known; false before the first Want.
  bool known() const { return known_; }
  const Positions& positions() const { return positions_; }
  // Only while known().
  const RowSelections& rows() const {
    SLUICE_DCHECK(known_, "rows are read once they are known");
    return rows_;
  }

  // Adds the rows to a pull for this shard; returns its payload. Adds nothing if the shard does not
  // accept rows: then everything arrives whole, which includes these rows.
  absl::Cord AddTo(const ShardLink& link, v1::Pull* pull) const;

 private:
  const WorkerContext* const context_;
  WorkerOutput* const out_;
  Positions positions_;
  bool wanted_ = false;
  RowsId asked_ = 0;
  bool known_ = false;
  RowSelections rows_;
};

// Whether all samples of `part` are also in `whole`.
bool Contains(const Positions& whole, const Positions& part);

}  // namespace sluice::worker

#endif  // SLUICE_SERVICES_WORKER_CORE_ROW_PULLER_H_
