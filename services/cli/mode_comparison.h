// One job in each training mode: what is run, and what comes of it. Pure.
#ifndef SLUICE_SERVICES_CLI_MODE_COMPARISON_H_
#define SLUICE_SERVICES_CLI_MODE_COMPARISON_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice::cli {

// In the order in which they are run and told.
inline constexpr const char* kModes[] = {"Synchronous", "BoundedStaleness", "Asynchronous"};

// What the flags say.
struct ModeOptions {
  uint64_t samples = 0;        // to train on, in each mode; 0: as the manifest says
  uint64_t max_staleness = 4;  // of BoundedStaleness, where the manifest has no bound
};

// The manifest `job` (api::ToJson) for one of kModes. Each mode trains on as many samples, in
// batches of the same size per worker: where a synchronous step has `globalBatchSize` samples, an
// update of one worker has its share of them. Intervals of evaluation are of as many samples, too.
// What only other modes have is left out.
nlohmann::json ManifestForMode(const nlohmann::json& job, const std::string& mode,
                               const ModeOptions& options);

struct ModePoint {
  double seconds = 0;  // since training began
  uint64_t step = 0;
  double samples = 0;  // trained on
  double value = 0;    // of the metric
};

struct ModeRun {
  std::string mode;
  uint64_t steps = 0;
  uint64_t samples = 0;
  double seconds = 0;  // of training
  struct Staleness {
    double mean = 0;
    uint64_t median = 0;
    uint64_t percentile95 = 0;
    uint64_t largest = 0;
  };
  std::optional<Staleness> staleness;  // a synchronous step has none
  std::string metric;                  // "accuracy", "perplexity", "loss"; empty: none is known
  std::vector<ModePoint> points;       // evaluations, in time
  std::optional<double> last;          // the final one, or the loss of training

  double samples_per_second() const {
    return seconds > 0 ? static_cast<double>(samples) / seconds : 0;
  }
};

// What `sluice run --output json` printed. INTERNAL with the reason if the run did not succeed.
absl::StatusOr<ModeRun> ParseModeRun(const std::string& mode, absl::string_view lines);

// More is better for accuracies, less for losses.
bool IsReached(absl::string_view metric, double value, double target);

// What the time is measured to, unless a flag says it: the worst of the final values, which every
// mode reaches. Nothing where there are no evaluations.
std::optional<double> CommonTarget(const std::vector<ModeRun>& runs);

// When the target was first seen to be reached. Nothing: never.
std::optional<double> SecondsTo(const ModeRun& run, double target);

std::vector<std::string> ComparisonLines(const std::vector<ModeRun>& runs,
                                         std::optional<double> target);
std::string ComparisonJson(const std::vector<ModeRun>& runs, std::optional<double> target);

}  // namespace sluice::cli

#endif  // SLUICE_SERVICES_CLI_MODE_COMPARISON_H_
