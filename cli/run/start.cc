#include "cli/run/start.h"

namespace sluice::cli {

std::optional<Start> DecideStart(const StartFacts& facts) {
  if (facts.fresh || !facts.recorded) return Start::kFirst;
  if (!facts.trained) return facts.fixed_changed ? Start::kOver : Start::kResume;

  const bool asks_for_more = facts.finished && facts.length_changed;
  if (!facts.fixed_changed && !asks_for_more) {
    return facts.finished ? Start::kFinished : Start::kResume;
  }

  if (facts.fixed_changed && !facts.takes_existing) return std::nullopt;
  const bool nothing_left = facts.finished && facts.existing == ExistingJob::Kind::kFinished;
  return nothing_left ? Start::kFinished : Start::kAnother;
}

}  // namespace sluice::cli
