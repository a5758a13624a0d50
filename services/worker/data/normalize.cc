#include "services/worker/data/normalize.h"

#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/repeated_field.h"
#include "services/common/status_macros.h"

namespace sluice {
namespace {

absl::StatusOr<std::vector<double>> Expand(const char* field,
                                           const google::protobuf::RepeatedField<double>& values,
                                           uint64_t channels, double otherwise) {
  if (values.empty()) return std::vector<double>(channels, otherwise);

  for (double value : values) {
    if (!std::isfinite(value)) {
      return absl::InvalidArgumentError(
          absl::StrCat("data.normalize.", field, " holds ", value, ": should be finite"));
    }
  }

  if (values.size() == 1) return std::vector<double>(channels, values[0]);
  if (static_cast<uint64_t>(values.size()) == channels) {
    return std::vector<double>(values.begin(), values.end());
  }
  return absl::InvalidArgumentError(absl::StrCat("data.normalize.", field, " has ", values.size(),
                                                 " numbers: should have 1, or ", channels,
                                                 " as the first dimension of a sample"));
}

}  // namespace

absl::StatusOr<Normalizer> Normalizer::Create(const v1::DataSpec::Normalize& spec,
                                              absl::Span<const int64_t> shape) {
  Normalizer normalizer;
  for (int64_t dimension : shape.subspan(1)) normalizer.elements_per_channel_ *= dimension;

  ASSIGN_OR_RETURN(std::vector<double> mean, Expand("mean", spec.mean(), shape[0], 0));
  ASSIGN_OR_RETURN(std::vector<double> std, Expand("std", spec.std(), shape[0], 1));

  for (double value : std) {
    if (value <= 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("data.normalize.std holds ", value, ": should be above 0"));
    }
  }

  normalizer.mean_ = std::move(mean);
  normalizer.std_ = std::move(std);
  return normalizer;
}

}  // namespace sluice
