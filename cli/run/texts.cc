#include "cli/run/texts.h"

#include <unistd.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/common/exit_codes.h"
#include "cli/common/progress_text.h"
#include "cli/common/run_display.h"
#include "services/checkpoint/local_storage.h"
#include "services/checkpoint/storage.h"
#include "services/common/io/file_util.h"
#include "services/manifest/codec.h"

namespace sluice::cli {
namespace {

// Prints one sentence and, with JSON, also the summary that readers expect last.
int ReportNothingRuns(const Environment& environment, const RunFlags& flags,
                      const std::string& text, const SummaryFacts& facts) {
  if (flags.output == "plain") {
    *environment.out << text << "\n";
    return kExitOk;
  }

  DisplayOptions options;
  options.job = facts.name;
  const std::unique_ptr<RunDisplay> display = MakeDisplay(environment, flags.output, options);
  display->Note(text);
  if (flags.output == "json") display->Finish(facts, kExitOk, {});
  return kExitOk;
}

}  // namespace

void PrintNotes(const Environment& environment, const api::TrainingJob& job,
                const std::vector<std::string>& found) {
  std::vector<std::string> fields = api::ClusterFields(job);
  // Processes of one machine communicate without TLS anyway.
  if (job.cluster.is_object() && job.cluster.value("tls", "") == "Disabled") {
    fields.erase(std::remove(fields.begin(), fields.end(), "spec.tls"), fields.end());
  }
  if (!fields.empty()) {
    *environment.err << "Note: ignoring cluster-only fields: " << absl::StrJoin(fields, ", ")
                     << "\n";
  }
  for (const std::string& sentence : found) *environment.err << "Note: " << sentence << "\n";
}

bool ConfirmFresh(const Environment& environment, const RunFlags& flags,
                  const local::JobDirectory& directory) {
  // For a running job nothing is removed: the run is refused.
  if (!directory.ReadJob().ok() || directory.LockedBy().has_value()) return true;
  *environment.err << "--fresh deletes the existing checkpoints in " << directory.path() << "\n";
  if (flags.yes || !environment.in_is_terminal) return true;
  *environment.err << "Delete them? [y/N] " << std::flush;
  std::string answer;
  std::getline(*environment.in, answer);
  answer = absl::AsciiStrToLower(absl::StripAsciiWhitespace(answer));
  return answer == "y" || answer == "yes";
}

int ReportSuspended(const Environment& environment, const RunFlags& flags,
                    const std::string& name) {
  SummaryFacts facts;
  facts.name = name;
  facts.result.outcome.kind = policy::OutcomeKind::kSuspended;
  return ReportNothingRuns(environment, flags,
                           absl::StrCat("Job ", name, " is suspended (spec.suspend): nothing runs"),
                           facts);
}

int ReportFinished(const Environment& environment, const RunFlags& flags,
                   const api::TrainingJob& job, const local::JobDirectory& directory,
                   JobResult result) {
  v1::JobProgress& progress = result.progress;
  std::string text = absl::StrCat("Job ", job.spec.name(), " has already finished, after ",
                                  CountText(progress.step()), " steps");
  const v1::Evaluation& evaluation = progress.last_evaluation();
  if (evaluation.has_accuracy()) {
    absl::StrAppend(&text, " with an accuracy of ", PercentText(evaluation.accuracy()));
  }
  if (evaluation.has_perplexity()) {
    absl::StrAppend(&text, " with a perplexity of ", PerplexityText(evaluation.perplexity()));
  }
  absl::StrAppend(&text, "; there is nothing to do. --fresh starts over.");

  progress.set_phase(v1::JobProgress::SUCCEEDED);
  const std::string checkpoints = directory.CheckpointsOf(job.spec);
  const auto storage =
      MakeLocalStorage(environment.files, checkpoints, absl::StrCat("cli-", getpid()));
  if (const auto point = FindRestorePoint(*storage, FileCheck::kSizes);
      point.ok() && point->found) {
    *progress.mutable_checkpoint()->mutable_last() = point->checkpoint_index.checkpoint();
    progress.mutable_checkpoint()->set_directory(
        JoinPath(checkpoints, CheckpointDirectory(point->checkpoint_index.checkpoint())));
  }

  SummaryFacts facts;
  facts.name = job.spec.name();
  facts.result = std::move(result);
  facts.logs = directory.logs();
  return ReportNothingRuns(environment, flags, text, facts);
}

}  // namespace sluice::cli
