// Compares one job in each training mode: makes the manifests, and evaluates the runs. Pure.
#ifndef SLUICE_CLI_MODE_COMPARISON_H_
#define SLUICE_CLI_MODE_COMPARISON_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice::cli {

// In the order in which they run and are listed.
inline constexpr const char* kModes[] = {"Synchronous", "BoundedStaleness", "Asynchronous"};

// The values of the flags.
struct ModeOptions {
  uint64_t samples = 0;        // to train on in each mode; 0: the manifest's
  uint64_t max_staleness = 4;  // of BoundedStaleness, if the manifest sets none
};

// The manifest `job` (api::ToJson) for one of kModes. All modes train on the same number of
// samples, in batches of the same size per worker: an update of one worker has its share of a
// synchronous step's `globalBatchSize` samples. Evaluation intervals cover the same number of
// samples, too. Fields that only apply to other modes are removed.
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
  std::vector<ModePoint> points;       // evaluations, in order of time
  std::optional<double> last;          // the final value, or the training loss

  double samples_per_second() const {
    return seconds > 0 ? static_cast<double>(samples) / seconds : 0;
  }
};

// Parses the output of `sluice run --output json`. INTERNAL with the reason if the run did not
// succeed.
absl::StatusOr<ModeRun> ParseModeRun(const std::string& mode, absl::string_view lines);

// For accuracies higher is better; for perplexities and losses, lower.
bool IsReached(absl::string_view metric, double value, double target);

// The default target of the time measurement: the worst final value, which every mode reaches.
// nullopt if there are no evaluations.
std::optional<double> CommonTarget(const std::vector<ModeRun>& runs);

// When an evaluation first reached the target. nullopt: never.
std::optional<double> SecondsTo(const ModeRun& run, double target);

std::vector<std::string> ComparisonLines(const std::vector<ModeRun>& runs,
                                         std::optional<double> target);
std::string ComparisonJson(const std::vector<ModeRun>& runs, std::optional<double> target);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_MODE_COMPARISON_H_
