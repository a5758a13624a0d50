#ifndef SLUICE_SERVICES_WORKER_DATA_READ_AHEAD_H_
#define SLUICE_SERVICES_WORKER_DATA_READ_AHEAD_H_

#include <optional>

#include "absl/status/statusor.h"
#include "services/protocol/samples/sequence.h"
#include "services/worker/data/batch.h"
#include "services/worker/data/dataset.h"

namespace sluice {

// Reads training samples, and when idle already the next ones.
//
// Intuition. A worker moves along the sample sequence by equal strides, one each step, and waits
// for the shards between two strides: in that time it can read the samples that it will need if it
// continues in the same way. A wrong guess does no harm: a batch that is not requested is dropped.
// ReadAhead guesses only if the last two strides were equal.
//
// Threads: one at a time.
class ReadAhead {
 public:
  // Both must outlive this.
  ReadAhead(const Dataset* data, const SampleOrder* order) : data_(data), order_(order) {}

  // The samples at these positions; errors as Dataset::Read.
  absl::StatusOr<Batch> Read(PositionRange positions);

  // The same without consuming the batch: a following Read of these positions costs nothing. Valid
  // until the next call.
  absl::StatusOr<const Batch*> Peek(PositionRange positions);

  // Reads what the next Read will request, if it can be predicted. Errors are left to that Read.
  void Prepare();

 private:
  const Dataset* const data_;
  const SampleOrder* const order_;
  PositionRange last_;
  uint64_t stride_ = 0;  // from the Read before the last to the last; 0: they differ
  bool steady_ = false;  // whether the stride before was equal
  PositionRange ahead_positions_;
  std::optional<Batch> ahead_;
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_WORKER_DATA_READ_AHEAD_H_
