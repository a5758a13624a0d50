#include "services/coordinator/core/decisions/member_checks.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <string>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "services/common/check.h"
#include "services/common/status_macros.h"
#include "services/common/text/utf8.h"
#include "services/protocol/desired_number.h"
#include "services/protocol/ids.h"
#include "services/protocol/interval_set.h"
#include "services/protocol/metric_name.h"
#include "services/protocol/worker_limits.h"

namespace sluice::coordinator {
namespace {

constexpr uint64_t kMaxClock = uint64_t{1} << 62;
constexpr double kMaxSnapshotSeconds = 1e6;
constexpr double kMaxBusySeconds = 1e10;
constexpr uint64_t kMaxFileBytes = uint64_t{1} << 50;
constexpr size_t kMaxFileNameBytes = 256;
// Limits of a worker's report.
constexpr uint64_t kMaxReportCount = uint64_t{1} << 48;  // bytes, samples
constexpr double kMaxTimesElapsed = 8;                   // threads and buffers overlap
constexpr absl::Duration kReportSlack = absl::Seconds(1);

// The most correct predictions in this many samples. A sample may be a sequence of tokens, each
// predicted.
bool CanBeCorrect(double correct, uint64_t samples) {
  constexpr double kMaxOfASample = 1 << 24;
  return correct >= 0 && correct <= static_cast<double>(samples) * kMaxOfASample;
}

template <typename... Args>
absl::Status Impossible(const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat(args...));
}

absl::Status AtMost(const char* field, uint64_t value, uint64_t limit, const char* what) {
  if (value <= limit) return absl::OkStatus();
  return Impossible(field, " is ", value, ", past ", what, ", ", limit);
}

absl::Status CheckText(const char* field, const std::string& text, size_t max_bytes) {
  if (text.size() > max_bytes) {
    return Impossible(field, " has ", text.size(), " bytes; at most ", max_bytes, " are allowed");
  }
  if (!IsUtf8(text)) return Impossible(field, " is not UTF-8");
  return absl::OkStatus();
}

// Whether the partition has blocks. A shard may report anything about partitions without blocks.
bool HasBlocks(const ShardFacts& facts, uint32_t partition) {
  return partition < facts.empty->size() && !(*facts.empty)[partition];
}

bool IsShard(const v1::View& view, uint32_t position, uint64_t shard) {
  return position < static_cast<uint32_t>(view.shards_size()) &&
         view.shards(static_cast<int>(position)).process().incarnation() == shard;
}

bool Owns(const v1::View& view, uint32_t partition, uint64_t shard) {
  SLUICE_DCHECK(partition < static_cast<uint32_t>(view.owner_size()),
                "the view has the partitions of the attempt");
  return IsShard(view, view.owner(static_cast<int>(partition)), shard);
}

// Whether the view names the shard as the partition's follower or target.
bool Copies(const v1::View& view, uint32_t partition, uint64_t shard) {
  for (const auto* positions : {&view.follower(), &view.target()}) {
    if (positions->empty()) continue;
    const uint32_t position_plus_one = positions->Get(static_cast<int>(partition));
    if (position_plus_one > 0 && IsShard(view, position_plus_one - 1, shard)) return true;
  }
  return false;
}

// Synchronous: a version. Asynchronous: updates, of which each covers at least one sample.
uint64_t LastVersion(const ShardFacts& facts) {
  return facts.synchronous ? facts.total_steps : facts.first_version + facts.total_samples;
}

absl::Status CheckRange(const char* field, const v1::Range& range, const ShardFacts& facts) {
  if (range.begin() > range.end() || range.end() > facts.total_samples) {
    return Impossible(field, " is [", range.begin(), ", ", range.end(), "); the job has ",
                      facts.total_samples, " samples");
  }
  return absl::OkStatus();
}

absl::Status CheckLedger(const v1::Ledger& ledger, const ShardFacts& facts) {
  ASSIGN_OR_RETURN(const IntervalSet applied, IntervalSet::FromProtos(ledger.applied()),
                   Impossible("ledger: ", _.message()));
  if (!applied.empty() && applied.Intervals().back().end > facts.total_samples) {
    return Impossible("ledger ends at ", applied.Intervals().back().end, "; the job has ",
                      facts.total_samples, " samples");
  }
  return AtMost("ledger.updates", ledger.updates(), LastVersion(facts), "the job's last update");
}

// The view that the shard reports must be one that this coordinator made, unchanged, and is
// returned as it was made. A view of another attempt or coordinator is judged by the decision.
absl::StatusOr<const v1::View*> CheckNewest(const v1::PauseReply& reply, const ShardFacts& facts) {
  const v1::ViewId& id = reply.view();
  if (id.attempt() >= kMaxTerm || id.term().counter() >= kMaxTerm) {
    return Impossible("view ", ShortName(id), " is past the last possible one");
  }
  if (!Same(reply.newest().id(), id)) {
    return Impossible("newest is view ", ShortName(reply.newest().id()), ", not ", ShortName(id));
  }
  if (id.attempt() != facts.attempt) return &reply.newest();
  if (Compare(id.term(), facts.term) != 0) {
    // A coordinator that takes over does not know the partitions yet.
    if (!facts.empty->empty() &&
        reply.newest().owner_size() != static_cast<int>(facts.empty->size())) {
      return Impossible("view ", ShortName(id), " has ", reply.newest().owner_size(),
                        " partitions; the job has ", facts.empty->size());
    }
    RETURN_IF_ERROR(CheckPositions(reply.newest()));
    return &reply.newest();
  }

  SLUICE_DCHECK(facts.installs != nullptr, "this coordinator knows the views that it made");
  const auto made = facts.installs->find(id.number());
  if (made == facts.installs->end()) return Impossible("there is no view ", ShortName(id));
  if (reply.newest().first_step() != made->second.view().first_step()) {
    return Impossible("view ", ShortName(id), " begins at step ", made->second.view().first_step(),
                      ", not ", reply.newest().first_step());
  }
  return &made->second.view();
}

// A shard reports the partitions that its view says it owns, and the copies that the view names.
absl::Status CheckVersions(const v1::PauseReply& reply, const v1::View& view,
                           const ShardFacts& facts) {
  std::set<uint32_t> named;
  uint64_t lowest = LastVersion(facts);
  for (const v1::PauseReply::PartitionState& state : reply.partitions()) {
    const uint32_t partition = state.partition();
    if (!HasBlocks(facts, partition)) continue;
    if (!named.insert(partition).second) {
      return Impossible("partition ", partition, " is named twice");
    }
    if (state.copy() ? !Copies(view, partition, facts.shard)
                     : !Owns(view, partition, facts.shard)) {
      return Impossible("view ", ShortName(view.id()), " names no ",
                        state.copy() ? "copy" : "ownership", " of partition ", partition,
                        " on this shard");
    }
    RETURN_IF_ERROR(
        AtMost("a partition's version", state.version(), LastVersion(facts), "the job's last one"));
    if (!state.copy()) lowest = std::min(lowest, state.version());
  }
  if (!facts.synchronous) return absl::OkStatus();
  return AtMost("committed", reply.committed(), lowest, "the shard's lowest version");
}

absl::Status CheckRecords(const v1::PauseReply& reply, const ShardFacts& facts) {
  absl::flat_hash_set<uint64_t> workers;
  for (const auto* records : {&reply.clocks(), &reply.copied()}) {
    workers.clear();
    for (const v1::ClockRecord& record : *records) {
      if (!workers.insert(record.worker()).second) {
        return Impossible("clocks name worker ", record.worker(), " twice");
      }
      RETURN_IF_ERROR(CheckRange("a clock's samples", record.samples(), facts));
      // An incarnation's clock counts across all attempts of its lifetime.
      RETURN_IF_ERROR(AtMost("a clock", record.clock(), kMaxClock, "the last possible one"));
    }
  }

  workers.clear();
  for (const v1::StagedUpdate& staged : reply.staged()) {
    if (!workers.insert(staged.worker()).second) {
      return Impossible("staged names worker ", staged.worker(), " twice");
    }
  }

  for (const v1::LeaseRecord& lease : reply.leases()) {
    RETURN_IF_ERROR(CheckRange("a lease", lease.samples(), facts));
    RETURN_IF_ERROR(AtMost("a lease's clock", lease.clock(), kMaxClock, "the last possible one"));
  }
  return CheckLedger(reply.ledger(), facts);
}

absl::Status CheckDecisions(const v1::EvaluationDecisions& decisions, const ShardFacts& facts) {
  RETURN_IF_ERROR(
      AtMost("a decision's step", decisions.step(), LastVersion(facts), "the job's last version"));
  RETURN_IF_ERROR(CheckText("a decision's reason", decisions.stop_reason(), kMaxReasonBytes));
  const double factor = decisions.learning_rate_factor();
  if (factor >= 0 && factor <= 1) return absl::OkStatus();
  return Impossible("the learning rate's factor is ", factor, "; it should be from 0 to 1");
}

}  // namespace

// ---- both

absl::Status CheckRegister(const v1::Register& request) {
  absl::Status status = CheckText("address", request.address(), kMaxAddressBytes);
  status.Update(CheckText("host", request.host(), kMaxAddressBytes));
  status.Update(CheckText("metrics_address", request.metrics_address(), kMaxAddressBytes));
  status.Update(CheckText("job", request.job(), kMaxAddressBytes));
  const auto check_view = [&](const char* field, const v1::ViewId& view) {
    if (view.attempt() < kMaxTerm && view.term().counter() < kMaxTerm) return;
    status.Update(Impossible(field, " ", ShortName(view), " is past the last possible one"));
  };
  check_view("newest_view", request.newest_view());
  check_view("obeyed", request.obeyed());
  return status;
}

absl::Status CheckReady(const v1::Ready& ready) {
  absl::Status status = AtMost("training_samples", ready.training_samples(), kMaxDataSamples,
                               "what a data set may have");
  if (ready.notes_size() > kMaxNotes) {
    status.Update(Impossible(ready.notes_size(), " notes; at most ", kMaxNotes, " are allowed"));
  }
  for (const std::string& note : ready.notes()) {
    status.Update(CheckText("a note", note, kMaxReadyTextBytes));
  }
  if (ready.digests_size() > kMaxDigests) {
    status.Update(
        Impossible(ready.digests_size(), " digests; at most ", kMaxDigests, " are allowed"));
  }
  for (const v1::DataDigest& digest : ready.digests()) {
    status.Update(CheckText("a digest's name", digest.name(), kMaxDigestNameBytes));
  }
  const v1::Environment& environment = ready.environment();
  status.Update(
      CheckText("smallest_batch_module", ready.smallest_batch_module(), kMaxReadyTextBytes));
  status.Update(CheckText("environment.kernels", environment.kernels(), kMaxReadyTextBytes));
  status.Update(CheckText("environment.library", environment.library(), kMaxReadyTextBytes));
  status.Update(AtMost("evaluation_samples", ready.evaluation_samples(), kMaxDataSamples,
                       "what a data set may have"));
  if (ready.metrics_size() > kMaxMetrics) {
    status.Update(
        Impossible(ready.metrics_size(), " metrics; at most ", kMaxMetrics, " are allowed"));
  }
  std::set<std::string> names;
  for (const std::string& name : ready.metrics()) {
    status.Update(CheckMetricName(name));
    if (!names.insert(name).second) status.Update(Impossible("there are two metrics '", name, "'"));
  }
  for (const v1::TensorSpec& tensor : ready.table().tensors()) {
    if (!IsUtf8(tensor.name())) {
      status.Update(Impossible("a tensor's name, \"", CleanUtf8(tensor.name(), kMaxAddressBytes),
                               "\", is not UTF-8"));
    }
    // A refusal that names a difference quotes both names, and is kept as an event.
    status.Update(CheckText("a tensor's name", tensor.name(), kMaxTensorNameBytes));
    if (tensor.shape_size() > kMaxTensorDimensions) {
      status.Update(Impossible("a tensor has ", tensor.shape_size(), " dimensions; at most ",
                               kMaxTensorDimensions, " are allowed"));
    }
  }
  return status;
}

// ---- shards

absl::Status CheckPositions(const v1::View& view) {
  const auto shards = static_cast<uint32_t>(view.shards_size());
  absl::flat_hash_set<uint64_t> named;
  for (const v1::View::Shard& shard : view.shards()) {
    if (named.insert(shard.process().incarnation()).second) continue;
    return Impossible("view ", ShortName(view.id()), " names ", ProcessName(shard.process()),
                      " twice");
  }
  for (const uint32_t owner : view.owner()) {
    if (owner >= shards) {
      return Impossible("view ", ShortName(view.id()), " names an owner that is no shard");
    }
  }
  for (const auto* positions : {&view.follower(), &view.target()}) {
    if (!positions->empty() && positions->size() != view.owner_size()) {
      return Impossible("view ", ShortName(view.id()), " has copies of ", positions->size(),
                        " partitions, and ", view.owner_size(), " partitions");
    }
    for (const uint32_t position_plus_one : *positions) {
      if (position_plus_one <= shards) continue;
      return Impossible("view ", ShortName(view.id()), " names a copy on a shard that it lacks");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckShardProgress(const v1::ShardProgress& progress, const ShardFacts& facts) {
  SLUICE_DCHECK(progress.copies().empty() || (facts.view != nullptr && facts.empty != nullptr),
                "copies are compared with those that the view names");
  absl::Status status =
      AtMost("closed", progress.closed(), LastVersion(facts), "the job's last version");
  status.Update(AtMost("samples", progress.samples(), facts.total_samples, "the job's samples"));
  if (facts.synchronous) {
    status.Update(AtMost("committed", progress.committed(),
                         facts.owned.empty() ? facts.total_steps : progress.closed(),
                         "what the shard has closed"));
  }
  // Counts of a process may span several attempts.
  status.Update(AtMost("skipped_steps", progress.skipped_steps(), kMaxReportCount, "the limit"));
  status.Update(AtMost("dropped_contributions", progress.dropped_contributions(), kMaxReportCount,
                       "the limit"));
  if (!(progress.busy_seconds() >= 0 && progress.busy_seconds() <= kMaxBusySeconds)) {
    status.Update(Impossible("busy_seconds is ", progress.busy_seconds(),
                             "; it should be from 0 to ", kMaxBusySeconds));
  }
  std::optional<uint32_t> previous;
  for (const uint32_t partition : progress.copies()) {
    if (previous.has_value() && partition <= *previous) {
      status.Update(Impossible("copies names partition ", partition, " after ", *previous));
    } else if (!HasBlocks(facts, partition) || !Copies(*facts.view, partition, facts.shard)) {
      status.Update(
          Impossible("the view names no copy of partition ", partition, " on this shard"));
    }
    previous = partition;
  }
  return status;
}

absl::Status CheckPauseReply(const v1::PauseReply& reply, const ShardFacts& facts) {
  if (!reply.has_view()) return absl::OkStatus();  // it reports only an init request
  ASSIGN_OR_RETURN(const v1::View* view, CheckNewest(reply, facts));
  // Each shard of a view, and each that is to join one, has discarded the state of older attempts.
  if (reply.view().attempt() < facts.attempt && !facts.installs->empty()) {
    return Impossible("view ", ShortName(reply.view()), " is of an older attempt than ",
                      facts.attempt, ", which has a view");
  }
  // The state of a shard of another attempt is not used.
  if (reply.view().attempt() != facts.attempt) return absl::OkStatus();
  RETURN_IF_ERROR(CheckVersions(reply, *view, facts));
  RETURN_IF_ERROR(CheckDecisions(reply.decisions(), facts));
  return facts.synchronous ? absl::OkStatus() : CheckRecords(reply, facts);
}

absl::Status CheckSnapshotPinned(const v1::SnapshotPinned& pinned, uint64_t version) {
  if (pinned.version() == version) return absl::OkStatus();
  return Impossible("snapshot ", pinned.snapshot_id(), " is of version ", version, ", not ",
                    pinned.version());
}

absl::Status CheckSnapshotWritten(const v1::SnapshotWritten& written) {
  absl::Status status;
  for (const v1::PartitionFile& file : written.files()) {
    status.Update(CheckText("a file's name", file.name(), kMaxFileNameBytes));
    status.Update(AtMost("a file's bytes", file.bytes(), kMaxFileBytes, "what a file may have"));
  }
  if (!(written.seconds() >= 0 && written.seconds() <= kMaxSnapshotSeconds)) {
    status.Update(Impossible("seconds is ", written.seconds(), "; it should be from 0 to ",
                             kMaxSnapshotSeconds));
  }
  return status;
}

absl::Status CheckSnapshotFailed(const v1::SnapshotFailed& failed, const ShardFacts& facts) {
  return AtMost("past", failed.past(), LastVersion(facts), "the job's last version");
}

// ---- workers

absl::Status CheckEvaluationResult(const v1::EvaluationResult& result, const v1::Range& asked) {
  SLUICE_DCHECK(asked.begin() < asked.end(), "a worker is asked to evaluate some samples");
  const uint64_t samples = asked.end() - asked.begin();
  if (result.count() != samples) {
    return Impossible("count is ", result.count(), " for ", samples, " samples");
  }
  if (!CanBeCorrect(result.correct(), samples)) {
    return Impossible("correct is ", result.correct(), " of ", samples, " samples");
  }
  const double most = std::numeric_limits<float>::max() * static_cast<double>(samples);
  if (!(std::abs(result.loss_sum()) <= most)) {
    return Impossible("the loss of ", samples, " samples is ", result.loss_sum(),
                      ": it is not finite, or too large");
  }
  if (result.has_weight() && !IsWeight(result.weight())) {
    return Impossible("weight is ", result.weight(), ": it must be from 0 to ", kMaxWeight);
  }
  return absl::OkStatus();
}

namespace {

// `named`: states or values of metrics.
template <typename Named>
absl::Status CheckMetrics(const Named& named, const std::vector<std::string>& metrics) {
  if (static_cast<size_t>(named.size()) != metrics.size()) {
    return Impossible(named.size(), " metrics; the workers of this job have ", metrics.size());
  }
  for (int i = 0; i < named.size(); ++i) {
    const std::string& wanted = metrics[static_cast<size_t>(i)];
    if (named[i].name() != wanted) {
      return Impossible("metric ", i, " is not '", wanted, "'");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckMetricStates(const v1::EvaluationResult& result,
                               const std::vector<std::string>& metrics) {
  return CheckMetrics(result.metrics(), metrics);
}

absl::Status CheckMetricValues(const v1::MetricValues& values,
                               const std::vector<std::string>& metrics) {
  return CheckMetrics(values.metrics(), metrics);
}

int KeepPossibleFigures(v1::WorkerProgress* progress, const WorkerFacts& facts) {
  int left_out = 0;
  auto* const steps = progress->mutable_steps();
  const auto impossible = [&](const v1::WorkerProgress::Step& step) {
    const uint64_t last = facts.synchronous ? facts.total_steps : kMaxClock;
    return step.step() > last || step.samples() > facts.largest_step ||
           step.staleness() > facts.total_samples;
  };

  const auto kept = std::remove_if(steps->begin(), steps->end(), impossible);
  left_out += static_cast<int>(steps->end() - kept);
  steps->erase(kept, steps->end());

  for (v1::WorkerProgress::Step& step : *steps) {
    const auto samples = static_cast<double>(step.samples());
    const double most = std::numeric_limits<float>::max() * samples;
    // A loss that is not finite is possible: training has diverged. It is not counted later.
    if (std::isfinite(step.loss_sum()) && std::abs(step.loss_sum()) > most) {
      step.set_loss_sum(std::numeric_limits<double>::quiet_NaN());
      ++left_out;
    }
    if (step.has_weight() && !IsWeight(step.weight())) {
      step.set_weight(0);
      ++left_out;
    }
    if (!CanBeCorrect(step.correct(), step.samples())) {
      step.set_correct(0);
      ++left_out;
    }
  }

  const double most_seconds =
      kMaxTimesElapsed *
      absl::ToDoubleSeconds(std::max(facts.elapsed, absl::ZeroDuration()) + kReportSlack);
  const auto seconds = [&](double value) {
    if (value >= 0 && value <= most_seconds) return value;
    ++left_out;
    return value > most_seconds ? most_seconds : 0.0;
  };
  progress->set_data_seconds(seconds(progress->data_seconds()));
  progress->set_compute_seconds(seconds(progress->compute_seconds()));
  progress->set_push_seconds(seconds(progress->push_seconds()));
  progress->set_wait_seconds(seconds(progress->wait_seconds()));
  progress->set_pull_seconds(seconds(progress->pull_seconds()));

  const auto count = [&](uint64_t value) {
    if (value <= kMaxReportCount) return value;
    ++left_out;
    return uint64_t{0};
  };
  progress->set_recomputed_samples(count(progress->recomputed_samples()));
  progress->set_pushed_bytes(count(progress->pushed_bytes()));
  progress->set_gradient_bytes(count(progress->gradient_bytes()));
  progress->set_pulled_bytes(count(progress->pulled_bytes()));
  progress->set_parameter_bytes(count(progress->parameter_bytes()));
  return left_out;
}

// ---- the operator

absl::Status CheckSetDesired(const v1::SetDesiredRequest& desired) {
  absl::Status status = AtMost("workers", desired.workers(), kMaxWantedProcesses, "the limit");
  status.Update(AtMost("shards", desired.shards(), kMaxWantedProcesses, "the limit"));
  status.Update(AtMost("number", desired.number(), kMaxDesiredNumber, "the limit"));
  if (desired.deaths_size() > kMaxDeaths) {
    status.Update(Impossible(desired.deaths_size(), " deaths; at most ", kMaxDeaths,
                             " may be reported at once"));
  }
  return status;
}

}  // namespace sluice::coordinator
