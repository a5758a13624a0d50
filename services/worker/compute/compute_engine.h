// The seam between the worker's protocol and the library that differentiates: the operations of a
// trainer on a model.
//
// Intuition. The engine keeps the model's tensors in up to three buffers of host memory. Training
// reads `kCurrent` while the network fills `kIncoming` with the next version, straight from the
// received slices; adopting it swaps the two. A version that is to be evaluated is in
// `kEvaluation`, so that evaluation and training do not wait for each other's parameters. Gradients
// are passed to a sink while backward still runs, as references to their memory.
//
// Tensors are identified by their index in Describe(), elements by their row-major index; bytes are
// little endian in the tensor's dtype.
//
// Threads: ComputeGradients, Evaluate and Adopt are for one thread at a time (the compute thread).
// Everything else may be called from any thread at any time, with two limits: no thread writes the
// ranges of a buffer that the compute thread reads (kCurrent always; kEvaluation during Evaluate;
// kIncoming during Adopt), and no two threads write one range.
#ifndef SLUICE_SERVICES_WORKER_COMPUTE_COMPUTE_ENGINE_H_
#define SLUICE_SERVICES_WORKER_COMPUTE_COMPUTE_ENGINE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "proto/model.pb.h"
#include "services/checkpoint/state_dict_extras.h"
#include "services/protocol/row_selection.h"
#include "services/worker/data/batch.h"

namespace sluice {

// Receives the results of a step. Called inside ComputeGradients, by one thread at a time: the
// functions should hand over and return. Each tensor of kind PARAMETER is named exactly once, by
// OnGradient, OnRowGradient or OnNoGradient. If ComputeGradients fails, everything received before
// must be dropped.
class GradientSink {
 public:
  virtual ~GradientSink() = default;

  // The weight of these samples in the mean over the whole step, where the mean of the loss is not
  // the mean over samples (class weights, ignored targets): finite, at least 0. The gradients are
  // then of this weight times the mean. At most once, before the first gradient; without it the
  // weight is the number of samples.
  virtual void OnWeight(double weight) = 0;

  // The gradient of a whole tensor, in the tensor's dtype, in the order in which backward finishes
  // them. The memory does not change until the last reference to the cord is gone, on any thread,
  // also after the engine.
  virtual void OnGradient(uint32_t tensor, absl::Cord gradient) = 0;

  // Replaces OnGradient for a matrix: the gradient's rows, ascending and each once; all other rows
  // are zeros. `values` are those rows, row-major, in the tensor's dtype.
  virtual void OnRowGradient(uint32_t tensor, std::vector<uint64_t> rows, absl::Cord values) = 0;

  // The loss does not depend on the parameter, which must not be changed. After the last gradient.
  virtual void OnNoGradient(uint32_t tensor) = 0;

  // The sum over microbatches of the changes to a tensor of kind BUFFER (batch norm's running
  // statistics), at most once for each; a buffer that is not named did not change. Microbatches
  // computed as one batch make one change, which counts for each of them. After the last gradient.
  virtual void OnBufferChange(uint32_t tensor, absl::Cord change) = 0;
};

// A model's requirements, and notes to the user before training starts.
struct ModelTraits {
  // In training, the model cannot compute fewer samples than this at once (batch norm: 2), because
  // of the module of this name.
  uint32_t smallest_batch = 1;
  std::string smallest_batch_module;
  std::vector<std::string> notes;  // one sentence each
  v1::Environment environment;
};

// The loss that is differentiated.
enum class Reduction {
  kSumOfSamples,          // for `aggregation: Mean`: the shards divide by the number of samples
  kSumOfMicrobatchMeans,  // for `aggregation: Sum`
};

struct GradientRequest {
  uint64_t step = 0;
  // Index of the first microbatch within its step. Dropout is seeded by (job seed, step, this
  // index).
  uint64_t first_microbatch = 0;
  // The samples of one or more successive microbatches, computed as one batch: each microbatch has
  // this many samples, the last may have fewer. With BitExact the caller gives one microbatch at a
  // time.
  uint64_t microbatch_size = 0;
  const Batch* batch = nullptr;
  Reduction reduction = Reduction::kSumOfSamples;
};

// Over the samples given, before any update.
struct BatchMetrics {
  double loss_sum = 0;  // the sum of the samples' losses, whatever the reduction
  uint64_t samples = 0;
  bool has_correct = false;  // whether the loss is for classification
  uint64_t correct = 0;      // samples whose class was predicted
};

class ComputeEngine {
 public:
  enum class Buffer { kCurrent, kIncoming, kEvaluation };

  virtual ~ComputeEngine() = default;

  // Parameters, float buffers and integer counters in state_dict order. Constant.
  virtual const v1::TensorTable& Describe() const = 0;

  // The entries of the model's state_dict besides those tensors. Constant.
  virtual StateDictExtras Extras() const { return {}; }

  // Constant.
  virtual ModelTraits Traits() const { return {}; }

  // The value at version 0: a function of (job seed, tensor name), or what the model's file holds.
  // Independent of what was computed or set before. OutOfRange if there is no such tensor.
  virtual absl::StatusOr<absl::Cord> InitialTensor(uint32_t tensor) const = 0;

  // Copies `bytes` into a tensor from element `offset` on. OutOfRange, with nothing written, if
  // there is no such tensor or the bytes do not fit into it; InvalidArgument if they are not whole
  // elements or the buffer is kCurrent (which only Adopt writes). The first write to kEvaluation
  // allocates it.
  virtual absl::Status SetTensorRange(Buffer buffer, uint32_t tensor, uint64_t offset,
                                      const absl::Cord& bytes) = 0;

  // A copy of a whole tensor.
  virtual absl::StatusOr<absl::Cord> GetTensor(Buffer buffer, uint32_t tensor) const = 0;

  // Swaps kCurrent and kIncoming, in microseconds. The incoming buffer then has the old current
  // content, which must be overwritten completely before the next Adopt. Initially both hold zeros.
  virtual absl::Status Adopt() = 0;

  // Matrices of which ComputeGradients reads only the rows that the batch names: embedding tables.
  // Constant.
  virtual std::vector<uint32_t> RowTensors() const { return {}; }

  // Those rows, of each of RowTensors(). InvalidArgument if the batch names a row that does not
  // exist. Any thread.
  virtual absl::StatusOr<RowSelections> RowsOf(const Batch& /*batch*/) const {
    return RowSelections();
  }

  // Forward and backward in training mode over kCurrent, which is unchanged afterwards, buffers and
  // counters included: the same request gives the same result. Where the batch has places, a
  // recurrent model starts each sample with the state in which this engine left the sample before
  // it in its stream (zeros if that was not among the stream's last two); there the result also
  // depends on what was computed before. InvalidArgument if the batch does not fit the model,
  // naming both shapes; FailedPrecondition with the library's message if the model itself fails.
  virtual absl::StatusOr<BatchMetrics> ComputeGradients(const GradientRequest& request,
                                                        GradientSink& sink) = 0;

  // Forward in evaluation mode (no dropout, batch norm by its running statistics, every sample from
  // a state of zeros) over kCurrent or kEvaluation. Errors as above.
  virtual absl::StatusOr<BatchMetrics> Evaluate(Buffer buffer, const Batch& batch) = 0;
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_WORKER_COMPUTE_COMPUTE_ENGINE_H_
