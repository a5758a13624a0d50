// The work of the compute thread: samples in, gradients and metrics out.
#ifndef SLUICE_SERVICES_WORKER_TRAINER_H_
#define SLUICE_SERVICES_WORKER_TRAINER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/control.pb.h"
#include "proto/job.pb.h"
#include "services/common/time/clock.h"
#include "services/protocol/samples/sequence.h"
#include "services/worker/core/worker_core.h"
#include "services/worker/data/dataset.h"
#include "services/worker/data/read_ahead.h"
#include "services/worker/worker_process.h"

namespace sluice::worker {

// A job's open model and data. ComputeEngine's rules say which calls may overlap.
class Trainer {
 public:
  // Reads the data and creates the engine, which takes time. Errors name the file and the place in
  // it, or what is wrong with the model. A job with text keeps its vocabulary next to its
  // checkpoints. `index` is the worker's; it determines the order where each worker walks over all
  // of the data (data.partitioning: PerWorker).
  static absl::StatusOr<std::unique_ptr<Trainer>> Open(const v1::JobSpec& job, uint32_t index,
                                                       int threads,
                                                       const EngineFactory& make_engine);

  ComputeEngine& engine() { return *engine_; }
  uint64_t training_samples() const { return order_.samples(); }
  uint64_t evaluation_samples() const;
  // The worker's report of its model and data. Constant.
  v1::Ready Ready() const;

  // On the compute thread. Gradients go to `sink` while it runs. Errors are in the result.
  ComputeResult ComputeGradients(const Compute& request, GradientSink& sink);
  ComputeResult Evaluate(const EvaluateSamples& request);

  // Tables of which a worker may pull only the rows that its samples name. None if the samples
  // cannot be known ahead, which is so when the worker walks on its own.
  std::vector<uint32_t> RowTensors() const;
  // These rows. On the compute thread: the samples are read, and kept for ComputeGradients.
  absl::StatusOr<RowSelections> FindRows(const std::vector<PositionRange>& positions);

  // Reads samples that the next request for gradients is likely to name. On the compute thread,
  // when it is idle.
  void PrepareNext() { ahead_.Prepare(); }

  // Decodes a received block and copies it into the engine. Any thread, within the engine's rules.
  absl::Status Store(const StoreBlock& block);

 private:
  Trainer(const v1::JobSpec& job, std::unique_ptr<Dataset> training,
          std::unique_ptr<Dataset> evaluation, SampleOrder order,
          std::unique_ptr<ComputeEngine> engine);

  // The samples for a request: those of its positions, or, when this worker walks on its own, as
  // many from its place on.
  PositionRange PositionsOf(const Compute& request);

  const RealClock clock_;
  const Reduction reduction_;
  const std::unique_ptr<Dataset> training_;
  const std::unique_ptr<Dataset> evaluation_;  // null: none
  const SampleOrder order_;
  const bool own_walk_;
  uint64_t walked_ = 0;  // samples passed, when the worker walks on its own
  const std::unique_ptr<ComputeEngine> engine_;
  ReadAhead ahead_;
};

}  // namespace sluice::worker

#endif  // SLUICE_SERVICES_WORKER_TRAINER_H_
