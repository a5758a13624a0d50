// What the compute thread does: samples in, gradients and metrics out.
#ifndef SLUICE_SERVICES_WORKER_TRAINER_H_
#define SLUICE_SERVICES_WORKER_TRAINER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/job.pb.h"
#include "services/protocol/sequence.h"
#include "services/worker/core/worker_core.h"
#include "services/worker/data/dataset.h"
#include "services/worker/data/read_ahead.h"
#include "services/worker/worker_process.h"

namespace sluice::worker {

// A job's model and data, open. ComputeEngine's rules say which calls may overlap.
class Trainer {
 public:
  // Reads the data and makes the engine: takes its time. Errors name the file and place, or what is
  // wrong with the model. A job with text keeps its vocabulary beside its checkpoints.
  // `index` is the worker's: where each walks over all of the data (data.partitioning: PerWorker)
  // it gives the order.
  static absl::StatusOr<std::unique_ptr<Trainer>> Open(const v1::JobSpec& job, uint32_t index,
                                                       int threads,
                                                       const EngineFactory& make_engine);

  ComputeEngine& engine() { return *engine_; }
  uint64_t training_samples() const { return order_.samples(); }
  uint64_t evaluation_samples() const;

  // On the compute thread. Gradients go to `sink` while it runs.
  ComputeResult ComputeGradients(const Compute& request, GradientSink& sink);
  ComputeResult Evaluate(const EvaluateSamples& request);

  // Tables of which a worker may pull the rows that its samples name alone. None where it cannot be
  // said ahead which samples come: on a walk of the worker's own.
  std::vector<uint32_t> RowTensors() const;
  // Those rows. On the compute thread: the samples are read, and kept for ComputeGradients.
  absl::StatusOr<RowSelections> FindRows(const std::vector<PositionRange>& positions);

  // On the compute thread, when it has nothing else to do: reads samples that the next request for
  // gradients is likely to name.
  void PrepareNext() { ahead_.Prepare(); }

  // Decodes a received block and copies it into the engine. Any thread, within the engine's rules.
  absl::Status Store(const StoreBlock& block);

 private:
  Trainer(const v1::JobSpec& job, std::unique_ptr<Dataset> training,
          std::unique_ptr<Dataset> evaluation, SampleOrder order,
          std::unique_ptr<ComputeEngine> engine);

  // Whose samples a request is given: those of its positions, or, on a walk of this worker's own,
  // of as many on from where it is.
  PositionRange PositionsOf(const Compute& request);

  absl::Status StoreRows(const StoreBlock& block);

  const Reduction reduction_;
  const std::unique_ptr<Dataset> training_;
  const std::unique_ptr<Dataset> evaluation_;  // null: none
  const SampleOrder order_;
  const bool own_walk_;
  uint64_t walked_ = 0;  // on a walk of its own
  const std::unique_ptr<ComputeEngine> engine_;
  ReadAhead ahead_;
};

}  // namespace sluice::worker

#endif  // SLUICE_SERVICES_WORKER_TRAINER_H_
