#ifndef SLUICE_SERVICES_WORKER_DATA_READ_AHEAD_H_
#define SLUICE_SERVICES_WORKER_DATA_READ_AHEAD_H_

#include <optional>

#include "absl/status/statusor.h"
#include "services/protocol/sequence.h"
#include "services/worker/data/batch.h"
#include "services/worker/data/dataset.h"

namespace sluice {

// Reads training samples, while there is nothing else to do the next ones already.
//
// Intuition. A worker walks along the sample sequence by equal strides, one a step, and waits for
// the shards between two of them: then it can read what it will want, were it to go on like this.
// Nothing hangs on the guess: a batch that is not asked for is dropped. It is made only where the
// last two strides were equal.
//
// Threads: one at a time.
class ReadAhead {
 public:
  // Both must outlive this.
  ReadAhead(const Dataset* data, const SampleOrder* order) : data_(data), order_(order) {}

  // The samples at these positions; errors as Dataset::Read.
  absl::StatusOr<Batch> Read(PositionRange positions);

  // The same, to be looked at: a Read of these positions that comes next costs nothing. Valid until
  // the next call.
  absl::StatusOr<const Batch*> Peek(PositionRange positions);

  // Reads what the next Read will ask for, if it is known. Errors are left to that.
  void Prepare();

 private:
  const Dataset* const data_;
  const SampleOrder* const order_;
  PositionRange last_;
  uint64_t stride_ = 0;  // from the Read before the last one to the last; 0: they are not alike
  bool steady_ = false;  // the stride before was the same
  PositionRange ahead_positions_;
  std::optional<Batch> ahead_;
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_WORKER_DATA_READ_AHEAD_H_
