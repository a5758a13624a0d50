#include "cli/verify/history.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "services/checkpoint/existing_job.h"
#include "services/common/status_macros.h"
#include "services/protocol/arithmetic.h"
#include "services/protocol/samples/job_length.h"

namespace sluice::verify {
namespace {

// The newest of the checkpoints that `index` was trained from; nullopt: there is none.
std::optional<v1::CheckpointRef> Predecessor(const std::vector<v1::CheckpointRef>& checkpoints,
                                             const v1::CheckpointIndex& index) {
  std::optional<v1::CheckpointRef> found;
  for (const v1::CheckpointRef& ref : checkpoints) {
    if (ref.attempt() != index.checkpoint().attempt() || ref.step() >= index.checkpoint().step()) {
      continue;
    }
    if (!found.has_value() || ref.step() > found->step()) found = ref;
  }

  if (found.has_value() || !index.has_parent()) return found;
  for (const v1::CheckpointRef& ref : checkpoints) {
    if (ref.attempt() == index.parent().attempt() && ref.step() == index.parent().step()) {
      return ref;
    }
  }
  return std::nullopt;
}

std::string StepsText(const History& history) {
  return absl::StrJoin(history.checkpoints, ", ",
                       [](std::string* out, const v1::CheckpointIndex& index) {
                         absl::StrAppend(out, index.checkpoint().step());
                       });
}

// The place of the checkpoint of this step.
absl::StatusOr<size_t> Find(const History& history, uint64_t step) {
  for (size_t i = 0; i < history.checkpoints.size(); ++i) {
    if (history.checkpoints[i].checkpoint().step() == step) return i;
  }
  return absl::NotFoundError(absl::StrCat("there is no checkpoint of step ", step,
                                          "; there are those of the steps ", StepsText(history)));
}

absl::Status NoPredecessor(const History& history, uint64_t step) {
  return absl::FailedPreconditionError(absl::StrCat(
      "there is no checkpoint before the one of step ", step, " (of the steps ", StepsText(history),
      "): two are needed. A smaller checkpoint.intervalSteps or a larger checkpoint.maxToKeep "
      "keeps more",
      history.from_beginning ? "; --from 0 replays from the job's beginning" : ""));
}

}  // namespace

absl::StatusOr<History> ReadHistory(CheckpointStorage& storage) {
  ASSIGN_OR_RETURN(const std::vector<v1::Claim> claims, storage.ReadClaims());
  ASSIGN_OR_RETURN(const std::vector<v1::CheckpointRef> stored, storage.ListCheckpoints());
  const std::vector<v1::CheckpointRef> checkpoints = RestoreCandidates(claims, stored);
  if (checkpoints.empty()) {
    return absl::FailedPreconditionError("it has no checkpoint yet; two are needed");
  }

  History history;
  for (const v1::Claim& claim : claims) {
    std::optional<v1::OptimizerSpec> optimizer = ClaimedOptimizer(claim);
    if (optimizer.has_value()) history.optimizers[claim.attempt()] = *std::move(optimizer);
  }
  std::optional<v1::CheckpointRef> next = checkpoints.front();
  while (next.has_value()) {
    ASSIGN_OR_RETURN(v1::CheckpointIndex index, storage.ReadCheckpointIndex(*next));
    next = Predecessor(checkpoints, index);
    history.from_beginning = !next.has_value() && !index.has_parent();
    history.checkpoints.push_back(std::move(index));
  }
  std::reverse(history.checkpoints.begin(), history.checkpoints.end());
  return history;
}

absl::StatusOr<std::vector<Interval>> SelectIntervals(const History& history,
                                                      const Selection& selection) {
  const std::vector<v1::CheckpointIndex>& checkpoints = history.checkpoints;
  size_t end = checkpoints.size() - 1;
  if (selection.to.has_value()) {
    ASSIGN_OR_RETURN(end, Find(history, *selection.to));
  }

  std::vector<Interval> intervals;
  size_t begin = 0;  // of the first checkpoint that an interval begins with
  const bool from_zero =
      selection.from == uint64_t{0} && checkpoints.front().checkpoint().step() > 0;
  if (from_zero) {
    if (!history.from_beginning) {
      return absl::FailedPreconditionError(absl::StrCat(
          "the checkpoint of step ", checkpoints.front().checkpoint().step(),
          " was not trained from the job's beginning: its attempt began with the checkpoint of "
          "step ",
          checkpoints.front().parent().step(), ", which was deleted or is another job's"));
    }
    intervals.push_back({std::nullopt, checkpoints.front()});
  } else if (selection.from.has_value()) {
    ASSIGN_OR_RETURN(begin, Find(history, *selection.from));
    if (begin >= end) {
      return absl::InvalidArgumentError(absl::StrCat("--from ", *selection.from,
                                                     " must be before --to ",
                                                     checkpoints[end].checkpoint().step()));
    }
  } else if (!selection.all) {
    if (end == 0) return NoPredecessor(history, checkpoints[end].checkpoint().step());
    begin = end - 1;
  } else if (end == 0) {
    return NoPredecessor(history, checkpoints[end].checkpoint().step());
  }

  for (size_t i = begin; i < end; ++i) intervals.push_back({checkpoints[i], checkpoints[i + 1]});
  for (Interval& interval : intervals) {
    const auto found = history.optimizers.find(interval.to.checkpoint().attempt());
    if (found != history.optimizers.end()) interval.optimizer = found->second;
  }
  return intervals;
}

absl::Status CheckReplayable(const v1::JobSpec& job, const Interval& interval,
                             const MachineArithmetic& machine, bool exact) {
  const auto refused = [&](absl::string_view why) {
    return absl::FailedPreconditionError(absl::StrCat(
        "steps ", interval.first(), " to ", interval.last(), " cannot be repeated: ", why));
  };
  if (!IsSynchronous(interval.to.mode()) ||
      (interval.from.has_value() && !IsSynchronous(interval.from->mode()))) {
    return refused(
        "they were trained asynchronously. The order of the updates depended on the processes' "
        "speed; it is not a function of the seed");
  }

  const v1::TrainingSpec& training = job.training();
  if (training.stragglers().policy() == v1::TrainingSpec::Stragglers::DROP) {
    return refused(
        "`stragglers: {policy: Drop}`: which contributions a step dropped depended on the "
        "workers' speed");
  }

  if (training.push_codec() != v1::CODEC_RAW) {
    return refused(
        "`compression.push`: what a codec omits depended on which worker computed a gradient");
  }

  if (job.data().text().state() == v1::DataSpec::Text::CARRIED) {
    return refused(
        "`text.state: Carried`: the state depended on which worker computed the previous sample");
  }

  if (const std::string now = JobArithmetic(machine, training); exact && interval.to.isa() != now) {
    return refused(absl::StrCat("they were trained by ", interval.to.isa(), ", and this is ", now,
                                ": bits may differ. Use that build on such a machine, or allow "
                                "small differences with --tolerance"));
  }
  return absl::OkStatus();
}

v1::JobSpec ReplayJob(const v1::JobSpec& job, const Interval& interval,
                      const std::string& from_directory, uint64_t hash_interval_steps) {
  v1::JobSpec replay = job;
  if (interval.optimizer.has_value()) *replay.mutable_optimizer() = *interval.optimizer;
  v1::TrainingSpec& training = *replay.mutable_training();
  training.set_mode(v1::SYNCHRONOUS);  // it may have changed since
  training.set_steps(interval.last());
  training.clear_epochs();
  training.clear_target();

  replay.mutable_worker()->set_replicas(1);
  // With server-side execution, each stage needs a shard.
  replay.mutable_parameter_server()->set_replicas(
      static_cast<uint32_t>(std::max(1, job.model().stages_size())));
  replay.mutable_parameter_server()->set_copies(1);

  // The only checkpoint is the one of the last step.
  v1::CheckpointSpec& checkpoint = *replay.mutable_checkpoint();
  checkpoint.clear_directory();
  checkpoint.clear_interval_steps();
  checkpoint.clear_interval_seconds();
  if (interval.from.has_value()) checkpoint.set_restore_from(from_directory);
  checkpoint.set_hash_interval_steps(hash_interval_steps);

  replay.mutable_data()->clear_evaluation();
  replay.clear_debug();
  return replay;
}

}  // namespace sluice::verify
