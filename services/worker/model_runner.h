// The part of a worker's shell that has the model and the data.
#ifndef SLUICE_SERVICES_WORKER_MODEL_RUNNER_H_
#define SLUICE_SERVICES_WORKER_MODEL_RUNNER_H_

#include <cstdint>

#include "absl/status/status.h"
#include "services/worker/core/base/actions.h"

namespace sluice::worker {

// Performs the core's actions for model and data; the results are events of the shell. Gradients
// are passed to the core while backward still runs. All calls but Stop come on the shell's
// executor, and none of them waits for a computation.
class ModelRunner {
 public:
  virtual ~ModelRunner() = default;

  // In the core's order. OpenModel is the first and comes once; it is answered by OnModelReady,
  // OnModelFailed or OnAskedToStop. ReadInitialTensor is answered by OnInitialTensor, Compute by
  // OnComputed after its gradients, FindRows by OnRows, EvaluateSamples by OnEvaluated,
  // ComputeMetrics by OnMetricValues. After a CancelCompute, OnComputed may come without gradients.
  // GiveSum has no answer.
  virtual void Perform(OpenModel& open) = 0;
  virtual void Perform(ReadInitialTensor& read) = 0;
  virtual void Perform(Compute& compute) = 0;
  virtual void Perform(FindRows& find) = 0;
  virtual void Perform(CancelCompute& cancel) = 0;
  virtual void Perform(EvaluateSamples& evaluate) = 0;
  virtual void Perform(ComputeMetrics& compute) = 0;
  virtual void Perform(GiveSum& give) = 0;

  // At once, on the calling thread. After OnModelReady. Errors of Store: as of StoreInto.
  virtual absl::Status Store(const StoreBlock& block) = 0;
  // The incoming version becomes `version`, the current one.
  virtual absl::Status Adopt(uint64_t version) = 0;

  // Whether the worker leaves because data or model are missing or may not be read.
  virtual bool data_missing() const { return false; }

  // Abandons the work: no event of the shell is given after it. Not on the executor.
  virtual void Stop() = 0;
};

}  // namespace sluice::worker

#endif  // SLUICE_SERVICES_WORKER_MODEL_RUNNER_H_
