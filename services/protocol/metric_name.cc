#include "services/protocol/metric_name.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "services/common/text/utf8.h"
#include "services/protocol/worker_limits.h"

namespace sluice {
namespace {

constexpr std::array<absl::string_view, 3> kBuiltIn = {"loss", "accuracy", "perplexity"};

}  // namespace

bool IsBuiltInMetric(absl::string_view name) {
  return std::find(kBuiltIn.begin(), kBuiltIn.end(), name) != kBuiltIn.end();
}

absl::Status CheckMetricName(absl::string_view name) {
  if (IsBuiltInMetric(name)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the metric '", name, "' has the name of one that evaluations have by themselves (",
        absl::StrJoin(kBuiltIn, ", "), "): give it another name"));
  }

  const bool valid = !name.empty() && name.size() <= kMaxMetricNameBytes &&
                     absl::ascii_isalpha(static_cast<unsigned char>(name[0])) &&
                     std::all_of(name.begin(), name.end(), [](char c) {
                       return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_';
                     });
  if (valid) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the metric's name '", CleanUtf8(std::string(name), 2 * kMaxMetricNameBytes),
      "' must have 1 to ", kMaxMetricNameBytes,
      " letters (a-z, A-Z), digits and underscores, and begin with a letter, such as val_auc"));
}

absl::Status CheckMetricsOfJob(const v1::JobSpec& job, const v1::Ready& ready) {
  const std::pair<const char*, const std::string&> named[] = {
      {"training.target.metric", job.training().target().metric()},
      {"training.stopping.metric", job.training().stopping().metric()},
      {"optimizer.plateau.metric", job.optimizer().plateau().metric()},
      {"checkpoint.keepBest.metric", job.checkpoint().keep_best().metric()},
  };
  for (const auto& [field, metric] : named) {
    if (metric.empty() || IsBuiltInMetric(metric)) continue;
    if (std::find(ready.metrics().begin(), ready.metrics().end(), metric) !=
        ready.metrics().end()) {
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat(
        field, " is ", metric, ", and the program's evaluations have no such metric: they have ",
        absl::StrJoin(kBuiltIn, ", "), ready.metrics().empty() ? "" : ", ",
        absl::StrJoin(ready.metrics(), ", "), ". Name one of these, or give worker.batches(..., ",
        "metrics={\"", metric, "\": ...})"));
  }
  return absl::OkStatus();
}

}  // namespace sluice
