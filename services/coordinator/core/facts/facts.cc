#include "services/coordinator/core/facts/facts.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "proto/checkpoint.pb.h"
#include "services/checkpoint/storage.h"
#include "services/common/check.h"
#include "services/common/status_macros.h"
#include "services/coordinator/core/decisions/model_difference.h"
#include "services/coordinator/core/facts/training_mode.h"
#include "services/protocol/arithmetic.h"
#include "services/protocol/data_digests.h"
#include "services/protocol/ids.h"
#include "services/protocol/interval_set.h"
#include "services/protocol/layout.h"
#include "services/protocol/timeouts.h"

namespace sluice::coordinator {
namespace {

CoordinatorOptions WithDefaults(CoordinatorOptions options) {
  // Shards do not know which worker an all-reduce, or a sum over a step, waits for.
  const v1::TrainingSpec& training = options.job.training();
  const bool wait_for_each_other =
      training.dense().aggregation() == v1::TrainingSpec::Dense::ALL_REDUCE ||
      training.sync() == v1::TrainingSpec::BATCH_NORM;
  if (options.job.timeouts().gradients() <= 0 && !wait_for_each_other) {
    options.job.mutable_timeouts()->set_gradients(kDefaultGradients);
  }
  return options;
}

}  // namespace

Facts::Facts(CoordinatorOptions given, const CoordinatorRules* given_rules, absl::Time now)
    : options(WithDefaults(std::move(given))),
      rules(*given_rules),
      timers(TimersFrom(job().timeouts())),
      newest_event(now),
      wanted_workers(job().worker().replicas()),
      wanted_shards(std::max<uint32_t>(job().parameter_server().replicas(), 1)),
      members({FullJobName(job()), SpokenWireVersions(), timers.suspect, timers.heartbeat_timeout,
               rules.RefuseExpelled(), wanted_workers, wanted_shards, timers.heartbeat,
               rules.SuspectItself()}),
      meter(20 * std::max<uint64_t>(job().training().global_batch_size(), 1)),
      view_change(given_rules),
      training(attempt, view_change, now),
      synchronous_(MakeSynchronousMode(*this)),
      asynchronous_(MakeAsynchronousMode(*this)),
      bounded_staleness_(MakeBoundedStalenessMode(*this)) {
  attempt.mode = job().training().mode();
  attempt.id.term.set_coordinator(options.incarnation);
}

Facts::~Facts() = default;

void Facts::LeaveAttempt() {
  attempt = attempt.Next(job().training().mode());
  view_change = ViewChange(&rules);
  training = Training(attempt, view_change, newest_event);
}

const TrainingMode& Facts::mode() const {
  if (IsSynchronous(attempt.mode)) return *synchronous_;
  return attempt.mode == v1::BOUNDED_STALENESS ? *bounded_staleness_ : *asynchronous_;
}

std::vector<const Process*> Facts::ReadyWorkers() const {
  std::vector<const Process*> workers = members.LivingAndConnected(v1::WORKER);
  workers.erase(std::remove_if(workers.begin(), workers.end(),
                               [](const Process* w) { return !w->ready || w->leaving; }),
                workers.end());
  return workers;
}

bool Facts::Stays(const Process& shard) const {
  return !shard.leaving && shard.id.index() < wanted_shards;
}

bool Facts::CanDrain() const {
  return MovesPartitions() &&
         std::any_of(attempt.facts().shards.begin(), attempt.facts().shards.end(),
                     [this](uint64_t incarnation) {
                       const Process* shard = members.Find(incarnation);
                       return shard != nullptr && Stays(*shard);
                     });
}

uint64_t Facts::StepsIn(absl::Duration time, absl::Time now) const {
  if (!mode().synchronous()) return 0;
  const double batch =
      static_cast<double>(std::max<uint64_t>(job().training().global_batch_size(), 1));
  const double steps = meter.SamplesPerSecond(now) / batch * absl::ToDoubleSeconds(time);
  return static_cast<uint64_t>(std::clamp(std::floor(steps), 0.0, 1e6));
}

uint64_t Facts::EvaluationSamples() const {
  SLUICE_DCHECK(attempt.model.ready.has_value(), "the model's data are known");
  const uint64_t limit = job().data().evaluation().max_samples();
  const uint64_t samples = attempt.model.ready->evaluation_samples();
  return limit == 0 ? samples : std::min(limit, samples);
}

std::string Facts::Arithmetic() const {
  return JobArithmetic(options.arithmetic, job().training());
}

std::string CheckpointName(const v1::CheckpointRef& checkpoint) {
  return absl::StrCat("the checkpoint of attempt ", checkpoint.attempt(), ", step ",
                      checkpoint.step());
}

namespace {

// `digest`: what differs. Samples are encoded with what the model was trained with, also in another
// job; other samples may have other values there.
std::string DigestProblem(const std::string& digest, const std::string& checkpoint,
                          bool of_another_job) {
  const bool encoding = digest == kEncodingDigest;
  if (!encoding && digest != kVocabularyDigest) {
    if (of_another_job) return "";
    return absl::StrCat(digest, " differs from when ", checkpoint,
                        " was made: a job continues with the data with which it began. Use these "
                        "data, or begin a job of another name with this checkpoint "
                        "(checkpoint.restoreFrom)");
  }
  const char* const file = encoding ? kTableEncodingFile : kVocabularyFile;
  return absl::StrCat(
      digest, " differs from when ", checkpoint,
      " was made: the training data have changed, and the workers do not see the ", file,
      " that was written beside the checkpoints when training began. Mount the checkpoint "
      "directory in the workers too, with this file; or train on the data with which the "
      "checkpoint "
      "was made (remove a ",
      file, " that was written since)");
}

}  // namespace

std::string Facts::CheckCheckpoint() const {
  if (!storage.has_newest || !attempt.model.ready.has_value()) return "";
  const v1::CheckpointIndex& checkpoint_index = storage.newest;
  const std::string name = CheckpointName(checkpoint_index.checkpoint());
  if (const std::string difference =
          Difference(checkpoint_index.table(), attempt.model.ready->table());
      !difference.empty()) {
    return absl::StrCat("the model differs from that of ", name, ": ", difference);
  }
  // Another job's checkpoint gives the parameters only; this job's positions are of its own data.
  const uint64_t samples = checkpoint_index.training_samples();
  if (samples != 0 && samples != attempt.model.ready->training_samples() &&
      storage.foreign_directory.empty()) {
    return absl::StrCat(
        "the training data have ", attempt.model.ready->training_samples(), " samples, and had ",
        samples, " when ", name,
        " was made: a job continues with the data with which it began. Use these "
        "data, or begin a job of another name with this checkpoint (checkpoint.restoreFrom)");
  }
  if (const std::string digest =
          OtherDigest(checkpoint_index.digests(), attempt.model.ready->digests());
      !digest.empty()) {
    std::string problem = DigestProblem(digest, name, !storage.foreign_directory.empty());
    if (!problem.empty()) return problem;
  }
  RETURN_IF_ERROR(ValidateLayout(checkpoint_index.table(), checkpoint_index.layout()),
                  absl::StrCat(name, " has no valid layout: ", _.message()));
  RETURN_IF_ERROR(IntervalSet::FromProtos(checkpoint_index.ledger().applied()).status(),
                  absl::StrCat(name, " has no valid ledger: ", _.message()));
  return "";
}

}  // namespace sluice::coordinator
