#include "services/worker/data/synthetic_dataset.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "services/common/arithmetic/splitmix64.h"
#include "services/common/status_macros.h"
#include "services/worker/data/normalize.h"

namespace sluice {
namespace {

constexpr uint64_t kMaxSyntheticSamples = uint64_t{1} << 40;
constexpr int64_t kMaxElements = int64_t{1} << 24;  // of a sample
constexpr uint32_t kMaxClasses = 1 << 24;
constexpr uint64_t kMaxCentres = uint64_t{1} << 20;  // numbers of all of them: 8 MiB
constexpr uint64_t kMaxKept = uint64_t{1} << 24;     // numbers of all samples: 64 MiB

// Mean 0, standard deviation 1, in [-3.47, 3.47].
double Normal(uint64_t random) {
  const uint64_t sum =
      (random & 0xFFFF) + (random >> 16 & 0xFFFF) + (random >> 32 & 0xFFFF) + (random >> 48);
  // Four uniform numbers of {0 .. 65535} have mean 2 * 65535 and standard deviation 65536 /
  // sqrt(3).
  return (static_cast<double>(sum) - 2.0 * 65535) * (1.7320508075688772 / 65536);
}

// The features of samples that were generated before: a training job returns to each of them, and
// data that is read from files is in memory, too. Any thread.
class KeptSamples {
 public:
  // Keeps nothing if all samples together are too many.
  KeptSamples(uint64_t samples, uint64_t elements) : elements_(elements) {
    if (elements == 0 || samples > kMaxKept / elements) return;
    states_ = std::vector<std::atomic<State>>(samples);
    // Not initialized: pages that are not touched take no memory.
    features_.reset(new float[samples * elements]);
  }

  // Null: not kept.
  const float* Find(uint64_t index) const {
    if (states_.empty() || states_[index].load(std::memory_order_acquire) != State::kThere) {
      return nullptr;
    }
    return &features_[index * elements_];
  }

  void Keep(uint64_t index, const float* features) {
    State none = State::kNone;
    if (states_.empty() || !states_[index].compare_exchange_strong(none, State::kBeingWritten)) {
      return;
    }
    std::copy_n(features, elements_, &features_[index * elements_]);
    states_[index].store(State::kThere, std::memory_order_release);
  }

 private:
  enum class State : uint8_t { kNone, kBeingWritten, kThere };

  const uint64_t elements_;
  std::vector<std::atomic<State>> states_;
  std::unique_ptr<float[]> features_;
};

class SyntheticDataset final : public Dataset {
 public:
  SyntheticDataset(DatasetInfo info, uint64_t first, uint64_t seed, Normalizer normalizer)
      : info_(std::move(info)),
        first_(first),
        label_seed_(SplitMix64At(seed, 0)),
        centre_seed_(SplitMix64At(seed, 1)),
        noise_seed_(SplitMix64At(seed, 2)),
        weight_seed_(SplitMix64At(seed, 3)),
        normalizer_(std::move(normalizer)) {
    for (int64_t dimension : info_.sample_shape) elements_ *= dimension;
    if (info_.label_kind == LabelKind::kNone) elements_ = 0;
    if (info_.label_kind != LabelKind::kClass || info_.tokens) return;
    kept_ = std::make_unique<KeptSamples>(info_.samples, elements_);
    const auto classes = static_cast<uint64_t>(info_.outputs);
    if (classes > kMaxCentres / elements_) return;
    centres_.reserve(classes * elements_);
    for (uint64_t label = 0; label < classes; ++label) {
      for (uint64_t i = 0; i < elements_; ++i) centres_.push_back(Centre(label, i));
    }
  }

  const DatasetInfo& info() const override { return info_; }

  absl::StatusOr<Batch> Read(absl::Span<const uint64_t> indices) const override {
    Batch batch;
    batch.samples = indices.size();
    batch.shape = info_.sample_shape;
    if (info_.tokens) {
      batch.tokens.reserve(indices.size() * elements_);
      batch.classes.reserve(indices.size() * elements_);
      batch.class_width = static_cast<int64_t>(elements_);
    } else {
      batch.features.reserve(indices.size() * elements_);
    }
    batch.target_width = info_.label_kind == LabelKind::kTargets ? 1 : 0;

    for (uint64_t index : indices) {
      if (index >= info_.samples) {
        return absl::OutOfRangeError(
            absl::StrCat("sample ", index, " of ", info_.samples, " synthetic samples"));
      }

      if (info_.tokens) {
        AppendTokens(first_ + index, batch);
        continue;
      }

      if (info_.label_kind == LabelKind::kClass) AppendClassified(index, batch);
      if (info_.label_kind == LabelKind::kTargets) AppendLinear(first_ + index, batch);
    }
    return batch;
  }

 private:
  void AppendTokens(uint64_t sample, Batch& batch) const {
    const uint64_t tokens = SplitMix64At(noise_seed_, sample);
    const uint64_t labels = SplitMix64At(label_seed_, sample);
    for (uint64_t i = 0; i < elements_; ++i) {
      batch.tokens.push_back(static_cast<int64_t>(SplitMix64At(tokens, i) % info_.outputs));
      batch.classes.push_back(static_cast<int64_t>(SplitMix64At(labels, i) % info_.outputs));
    }
  }

  double Centre(uint64_t label, uint64_t i) const {
    return 0.9 * Normal(SplitMix64At(SplitMix64At(centre_seed_, label), i));
  }

  template <typename Value>
  void AppendFeatures(const Value& value, Batch& batch) const {
    const size_t begin = batch.features.size();
    batch.features.resize(begin + elements_);
    normalizer_.ApplyToSample(value, batch.features.data() + begin);
  }

  void AppendClassified(uint64_t index, Batch& batch) const {
    const uint64_t sample = first_ + index;
    const uint64_t label = SplitMix64At(label_seed_, sample) % info_.outputs;
    batch.classes.push_back(static_cast<int64_t>(label));

    if (const float* kept = kept_->Find(index); kept != nullptr) {
      batch.features.insert(batch.features.end(), kept, kept + elements_);
      return;
    }

    const uint64_t noise = SplitMix64At(noise_seed_, sample);
    const auto noise_at = [noise](uint64_t i) { return 0.3 * Normal(SplitMix64At(noise, i)); };
    if (centres_.empty()) {
      AppendFeatures([&](uint64_t i) { return Centre(label, i) + noise_at(i); }, batch);
    } else {
      const double* centre = &centres_[label * elements_];
      AppendFeatures([&](uint64_t i) { return centre[i] + noise_at(i); }, batch);
    }
    kept_->Keep(index, &batch.features[batch.features.size() - elements_]);
  }

  void AppendLinear(uint64_t sample, Batch& batch) const {
    const uint64_t noise = SplitMix64At(noise_seed_, sample);
    double target = Normal(SplitMix64At(weight_seed_, elements_));
    const double scale = std::sqrt(elements_);
    const auto feature = [&](uint64_t i) {
      const double x = Normal(SplitMix64At(noise, i));
      target += x * Normal(SplitMix64At(weight_seed_, i)) / scale;
      return x;
    };
    AppendFeatures(feature, batch);
    batch.targets.push_back(static_cast<float>(target));
  }

  const DatasetInfo info_;
  const uint64_t first_;  // sample that has index 0
  const uint64_t label_seed_;
  const uint64_t centre_seed_;
  const uint64_t noise_seed_;
  const uint64_t weight_seed_;
  const Normalizer normalizer_;
  uint64_t elements_ = 1;
  std::vector<double> centres_;        // of all classes, unless these are too many
  std::unique_ptr<KeptSamples> kept_;  // of classes' samples
};

absl::Status Check(const v1::DataSpec::Synthetic& synthetic) {
  if (synthetic.samples() == 0 || synthetic.samples() > kMaxSyntheticSamples) {
    return absl::InvalidArgumentError(absl::StrCat("data.synthetic.samples is ",
                                                   synthetic.samples(), ": should be from 1 to ",
                                                   kMaxSyntheticSamples));
  }
  if (synthetic.classes() > kMaxClasses) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data.synthetic.classes is ", synthetic.classes(), ": should be at most ", kMaxClasses));
  }

  if (synthetic.vocabulary() > 0 &&
      (synthetic.vocabulary() > kMaxClasses || synthetic.shape_size() != 1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data.synthetic.vocabulary is ", synthetic.vocabulary(), ": should be at most ",
        kMaxClasses, ", with a shape of one number, the tokens of a sample, e.g. [20]"));
  }

  int64_t elements = 1;
  for (int64_t dimension : synthetic.shape()) {
    if (dimension < 1 || dimension > kMaxElements / elements) {
      return absl::InvalidArgumentError(
          absl::StrCat("data.synthetic.shape holds ", dimension,
                       ": dimensions should be at least 1, and a sample have at most ",
                       kMaxElements, " numbers"));
    }
    elements *= dimension;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> OpenSyntheticDataset(const v1::DataSpec& spec,
                                                              Split split) {
  const v1::DataSpec::Synthetic& synthetic = spec.synthetic();
  RETURN_IF_ERROR(Check(synthetic));
  DatasetInfo info;
  info.sample_shape.assign(synthetic.shape().begin(), synthetic.shape().end());
  if (!info.sample_shape.empty()) {
    info.label_kind = synthetic.classes() > 0 ? LabelKind::kClass : LabelKind::kTargets;
    info.outputs = synthetic.classes() > 0 ? synthetic.classes() : 1;
  }

  if (synthetic.vocabulary() > 0) {
    info.label_kind = LabelKind::kClass;
    info.outputs = synthetic.vocabulary();
    info.tokens = true;
  }

  // Held-out samples are those after the training samples.
  uint64_t first = 0;
  info.samples = synthetic.samples();
  if (split == Split::kTraining) {
    if (spec.max_samples() > 0) info.samples = std::min(info.samples, spec.max_samples());
  } else {
    first = synthetic.samples();
    const uint64_t wanted = spec.evaluation().max_samples();
    info.samples = wanted > 0 ? std::min(wanted, kMaxSyntheticSamples) : (info.samples + 9) / 10;
  }

  const std::vector<int64_t> shape =
      info.sample_shape.empty() ? std::vector<int64_t>{1} : info.sample_shape;
  ASSIGN_OR_RETURN(Normalizer normalizer, Normalizer::Create(spec.normalize(), shape));
  return std::make_unique<SyntheticDataset>(std::move(info), first, synthetic.seed(),
                                            std::move(normalizer));
}

}  // namespace sluice
