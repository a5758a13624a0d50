// Describes a running job in words. Pure.
#ifndef SLUICE_CLI_COMMON_PROGRESS_TEXT_H_
#define SLUICE_CLI_COMMON_PROGRESS_TEXT_H_

#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cli/common/job_result.h"
#include "operator/policy/policy.h"
#include "proto/jobcontrol.pb.h"

namespace sluice::cli {

// "2h 03m", "1m 37s", "12.3 s".
std::string DurationText(absl::Duration duration);
// "1,876"
std::string CountText(uint64_t count);
// "1 tensor", "1,876 tensors"
std::string CountedText(uint64_t count, absl::string_view noun);
// "step 300 of 1,876"
std::string StepText(const v1::JobProgress& progress);
// "1.2 MiB"
std::string BytesText(uint64_t bytes);
// Three significant digits: "0.0712".
std::string LossText(double loss);
// "97.85 %"
std::string PercentText(double percent);
// "112.45"
std::string PerplexityText(double perplexity);
// A metric of the program's own: "auc 0.9312".
std::string OwnMetricText(const v1::Metric& metric);

// "Step 938 (epoch 1.00): accuracy 97.85 %, loss 0.0712 on 10,000 samples"
std::string EvaluationText(const v1::Evaluation& evaluation);
// "starting", "training", ...
std::string PhaseText(v1::JobProgress::Phase phase);

// The remaining time at the current speed; infinite while the speed is unknown.
absl::Duration TimeLeft(const v1::JobProgress& progress);

// One process in words, on this machine or in a cluster.
struct ProcessState {
  // Chooses the colour.
  enum class Tone { kGood, kWaiting, kBad, kDone };
  std::string text;  // "training, 512 samples/s"
  Tone tone = Tone::kWaiting;
  uint32_t restarts = 0;
};

// A job at one moment, for a status line or the live view.
struct JobSummary {
  std::string name;
  bool has_progress = false;  // whether `progress` is valid
  v1::JobProgress progress;
  // Replaces the phase's word if more is known ("waiting: Unschedulable").
  std::string state;
  std::map<policy::Replica, ProcessState> processes;
  bool stopping = false;
};

// "training: step 300 of 1,876 (16 %), epoch 0.32, loss 0.412, 1,234 samples/s, 1m 37s left"
std::string ProgressLine(const JobSummary& view);

// The lines of the live view, each at most `columns` characters wide (colours not counted).
// `unicode`: whether the bar may use block characters.
std::vector<std::string> LiveLines(const JobSummary& view, int columns, bool color,
                                   bool unicode = true);

// Cuts to `columns` characters (UTF-8 code points; escape sequences do not count).
std::string CutToWidth(absl::string_view text, int columns);
// The number of characters, counted in the same way.
int WidthOf(absl::string_view text);

// Whether the event only repeats why the job failed.
bool IsReasonOfFailure(const v1::Event& event, const v1::JobProgress& progress);

// A sentence on how to fix a common kind of failure; empty if none is known.
std::string RemedyFor(absl::string_view reason);

// Everything that the last lines of a run say.
struct SummaryFacts {
  std::string name;
  JobResult result;
  absl::Duration elapsed;        // from start to end
  absl::Duration training_time;  // the part of it in which
  uint64_t samples = 0;          // this many samples were trained on
  std::string logs;              // their directory, or a command that shows them
  std::string export_command;    // writes the trained model; empty: there is none
};

// "Trained fashion-mnist: accuracy 98.61 % after 1,876 steps (2.00 epochs)" and the lines below it.
std::vector<std::string> SummaryLines(const SummaryFacts& facts);

// "2 % data, 71 % compute, 3 % push, 20 % wait, 4 % pull"; empty if nothing is known.
std::string TimeSplitText(const v1::JobProgress& progress);

// "33.1 KiB of gradients a step, 2.01 % of their size"; empty if nothing was pushed.
std::string PushedText(const v1::JobProgress& progress);
// The same for the parameters that workers pulled; empty if they were pulled without compression.
std::string PulledText(const v1::JobProgress& progress);

// "median 1, 95 % at most 3, largest 7 updates"; empty if nothing is known.
std::string StalenessText(const v1::JobProgress& progress);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_COMMON_PROGRESS_TEXT_H_
