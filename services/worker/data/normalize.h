// (x - mean) / std, as configured by a job's data.normalize.
#ifndef SLUICE_SERVICES_WORKER_DATA_NORMALIZE_H_
#define SLUICE_SERVICES_WORKER_DATA_NORMALIZE_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/job.pb.h"

namespace sluice {

// One affine map per index of a sample's first dimension. A value type.
class Normalizer {
 public:
  // InvalidArgument, naming the field, unless mean and std are empty, have one number, or have as
  // many numbers as the first dimension, and each std is above 0. `shape` is a sample's, of rank 1
  // or more.
  static absl::StatusOr<Normalizer> Create(const v1::DataSpec::Normalize& spec,
                                           absl::Span<const int64_t> shape);

  // The value of the element at row-major index `i` of a sample.
  float Apply(uint64_t i, double x) const {
    const uint64_t c = i / elements_per_channel_;
    return static_cast<float>((x - mean_[c]) / std_[c]);
  }

  // The same for all elements of a sample; value(i) is the element at row-major index `i`.
  template <typename Value>
  void ApplyToSample(const Value& value, float* out) const {
    for (uint64_t c = 0, i = 0; c < channels(); ++c) {
      const double mean = mean_[c];
      const double std = std_[c];
      for (const uint64_t end = i + elements_per_channel_; i < end; ++i) {
        out[i] = static_cast<float>((value(i) - mean) / std);
      }
    }
  }

  uint64_t elements_per_channel() const { return elements_per_channel_; }
  uint64_t channels() const { return mean_.size(); }

 private:
  Normalizer() = default;

  uint64_t elements_per_channel_ = 1;
  std::vector<double> mean_;
  std::vector<double> std_;
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_WORKER_DATA_NORMALIZE_H_
