#include "services/worker/models/architecture.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "services/common/status_macros.h"

namespace sluice {
namespace {

constexpr int64_t kMaxDimension = int64_t{1} << 40;

using Maker = ArchitectureOr (*)(Dimensions&, const DataShape&);

constexpr std::pair<const char*, Maker> kMakers[] = {
    {"additive", MakeAdditive},  {"convnet", MakeConvnet}, {"linear", MakeLinear},
    {"logistic", MakeLogistic},  {"lstm-lm", MakeLstmLm},  {"mlp", MakeMlp},
    {"mnist-net", MakeMnistNet},
};

}  // namespace

absl::StatusOr<int64_t> Dimensions::Take(const std::string& name, int64_t otherwise) {
  known_.push_back(name);
  const auto found = given_.find(name);
  if (found == given_.end()) {
    if (otherwise > 0) return otherwise;
    return absl::InvalidArgumentError(
        absl::StrCat("model.dimensions.", name,
                     " is not set, and cannot be derived from the data for ", model_));
  }

  const int64_t value = found->second;
  if (value < 1 || value > kMaxDimension) {
    return absl::InvalidArgumentError(absl::StrCat("model.dimensions.", name, " is ", value,
                                                   ": should be from 1 to ", kMaxDimension));
  }

  given_.erase(found);
  return value;
}

absl::Status Dimensions::CheckAllTaken() const {
  if (given_.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("model.dimensions.", given_.begin()->first, ": ", model_, " has ",
                   known_.empty() ? "no dimensions to choose" : absl::StrJoin(known_, ", ")));
}

ArchitectureOr MakeArchitecture(const std::string& name,
                                const std::map<std::string, int64_t>& dimensions,
                                const DataShape& data) {
  for (const auto& [known, maker] : kMakers) {
    if (name != known) continue;
    Dimensions given(name, dimensions);
    ArchitectureOr architecture = maker(given, data);
    if (!architecture.ok()) return architecture;
    RETURN_IF_ERROR(given.CheckAllTaken());
    return architecture;
  }

  const auto append_name = [](std::string* out, const auto& maker) { out->append(maker.first); };
  return absl::InvalidArgumentError(absl::StrCat("model.name is '", name, "': should be one of ",
                                                 absl::StrJoin(kMakers, ", ", append_name)));
}

}  // namespace sluice
