#include "services/ps/asynchronous.h"

#include <algorithm>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "services/ps/norm_exchange.h"
#include "services/ps/staleness.h"

namespace sluice::ps {

Asynchronous::Asynchronous(ShardState* state, StreamTable* streams, DataSender* sender,
                           std::function<void()> applied)
    : state_(*state),
      streams_(*streams),
      sender_(*sender),
      applied_(std::move(applied)),
      arbiter_(&state->rules) {}

absl::Status Asynchronous::OnFrame(Stream& stream, const v1::Header& header,
                                   const absl::Cord& payload) {
  const bool for_arbiter = header.body_case() == v1::Header::kLeaseRequest ||
                           header.body_case() == v1::Header::kPermitRequest;
  if (for_arbiter && !state_.view->is_arbiter()) {
    return absl::InvalidArgumentError("leases and permits are asked of the owner of partition 0");
  }
  switch (header.body_case()) {
    case v1::Header::kPush:
      return OnPush(stream, header.push(), payload);
    case v1::Header::kApply:
      return OnApply(stream, header.apply(), /*combine=*/false);
    case v1::Header::kPull:
      return OnPull(stream, header.pull(), payload);
    case v1::Header::kLeaseRequest:
      OnLeaseRequest(stream, header.lease_request());
      return absl::OkStatus();
    case v1::Header::kPermitRequest:
      OnPermitRequest(stream, header.permit_request());
      return absl::OkStatus();
    default:
      return absl::InvalidArgumentError(absl::StrCat(
          "frame ", header.body_case(), " is not for a shard in asynchronous training"));
  }
}

uint64_t Asynchronous::AppliedClock(uint64_t worker) const {
  const auto found = clocks_.find(worker);
  return found == clocks_.end() ? 0 : found->second.clock();
}

// ---------------------------------------------------------------- staging

absl::Status Asynchronous::OnPush(Stream& stream, const v1::Push& push, const absl::Cord& payload) {
  if (push.clock() == 0) return absl::InvalidArgumentError("a push without a clock");
  for (uint32_t number : push.complete()) {
    if (state_.Find(number) == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("partition ", number, " is not owned by this shard, or empty"));
    }
  }
  if (push.blocks_size() > 0 && state_.Find(push.partition()) == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("partition ", push.partition(), " is not owned by this shard, or empty"));
  }
  const uint64_t worker = stream.incarnation();
  const bool repeated = push.clock() <= AppliedClock(worker) && state_.rules.IgnoreAppliedClocks();
  if (!repeated) {
    std::vector<ReceivedBlock> blocks;
    if (absl::Status split = SplitPush(state_, worker, push, payload, &blocks); !split.ok()) {
      return split;
    }
    Staged& staged = staged_[worker];
    if (staged.clock != 0 && staged.clock != push.clock()) {
      return absl::InvalidArgumentError(absl::StrCat("update ", push.clock(), " is pushed while ",
                                                     staged.clock, " waits for its Apply"));
    }
    staged.clock = push.clock();
    if (absl::Status taken = Stage(staged, push, blocks); !taken.ok()) return taken;
  } else {
    state_.repeated_blocks += push.blocks_size();
  }
  if (push.has_apply()) {
    if (push.apply().clock() != push.clock()) {
      return absl::InvalidArgumentError("a push and its Apply are of different updates");
    }
    return OnApply(stream, push.apply(), /*combine=*/true);
  }
  const bool said_all = push.complete_size() > 0 || state_.view->owned().empty();
  if (!said_all) return absl::OkStatus();
  if (repeated) {
    SendStaged(stream, push.clock(), nullptr);
  } else if (IsWhole(staged_[worker])) {
    SendStaged(stream, push.clock(), &staged_[worker]);
  }
  return absl::OkStatus();
}

absl::Status Asynchronous::Stage(Staged& staged, const v1::Push& push,
                                 const std::vector<ReceivedBlock>& blocks) {
  // All are looked at before any is added: a frame that breaks the contract changes nothing.
  for (const ReceivedBlock& block : blocks) {
    const BlockInfo& info = state_.model->block(block.block);
    if (info.kind == v1::COUNTER) {
      return absl::InvalidArgumentError(
          absl::StrCat("nothing can be pushed to counter '", state_.model->TensorName(info), "'"));
    }
    const bool repeated = staged.received.count({block.block, push.microbatches().begin()}) > 0;
    if (!repeated && staged.complete.count(push.partition()) > 0) {
      return absl::InvalidArgumentError(absl::StrCat(state_.model->BlockName(info),
                                                     " comes after partition ", push.partition(),
                                                     " was said to be complete"));
    }
  }
  for (const ReceivedBlock& block : blocks) {
    const BlockInfo& info = state_.model->block(block.block);
    if (!staged.received.insert({block.block, push.microbatches().begin()}).second &&
        state_.rules.IgnoreRepeatedBlocks()) {
      ++state_.repeated_blocks;
      continue;
    }
    std::vector<GradientSum>& sums = staged.sums[push.partition()];
    sums.resize(state_.model->BlockCount(push.partition()));
    absl::Status added = sums[block.block - state_.model->FirstBlock(push.partition())].Add(
        info, block.codec, block.payload, *state_.pool);
    if (!added.ok()) return added;
  }
  if (push.complete().empty()) return absl::OkStatus();
  const bool was_whole = IsWhole(staged);
  staged.complete.insert(push.complete().begin(), push.complete().end());
  staged.samples = push.samples();
  staged.microbatches = push.microbatch_count();
  staged.ordinal = push.ordinal();
  if (!was_whole && IsWhole(staged) && NeedsNorms(state_.job)) return Measure(staged);
  return absl::OkStatus();
}

bool Asynchronous::IsWhole(const Staged& staged) const {
  return staged.complete.size() == state_.view->owned().size();
}

absl::Status Asynchronous::Measure(Staged& staged) {
  for (uint32_t number : state_.view->owned()) {
    GradientNorm norm;
    std::optional<uint32_t> offender;
    std::vector<GradientSum>& sums = staged.sums[number];
    sums.resize(state_.model->BlockCount(number));
    absl::Status measured = state_.partitions[number]->MeasureSums(
        Arguments(staged).gradient_scale, &sums, *state_.pool, state_.parallel, &norm, &offender);
    if (!measured.ok()) return measured;
    staged.norms[number] = norm;
    if (offender.has_value() && staged.offender.empty()) {
      staged.offender = state_.model->BlockName(state_.model->block(*offender));
    }
  }
  return absl::OkStatus();
}

UpdateArguments Asynchronous::Arguments(const Staged& staged) const {
  UpdateArguments arguments;
  arguments.schedule_step = staged.ordinal;
  if (state_.job.training().aggregation() == v1::TrainingSpec::MEAN && staged.samples > 0) {
    arguments.gradient_scale = 1.0 / static_cast<double>(staged.samples);
  }
  if (staged.microbatches > 0) {
    arguments.buffer_scale = 1.0 / static_cast<double>(staged.microbatches);
  }
  arguments.check_finite = state_.job.training().non_finite() == v1::TrainingSpec::FAIL;
  return arguments;
}

void Asynchronous::SendStaged(Stream& stream, uint64_t clock, const Staged* staged) {
  v1::Header header = state_.NewHeader();
  v1::Staged& body = *header.mutable_staged();
  body.set_clock(clock);
  if (staged != nullptr) {
    for (const auto& [partition, norm] : staged->norms) {
      v1::Norms::PartitionNorm& entry = *body.add_norms();
      entry.set_partition(partition);
      entry.set_square_sum(norm.square_sum);
      entry.set_non_finite(norm.non_finite);
    }
  }
  state_.Send(stream.id, std::move(header));
}

// ---------------------------------------------------------------- applying

// `combine`: this shard holds the whole update, so its norms are all there are.
absl::Status Asynchronous::OnApply(Stream& stream, const v1::Apply& apply, bool combine) {
  const uint64_t worker = stream.incarnation();
  if (apply.clock() <= AppliedClock(worker) && state_.rules.IgnoreAppliedClocks()) {
    SendApplied(stream, apply);
    return absl::OkStatus();
  }
  const auto found = staged_.find(worker);
  const bool nothing_to_stage = state_.view->owned().empty();
  if (!nothing_to_stage &&
      (found == staged_.end() || found->second.clock != apply.clock() || !IsWhole(found->second))) {
    return absl::InvalidArgumentError(
        absl::StrCat("Apply of update ", apply.clock(), ", which is not staged whole"));
  }
  const Interval samples = FromProto(apply.samples());
  if (state_.rules.IgnoreAppliedClocks() && ledger_.Intersects(samples)) {
    return absl::InvalidArgumentError(absl::StrCat("samples [", samples.begin, ", ", samples.end,
                                                   ") of update ", apply.clock(),
                                                   " were applied before"));
  }
  if (state_.view->is_arbiter() && !samples.empty() && state_.rules.RepeatLeases() &&
      !arbiter_.Covers(worker, samples)) {
    return absl::InvalidArgumentError(absl::StrCat("samples [", samples.begin, ", ", samples.end,
                                                   ") are not leased to the sender"));
  }
  Staged& staged = staged_[worker];
  staged.ordinal = apply.ordinal();
  v1::ClockRecord record;
  record.set_worker(worker);
  record.set_clock(apply.clock());
  *record.mutable_samples() = apply.samples();
  record.set_staleness(apply.staleness());
  record.set_square_sum(apply.square_sum());
  record.set_non_finite(apply.non_finite());
  if (combine) {
    double square_sum = 0;
    for (const auto& [partition, norm] : staged.norms) square_sum += norm.square_sum;
    record.set_square_sum(square_sum);
    record.set_non_finite(!staged.offender.empty());
  }
  const bool applied = ApplyStaged(worker, staged, record);
  staged_.erase(worker);
  if (!applied) return absl::OkStatus();  // the job has failed
  SetVersions();
  SendApplied(stream, apply);
  AnswerWaiting();
  applied_();
  return absl::OkStatus();
}

// False if a gradient is not finite and the job fails for it; then nothing of this shard changed.
bool Asynchronous::ApplyStaged(uint64_t worker, Staged& staged, const v1::ClockRecord& record) {
  const bool skip =
      record.non_finite() && state_.job.training().non_finite() == v1::TrainingSpec::SKIP;
  if (!skip && !staged.offender.empty()) {
    state_.Fail(absl::StrCat("update ", record.clock(), ": ", staged.offender,
                             ": the gradient is not finite"));
    return false;
  }
  UpdateArguments arguments = Arguments(staged);
  arguments.gradient_scale *= ClipFactor(state_.job.optimizer().clip_norm(), record.square_sum());
  arguments.staleness = EffectOf(state_.job.training().staleness(), record.staleness());
  for (uint32_t number : state_.view->owned()) {
    if (skip) break;
    std::vector<GradientSum>& sums = staged.sums[number];
    sums.resize(state_.model->BlockCount(number));
    absl::Status written = state_.partitions[number]->Apply(arguments, PulledBy(worker, number),
                                                            &sums, *state_.pool, state_.parallel);
    if (!written.ok()) {
      state_.Fail(absl::StrCat("update ", record.clock(), ": ", written.message()));
      return false;
    }
  }
  if (skip) ++state_.steps_skipped;
  clocks_[worker] = record;
  ledger_.Add(FromProto(record.samples()));
  ++state_.updates;
  arbiter_.OnApplied(worker, record.clock(), FromProto(record.samples()));
  return true;
}

void Asynchronous::SetVersions() {
  for (uint32_t number : state_.view->owned()) {
    state_.partitions[number]->SetVersion(state_.updates);
  }
}

void Asynchronous::SendApplied(Stream& stream, const v1::Apply& apply) {
  v1::Header header = state_.NewHeader();
  header.mutable_applied()->set_clock(apply.clock());
  header.mutable_applied()->set_version(state_.updates);
  state_.Send(stream.id, std::move(header));
  if (apply.pull_next()) SendLive(stream, state_.view->owned(), 0, nullptr);
}

// ---------------------------------------------------------------- pulls

absl::Status Asynchronous::OnPull(Stream& stream, const v1::Pull& pull, const absl::Cord& payload) {
  absl::StatusOr<SharedSelections> rows = SelectionsOf(state_, pull, payload);
  if (!rows.ok()) return rows.status();
  for (uint32_t number : pull.partitions()) {
    if (state_.Find(number) == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          "partition ", number, " is wanted, which this shard does not own, or which is empty"));
    }
  }
  arbiter_.Reached(stream.incarnation(), pull.clock());
  if (MayAnswer(stream, pull)) {
    AnswerPull(stream, pull, rows->get());
  } else {
    if (stream.parked_pulls >= state_.options.max_parked_pulls) {
      return absl::ResourceExhaustedError(
          absl::StrCat("more than ", state_.options.max_parked_pulls, " pulls wait on one stream"));
    }
    ++stream.parked_pulls;
    parked_.push_back({stream.id, pull, *std::move(rows)});
  }
  AnswerWaiting();
  return absl::OkStatus();
}

// R13.
bool Asynchronous::MayAnswer(const Stream& stream, const v1::Pull& pull) const {
  if (state_.view->proto().mode() != v1::BOUNDED_STALENESS) return true;
  const uint64_t bound = state_.job.training().max_staleness();
  if (state_.view->is_arbiter()) {
    return arbiter_.MayPull(stream.incarnation(), pull.clock(), bound);
  }
  if (!state_.rules.WaitForCounted()) return true;
  for (int i = 0; i < pull.counted_size(); ++i) {
    const uint64_t holder = pull.counted(i);
    if (holder == stream.incarnation() || !state_.view->MemberIndex(holder).has_value()) continue;
    const uint64_t from = i < pull.counted_from_size() ? pull.counted_from(i) : 0;
    if (std::max(from, arbiter_.ClockOf(holder)) + bound < pull.clock()) return false;
  }
  return true;
}

void Asynchronous::AnswerPull(Stream& stream, const v1::Pull& pull, const RowSelections* rows) {
  if (state_.view->proto().mode() == v1::BOUNDED_STALENESS && state_.view->is_arbiter()) {
    v1::Header header = state_.NewHeader();
    v1::PullAnswer& answer = *header.mutable_pull_answer();
    answer.set_request(pull.request());
    answer.set_clock(pull.clock());
    for (uint64_t holder : arbiter_.LeaseHolders()) {
      if (holder == stream.incarnation()) continue;
      answer.add_counted(holder);
      answer.add_counted_from(arbiter_.ClockAtLease(holder));
    }
    state_.Send(stream.id, std::move(header));
  }
  const std::vector<uint32_t> wanted(pull.partitions().begin(), pull.partitions().end());
  SendLive(stream, wanted.empty() ? state_.view->owned() : wanted, pull.request(), rows);
}

void Asynchronous::SendLive(Stream& stream, const std::vector<uint32_t>& partitions,
                            uint64_t request, const RowSelections* rows) {
  for (uint32_t number : partitions) {
    KeepPulled(stream.incarnation(), number);
    sender_.SendLive(stream.id, number, state_.updates, state_.partitions[number]->blocks(),
                     request, rows);
  }
}

// A worker pulls only when its last update was applied here, so what it was sent last is what its
// next update is computed on.
void Asynchronous::KeepPulled(uint64_t worker, uint32_t partition) {
  if (state_.job.training().staleness().rule() != v1::TrainingSpec::Staleness::DELAY_COMPENSATION) {
    return;
  }
  std::vector<BlockRef>& pulled = pulled_[worker][partition];
  pulled.clear();
  for (const BlockState& block : state_.partitions[partition]->blocks()) {
    pulled.push_back(block.parameters);
  }
}

const std::vector<BlockRef>* Asynchronous::PulledBy(uint64_t worker, uint32_t partition) const {
  const auto of_worker = pulled_.find(worker);
  if (of_worker == pulled_.end()) return nullptr;
  const auto found = of_worker->second.find(partition);
  return found == of_worker->second.end() ? nullptr : &found->second;
}

// ---------------------------------------------------------------- leases and permits

void Asynchronous::OnLeaseRequest(Stream& stream, const v1::LeaseRequest& request) {
  v1::Header header = state_.NewHeader();
  *header.mutable_lease() =
      arbiter_.RequestLease(stream.incarnation(), request.samples(), request.clock());
  state_.Send(stream.id, std::move(header));
  AnswerWaiting();
}

void Asynchronous::OnPermitRequest(Stream& stream, const v1::PermitRequest& request) {
  if (request.clock() <= AppliedClock(stream.incarnation())) {
    v1::Apply applied;
    applied.set_clock(request.clock());
    SendApplied(stream, applied);
    return;
  }
  arbiter_.RequestPermit(stream.incarnation(), request.clock(), request.base_version());
  AnswerWaiting();
}

// Whoever waits may go on now: clocks, leases or permits have changed.
void Asynchronous::AnswerWaiting() {
  if (state_.MayChange()) {
    for (Arbiter::Answer& answer : arbiter_.TakeAnswers()) {
      Stream* const stream = streams_.FindPeer(answer.worker);
      if (stream == nullptr) continue;  // it asks again on its next one
      v1::Header header = state_.NewHeader();
      if (answer.lease.has_value()) *header.mutable_lease() = *std::move(answer.lease);
      if (answer.permit.has_value()) *header.mutable_permit() = *std::move(answer.permit);
      state_.Send(stream->id, std::move(header));
    }
  }
  if (!state_.rules.WakeParkedPulls()) return;
  std::vector<Parked> parked = std::exchange(parked_, {});
  for (Parked& waiting : parked) {
    Stream* const stream = streams_.Find(waiting.stream);
    if (stream == nullptr) continue;
    if (MayAnswer(*stream, waiting.pull)) {
      --stream->parked_pulls;
      AnswerPull(*stream, waiting.pull, waiting.rows.get());
    } else {
      parked_.push_back(std::move(waiting));
    }
  }
}

std::vector<StreamId> Asynchronous::ParkedStreams() const {
  std::set<StreamId> streams;
  for (const Parked& waiting : parked_) streams.insert(waiting.stream);
  for (uint64_t worker : arbiter_.Waiting()) {
    if (const Stream* stream = streams_.FindPeer(worker); stream != nullptr) {
      streams.insert(stream->id);
    }
  }
  return {streams.begin(), streams.end()};
}

// ---------------------------------------------------------------- views

void Asynchronous::AdoptRecords(const std::vector<v1::ClockRecord>& clocks) {
  for (const v1::ClockRecord& record : clocks) {
    v1::ClockRecord& own = clocks_[record.worker()];
    if (record.clock() > own.clock()) own = record;
  }
}

void Asynchronous::OnInstalled(const v1::Install& install) {
  for (const v1::ClockRecord& winner : install.clocks()) {
    const auto staged = staged_.find(winner.worker());
    const bool behind = staged != staged_.end() && staged->second.clock == winner.clock() &&
                        AppliedClock(winner.worker()) < winner.clock() && IsWhole(staged->second);
    if (behind && state_.rules.ApplyWinners()) {
      if (!ApplyStaged(winner.worker(), staged->second, winner)) return;
    }
    arbiter_.Reached(winner.worker(), winner.clock());
  }
  if (state_.rules.DropStaged()) staged_.clear();
  for (auto it = pulled_.begin(); it != pulled_.end();) {
    it = state_.view->MemberIndex(it->first).has_value() ? std::next(it) : pulled_.erase(it);
  }
  AdoptRecords({install.clocks().begin(), install.clocks().end()});
  if (absl::StatusOr<IntervalSet> applied = IntervalSet::FromProtos(install.ledger().applied());
      applied.ok()) {
    ledger_ = *std::move(applied);
  }
  state_.updates = install.view().first_step();
  SetVersions();
  std::map<uint64_t, IntervalSet> leases;
  for (const v1::LeaseRecord& lease : install.leases()) {
    const Interval rest = FromProto(lease.samples());
    if (!rest.empty()) leases[lease.worker()].Add(rest);
  }
  arbiter_.Reset(ArbiterLimits(), state_.view->members(), ledger_, leases, state_.updates);
}

Arbiter::Limits Asynchronous::ArbiterLimits() const {
  const v1::TrainingSpec& training = state_.job.training();
  Arbiter::Limits limits;
  limits.total_samples = TotalSamples(training.steps(), training.global_batch_size(),
                                      training.epochs(), state_.training_samples);
  if (state_.last_position != 0) {
    limits.total_samples = std::min(limits.total_samples, state_.last_position);
  }
  if (state_.hold != 0) limits.hold = state_.hold;
  limits.update_samples = training.global_batch_size();
  limits.together =
      state_.view->proto().mode() == v1::BOUNDED_STALENESS && training.max_staleness() == 0;
  limits.permits = std::max<uint64_t>(
      1, state_.options.max_staged_bytes / std::max<uint64_t>(1, state_.model->total_bytes()));
  return limits;
}

void Asynchronous::Clear() {
  clocks_.clear();
  staged_.clear();
  pulled_.clear();
  ledger_ = IntervalSet();
  arbiter_ = Arbiter(&state_.rules);
  parked_.clear();
}

void Asynchronous::FillPauseReply(v1::PauseReply* reply) const {
  for (const auto& [worker, record] : clocks_) *reply->add_clocks() = record;
  for (const auto& [worker, staged] : staged_) {
    if (!IsWhole(staged)) continue;
    v1::StagedUpdate& entry = *reply->add_staged();
    entry.set_worker(worker);
    entry.set_clock(staged.clock);
  }
  if (state_.view->is_arbiter()) {
    for (const auto& [worker, lease] : arbiter_.leases()) {
      for (const Interval& rest : lease.Intervals()) {
        v1::LeaseRecord& entry = *reply->add_leases();
        entry.set_worker(worker);
        *entry.mutable_samples() = ToProto(rest);
      }
    }
  }
  ledger_.ToProtos(reply->mutable_ledger()->mutable_applied());
  reply->mutable_ledger()->set_updates(state_.updates);
}

void Asynchronous::FillRecords(PartitionContent* content) const {
  for (const auto& [worker, record] : clocks_) content->clocks.push_back(record);
}

bool Asynchronous::IsHeld() const {
  return !state_.view->synchronous() && state_.hold != 0 && ledger_.Count() >= state_.hold;
}

void Asynchronous::FillProgress(v1::ShardProgress* progress) const {
  progress->set_samples(ledger_.Count());
  if (state_.view->is_arbiter()) progress->set_leaseholders(arbiter_.LeaseHolders().size());
}

}  // namespace sluice::ps
