// A model whose training can be predicted exactly.
//
// Intuition. Every sample contributes its own random integer to each tensor, and the optimizer
// adds. So the sum shows how often each sample was applied: a missing or repeated sample changes
// it. A tensor has three elements (float64):
//
//   0  sum   initial value + the integers of all applied samples: known for every version
//   1  tag   every computation contributes a random integer, so two closes of the same step differ:
//            a mixture of two histories shows
//   2  real  numbers whose sum depends on the order of addition: a violation of BitExact shows
//
// With `rows`, every second tensor is a table of one row, which only some samples name.
//
// With `aggregation: Mean`, samples have weights: 0, halves and integers. Synchronous: the first
// element of a version is the weighted mean over the samples of each step, whose weights add up to
// a power of two, so that all quotients are exact, or to 0: then the step changes nothing. An
// asynchronous update has a weight of its own, by which its gradient is multiplied: what is applied
// is that of an update without weights.
//
// If there are more than three tensors, the last one is silent: it never has a gradient and must
// never change.
#ifndef SLUICE_TESTS_SIMULATION_CHECKER_TOY_MODEL_H_
#define SLUICE_TESTS_SIMULATION_CHECKER_TOY_MODEL_H_

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "proto/common.pb.h"
#include "proto/job.pb.h"
#include "proto/model.pb.h"
#include "services/protocol/samples/sequence.h"

namespace sluice::simulation {

using Elements3 = std::array<double, 3>;  // sum, tag, real

absl::Cord ToCord(const Elements3& elements);
Elements3 FromCord(const absl::Cord& cord);
Elements3 FromBytes(const char* bytes);

class ToyModel {
 public:
  // Where evaluations decide, the optimizer is SGD with a learning rate of 1, which subtracts the
  // gradients times the factor that the evaluations have decided.
  ToyModel(uint64_t seed, uint32_t tensors, bool rows, uint64_t samples, v1::JobSpec job);

  const v1::TensorTable& table() const { return table_; }
  const StepSchedule& plan() const { return plan_; }
  uint64_t samples() const { return samples_; }

  Elements3 Initial(uint32_t tensor) const;
  bool IsSilent(uint32_t tensor) const;
  std::vector<uint32_t> RowTensors() const;
  // Whether a computation of these positions reads the tensor.
  bool Names(const PositionRange& positions, uint32_t tensor) const;

  // The integer of a position of the job's sample sequence.
  double Contribution(uint64_t position, uint32_t tensor) const;
  double SumOf(const PositionRange& positions, uint32_t tensor) const;
  // The gradient of one computation, with its tag; with weights, times its weight.
  Elements3 Gradient(uint64_t step, const PositionRange& positions, uint32_t tensor,
                     double tag) const;
  // The weight of these positions of a step; nullopt: the number of samples.
  std::optional<double> WeightOf(uint64_t step, const PositionRange& positions) const;
  // The number by which the sum of a step's gradients is divided; 0: the step changes nothing.
  double DivisorOf(uint64_t step) const;

  // The loss of held-out samples at a version with this first tensor, each the same. Random.
  double LossOf(const Elements3& first_tensor) const;
  // The weight of some held-out samples; nullopt: their number. If it is 0, they have another loss.
  std::optional<double> HeldOutWeightOf(const PositionRange& samples) const;
  // The version with which a synchronous job of so many steps ends, and how often the learning rate
  // was reduced before it.
  uint64_t LastStep(uint64_t total_steps);
  uint64_t ReductionsBefore(uint64_t step);

  // Synchronous: elements 0 and 2 (BitExact) of a version.
  double ExpectedSum(uint64_t version, uint32_t tensor);
  double ExpectedReal(uint64_t version, uint32_t tensor);

 private:
  double Real(uint64_t position, uint32_t tensor) const;
  double SampleWeight(uint64_t step, uint64_t position) const;
  std::optional<double> TreeSum(uint64_t step, uint64_t begin, uint64_t end, uint32_t tensor) const;
  void ExtendTo(uint64_t version, uint32_t tensor);
  // The decisions from this step on.
  const v1::EvaluationDecisions& DecisionsAt(uint64_t step);

  const uint64_t seed_;
  const uint32_t tensors_;
  const uint64_t samples_;
  const bool rows_;
  const bool bit_exact_;
  const bool weighted_;
  const v1::JobSpec job_;
  std::vector<v1::EvaluationDecisions> decisions_;  // by step
  v1::TensorTable table_;
  StepSchedule plan_;
  std::map<uint32_t, std::vector<std::pair<double, double>>> expected_;  // tensor -> by version
};

}  // namespace sluice::simulation

#endif  // SLUICE_TESTS_SIMULATION_CHECKER_TOY_MODEL_H_
