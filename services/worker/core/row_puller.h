// Which rows of embedding tables a worker pulls.
//
// Intuition. The samples of a step are known before its parameters are: they are a function of the
// seed. So a worker reads what it will compute next, finds the rows that it names, and pulls those
// alone. Its tables are then right for these samples and for no others: what was pulled for one
// assignment is of no use for another, and evaluation pulls a version whole.
#ifndef SLUICE_SERVICES_WORKER_CORE_ROW_PULLER_H_
#define SLUICE_SERVICES_WORKER_CORE_ROW_PULLER_H_

#include <cstdint>
#include <vector>

#include "absl/strings/cord.h"
#include "services/protocol/row_selection.h"
#include "services/worker/core/worker_context.h"

namespace sluice::worker {

// Ascending, disjoint, none empty.
using Positions = std::vector<PositionRange>;

class RowPuller {
 public:
  explicit RowPuller(WorkerContext* context) : context_(context) {}

  // Whether this job's worker pulls rows at all. Constant once the model is ready.
  bool active() const;

  // Has the rows of these samples found, unless these are the last that were named.
  void Want(Positions positions);
  // Of what was asked for with this id; others are ignored.
  void OnRows(RowsId id, RowSelections rows);

  // Of the samples named last; false before any were.
  bool known() const { return known_; }
  const Positions& positions() const { return positions_; }
  // Only while known().
  const RowSelections& rows() const { return rows_; }

  // Adds the rows to a pull that goes to this shard; its payload. Nothing, if the shard does not
  // take them: then everything comes whole, which holds these rows too.
  absl::Cord AddTo(const ShardLink& link, v1::Pull* pull) const;

 private:
  WorkerContext* const context_;
  Positions positions_;
  bool wanted_ = false;
  RowsId asked_ = 0;
  bool known_ = false;
  RowSelections rows_;
};

// Whether all samples of `part` are among `whole`.
bool Contains(const Positions& whole, const Positions& part);

}  // namespace sluice::worker

#endif  // SLUICE_SERVICES_WORKER_CORE_ROW_PULLER_H_
