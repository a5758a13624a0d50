#include "tests/simulation/checker/toy_model.h"

#include <cstring>
#include <iterator>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/jobcontrol.pb.h"
#include "services/common/arithmetic/splitmix64.h"
#include "services/coordinator/core/evaluation/decisions.h"

namespace sluice::simulation {

absl::Cord ToCord(const Elements3& elements) {
  return absl::Cord(std::string(reinterpret_cast<const char*>(elements.data()), sizeof(elements)));
}

Elements3 FromCord(const absl::Cord& cord) {
  const std::string bytes(cord);
  return bytes.size() == sizeof(Elements3) ? FromBytes(bytes.data()) : Elements3{};
}

Elements3 FromBytes(const char* bytes) {
  Elements3 elements;
  std::memcpy(elements.data(), bytes, sizeof(elements));
  return elements;
}

ToyModel::ToyModel(uint64_t seed, uint32_t tensors, bool rows, uint64_t samples, v1::JobSpec job)
    : seed_(seed),
      tensors_(tensors),
      samples_(samples),
      rows_(rows),
      bit_exact_(job.training().bit_exact()),
      weighted_(job.training().aggregation() == v1::TrainingSpec::MEAN),
      job_(std::move(job)),
      plan_(*StepSchedule::Create({samples, job_.training().global_batch_size(),
                                   job_.training().microbatch_size(),
                                   job_.training().last_batch() == v1::TrainingSpec::DROP})) {
  for (uint32_t tensor = 0; tensor < tensors; ++tensor) {
    v1::TensorSpec& spec = *table_.add_tensors();
    spec.set_name(absl::StrCat("t", tensor));
    if (rows && tensor % 2 == 0) spec.add_shape(1);
    spec.add_shape(3);
    spec.set_dtype(v1::FLOAT64);
  }
}

bool ToyModel::IsSilent(uint32_t tensor) const { return tensors_ > 3 && tensor + 1 == tensors_; }

std::vector<uint32_t> ToyModel::RowTensors() const {
  std::vector<uint32_t> tensors;
  for (uint32_t tensor = 0; rows_ && tensor < tensors_; tensor += 2) tensors.push_back(tensor);
  return tensors;
}

bool ToyModel::Names(const PositionRange& positions, uint32_t tensor) const {
  if (!rows_ || tensor % 2 != 0) return true;
  for (uint64_t p = positions.begin; p < positions.end; ++p) {
    if (SplitMix64At(SplitMix64At(seed_ + 3, p), tensor) % 3 == 0) return true;
  }
  return false;
}

Elements3 ToyModel::Initial(uint32_t tensor) const {
  const double value = static_cast<double>(SplitMix64At(seed_ + 1, tensor) >> 40);
  return {value, 0, value / 7};
}

double ToyModel::Contribution(uint64_t position, uint32_t tensor) const {
  return static_cast<double>(SplitMix64At(SplitMix64At(seed_, position), tensor) >> 32);
}

double ToyModel::Real(uint64_t position, uint32_t tensor) const {
  // Numbers of very different magnitudes.
  const uint64_t bits = SplitMix64At(SplitMix64At(seed_ + 2, position), tensor);
  return static_cast<double>(bits >> 12) / static_cast<double>(uint64_t{1} << (bits % 40)) / 3;
}

double ToyModel::SumOf(const PositionRange& positions, uint32_t tensor) const {
  double sum = 0;
  for (uint64_t p = positions.begin; p < positions.end; ++p) sum += Contribution(p, tensor);
  return sum;
}

Elements3 ToyModel::Gradient(uint64_t step, const PositionRange& positions, uint32_t tensor,
                             double tag) const {
  Elements3 gradient = {0, tag, 0};
  for (uint64_t p = positions.begin; p < positions.end; ++p) {
    const double weight = SampleWeight(step, p);
    gradient[0] += weight * Contribution(p, tensor);
    if (bit_exact_) gradient[2] += weight * Real(p, tensor);
  }
  if (weighted_ && job_.training().mode() != v1::SYNCHRONOUS) {
    const double weight = WeightOf(step, positions).value_or(static_cast<double>(positions.size()));
    for (double& element : gradient) element *= weight;
  }
  return gradient;
}

double ToyModel::SampleWeight(uint64_t step, uint64_t position) const {
  if (!weighted_ || job_.training().mode() != v1::SYNCHRONOUS) return 1;
  if (SplitMix64At(seed_ + 5, step) % 8 == 0) return 0;
  const auto weight = [this](uint64_t p) {
    constexpr double kWeights[] = {0, 0, 0.5, 1, 1.5, 2, 3, 4};
    return kWeights[SplitMix64At(seed_ + 6, p) % std::size(kWeights)];
  };
  const PositionRange all = plan_.PositionsOf(step);
  if (position + 1 < all.end) return weight(position);
  double others = 0;
  for (uint64_t p = all.begin; p < position; ++p) others += weight(p);
  double power = 0.5;
  while (power < others) power *= 2;
  return power - others;
}

double ToyModel::DivisorOf(uint64_t step) const {
  if (!weighted_) return 1;
  const PositionRange all = plan_.PositionsOf(step);
  return WeightOf(step, all).value_or(static_cast<double>(all.size()));
}

std::optional<double> ToyModel::WeightOf(uint64_t step, const PositionRange& positions) const {
  if (!weighted_) return std::nullopt;
  double weight = 0;
  if (job_.training().mode() == v1::SYNCHRONOUS) {
    for (uint64_t p = positions.begin; p < positions.end; ++p) weight += SampleWeight(step, p);
  } else {
    constexpr double kWeights[] = {0.25, 0.5, 2, 64};
    weight = kWeights[SplitMix64At(seed_ + 6, positions.begin) % std::size(kWeights)];
  }
  if (weight == static_cast<double>(positions.size())) return std::nullopt;
  return weight;
}

std::optional<double> ToyModel::HeldOutWeightOf(const PositionRange& samples) const {
  constexpr uint64_t kBlock = 8;  // only one in three blocks counts
  if (!weighted_) return std::nullopt;
  double weight = 0;
  for (uint64_t sample = samples.begin; sample < samples.end; ++sample) {
    if ((sample / kBlock + seed_) % 3 != 0) continue;
    weight += static_cast<double>(1 + SplitMix64At(seed_ + 7, sample) % 4) / 2;
  }
  return weight;
}

std::optional<double> ToyModel::TreeSum(uint64_t step, uint64_t begin, uint64_t end,
                                        uint32_t tensor) const {
  if (end - begin == 1) {
    const PositionRange positions = plan_.PositionsOf(step, {begin, end});
    if (positions.empty()) return std::nullopt;
    return Gradient(step, positions, tensor, 0)[2];
  }
  const uint64_t middle = begin + (end - begin) / 2;
  const std::optional<double> left = TreeSum(step, begin, middle, tensor);
  const std::optional<double> right = TreeSum(step, middle, end, tensor);
  if (left && right) return *left + *right;
  return left ? left : right;
}

void ToyModel::ExtendTo(uint64_t version, uint32_t tensor) {
  auto& values = expected_[tensor];
  if (values.empty()) {
    const Elements3 initial = Initial(tensor);
    values.emplace_back(initial[0], initial[2]);
  }
  while (values.size() <= version) {
    const uint64_t step = values.size() - 1;
    auto [sum, real] = values.back();
    const double weight = DivisorOf(step);
    if (!IsSilent(tensor) && weight > 0) {
      // The optimizer Add, or SGD.
      const double factor = (coordinator::EvaluationsDecide(job_)
                                 ? -coordinator::LearningRateFactor(DecisionsAt(step))
                                 : 1) /
                            weight;
      sum += factor * Gradient(step, plan_.PositionsOf(step), tensor, 0)[0];
      if (bit_exact_) {
        real += factor * TreeSum(step, 0, plan_.MicrobatchesPerStep(), tensor).value_or(0);
      }
    }
    values.emplace_back(sum, real);
  }
}

double ToyModel::LossOf(const Elements3& first_tensor) const {
  uint64_t bits = 0;
  std::memcpy(&bits, first_tensor.data(), sizeof(bits));
  return static_cast<double>(SplitMix64At(seed_ + 4, bits) >> 54) / 1024 - 0.5;
}

const v1::EvaluationDecisions& ToyModel::DecisionsAt(uint64_t step) {
  if (decisions_.empty()) decisions_.emplace_back();
  const uint64_t interval = job_.data().evaluation().interval_steps();
  while (decisions_.size() <= step) {
    const uint64_t version = decisions_.size();
    v1::EvaluationDecisions decisions = decisions_.back();
    if (version % interval == 0) {
      v1::Evaluation evaluation;
      evaluation.set_step(version);
      evaluation.set_loss(LossOf({ExpectedSum(version, 0), 0, 0}));
      decisions = coordinator::DecideAfter(job_, decisions, evaluation);
    }
    decisions_.push_back(std::move(decisions));
  }
  return decisions_[step];
}

uint64_t ToyModel::LastStep(uint64_t total_steps) {
  if (!job_.training().has_stopping()) return total_steps;
  for (uint64_t step = 1; step < total_steps; ++step) {
    if (!DecisionsAt(step).stop_reason().empty()) return step;
  }
  return total_steps;
}

uint64_t ToyModel::ReductionsBefore(uint64_t last) {
  uint64_t reductions = 0;
  if (!job_.optimizer().has_plateau()) return reductions;
  for (uint64_t step = 1; step < last; ++step) {
    const double before = coordinator::LearningRateFactor(DecisionsAt(step - 1));
    if (coordinator::LearningRateFactor(DecisionsAt(step)) < before) ++reductions;
  }
  return reductions;
}

double ToyModel::ExpectedSum(uint64_t version, uint32_t tensor) {
  ExtendTo(version, tensor);
  return expected_[tensor][version].first;
}

double ToyModel::ExpectedReal(uint64_t version, uint32_t tensor) {
  ExtendTo(version, tensor);
  return expected_[tensor][version].second;
}

}  // namespace sluice::simulation
