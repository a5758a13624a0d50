#include "services/protocol/samples/sequence.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "services/common/arithmetic/splitmix64.h"
#include "services/common/status_macros.h"

namespace sluice {
namespace {

uint64_t DivideRoundingUp(uint64_t a, uint64_t b) { return a / b + (a % b != 0); }

absl::Status CheckRange(const char* what, uint64_t value) {
  if (value >= 1 && value <= kMaxSamples) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " is ", value, ": should be from 1 to ", kMaxSamples));
}

}  // namespace

absl::StatusOr<SampleOrder> SampleOrder::Create(const Options& options) {
  RETURN_IF_ERROR(CheckRange("number of samples", options.samples));
  return SampleOrder(options);
}

SampleOrder::SampleOrder(const Options& options) : options_(options), half_bits_(1) {
  while (uint64_t{1} << (2 * half_bits_) < options.samples) ++half_bits_;
}

SampleOrder::Keys SampleOrder::KeysOf(uint64_t epoch) const {
  const uint64_t seed = SplitMix64At(options_.seed, epoch);
  Keys keys;
  for (int r = 0; r < kRounds; ++r) keys.round[r] = SplitMix64At(seed, r);
  return keys;
}

uint64_t SampleOrder::Permute(const Keys& keys, uint64_t place) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t x = place;
  do {
    uint64_t left = x >> half_bits_;
    uint64_t right = x & mask;
    for (uint64_t key : keys.round) {
      left ^= SplitMix64Mix(right + key) & mask;
      std::swap(left, right);
    }
    x = left << half_bits_ | right;
  } while (x >= options_.samples);
  return x;
}

std::vector<uint64_t> SampleOrder::IndicesOf(PositionRange positions) const {
  std::vector<uint64_t> indices;
  indices.reserve(positions.size());
  for (uint64_t p = positions.begin; p < positions.end;) {
    const uint64_t epoch = EpochOf(p);
    const uint64_t first = epoch * options_.samples;
    const uint64_t end = p + std::min(positions.end - p, options_.samples - (p - first));

    const Keys keys = KeysOf(epoch);
    for (; p < end; ++p) {
      indices.push_back(options_.shuffle ? Permute(keys, p - first) : p - first);
    }
  }
  return indices;
}

absl::StatusOr<StepSchedule> StepSchedule::Create(const Options& options) {
  const std::pair<const char*, uint64_t> fields[] = {{"number of samples", options.samples},
                                                     {"globalBatchSize", options.global_batch_size},
                                                     {"microbatchSize", options.microbatch_size}};
  for (const auto& [name, value] : fields) {
    RETURN_IF_ERROR(CheckRange(name, value));
  }
  if (options.drop_last && options.samples < options.global_batch_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("training.lastBatch is Drop, and the training data have ", options.samples,
                     " samples, fewer than training.globalBatchSize, ", options.global_batch_size,
                     ": no step would remain. Set a smaller globalBatchSize, or lastBatch: Keep"));
  }
  return StepSchedule(options);
}

uint64_t StepSchedule::StepsPerEpoch() const {
  return options_.drop_last ? options_.samples / options_.global_batch_size
                            : DivideRoundingUp(options_.samples, options_.global_batch_size);
}

uint64_t StepSchedule::StepsOfEpochs(uint64_t epochs) const {
  constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
  const uint64_t steps = StepsPerEpoch();
  return epochs > kMax / steps ? kMax : epochs * steps;
}

uint64_t StepSchedule::MicrobatchesPerStep() const {
  return DivideRoundingUp(options_.global_batch_size, options_.microbatch_size);
}

uint64_t StepSchedule::MicrobatchesOfStep(uint64_t step) const {
  return DivideRoundingUp(PositionsOf(step).size(), options_.microbatch_size);
}

PositionRange StepSchedule::PositionsOf(uint64_t step) const {
  const uint64_t steps = StepsPerEpoch();
  const uint64_t epoch_begin = step / steps * options_.samples;
  const uint64_t begin = step % steps * options_.global_batch_size;
  const uint64_t end = std::min(begin + options_.global_batch_size, options_.samples);
  return {epoch_begin + begin, epoch_begin + end};
}

uint64_t StepSchedule::StepFrom(uint64_t position) const {
  const uint64_t steps = StepsPerEpoch();
  return position / options_.samples * steps +
         std::min(steps, DivideRoundingUp(position % options_.samples, options_.global_batch_size));
}

PositionRange StepSchedule::PositionsOf(uint64_t step, PositionRange microbatches) const {
  const PositionRange batch = PositionsOf(step);
  // Borders past the last microbatch are all the same; bounding the number first keeps the product
  // from overflowing.
  const uint64_t count = MicrobatchesOfStep(step);
  const auto border = [&](uint64_t microbatch) {
    const uint64_t bounded = std::min(microbatch, count);
    return batch.begin + std::min(bounded * options_.microbatch_size, batch.size());
  };
  return {border(microbatches.begin), border(microbatches.end)};
}

}  // namespace sluice
