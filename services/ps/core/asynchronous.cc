#include "services/ps/core/asynchronous.h"

#include <algorithm>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "services/ps/core/norm_exchange.h"
#include "services/ps/core/staleness.h"

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
  switch (header.body_case()) {
    case v1::Header::kPush:
      return OnPush(stream, header.push(), payload);
    case v1::Header::kApply:
      return OnApply(stream, header.apply());
    case v1::Header::kPull:
      return OnPull(stream, header.pull(), payload);
    case v1::Header::kLeaseRequest:
      return OnLeaseRequest(stream, header.lease_request());
    case v1::Header::kPermitRequest:
      return OnPermitRequest(stream, header.permit_request());
    default:
      return absl::InvalidArgumentError(absl::StrCat(
          "frame ", header.body_case(), " is not for a shard in asynchronous training"));
  }
}

UpdateFacts Asynchronous::FactsOf(uint64_t worker) const {
  UpdateFacts facts;
  facts.applied = AppliedClock(worker);
  const uint64_t recorded = std::max(facts.applied, arbiter_.ClockOf(worker));
  facts.highest_clock = HighestClock(state_, recorded, reported_.count(worker) > 0);
  facts.holds_lease = arbiter_.HoldsLease(worker);
  facts.permit = arbiter_.PermitOf(worker);
  const auto staged = staged_.find(worker);
  if (staged == staged_.end()) return facts;
  facts.staged = staged->second.clock;
  facts.whole = IsWhole(staged->second);
  facts.named = !staged->second.complete.empty();
  facts.samples = staged->second.samples;
  return facts;
}

void Asynchronous::AddPush(const v1::Push& push, const Staged* staged, UpdateFacts* facts) const {
  facts->staged = push.clock();
  if (push.complete().empty()) return;
  facts->samples = push.samples();
  size_t complete = staged != nullptr ? staged->complete.size() : 0;
  for (uint32_t number : push.complete()) {
    if (staged == nullptr || staged->complete.count(number) == 0) ++complete;
  }
  facts->whole = complete == state_.view->owned().size();
}

uint64_t Asynchronous::AppliedClock(uint64_t worker) const {
  const auto found = clocks_.find(worker);
  return found == clocks_.end() ? 0 : found->second.clock();
}

// ---------------------------------------------------------------- staging

absl::Status Asynchronous::OnPush(Stream& stream, const v1::Push& push, const absl::Cord& payload) {
  const uint64_t worker = stream.incarnation();
  UpdateFacts facts = FactsOf(worker);
  if (absl::Status fits = CheckUpdatePush(state_, facts, push); !fits.ok()) return fits;

  const bool repeated = push.clock() <= facts.applied && state_.rules.IgnoreAppliedClocks();
  if (repeated) {
    state_.repeated_blocks += push.blocks_size();
    if (push.has_apply()) {
      SendApplied(stream, push.apply());
    } else if (push.complete_size() > 0 || state_.view->owned().empty()) {
      SendStaged(stream, push.clock(), nullptr);
    }
    return absl::OkStatus();
  }

  if (push.has_apply()) {
    const auto before = staged_.find(worker);
    AddPush(push, before != staged_.end() ? &before->second : nullptr, &facts);
    absl::Status fits = CheckApply(state_, facts, push.apply(), ledger_, nullptr);
    if (fits.ok()) fits = CheckLeased(worker, push.apply());
    if (!fits.ok()) return fits;
  }

  std::vector<ReceivedBlock> blocks;
  if (absl::Status split = SplitPush(state_, worker, push, payload, &blocks); !split.ok()) {
    return split;
  }

  Staged fresh;
  const auto known = staged_.find(worker);
  Staged& staged = known != staged_.end() ? known->second : fresh;
  if (absl::Status taken = Stage(staged, push, blocks); !taken.ok()) return taken;
  staged.clock = push.clock();
  Staged& kept = known != staged_.end() ? staged : staged_[worker] = std::move(fresh);

  if (push.has_apply()) {
    Apply(stream, push.apply(), /*combine=*/true);
    return absl::OkStatus();
  }

  const bool said_all = push.complete_size() > 0 || state_.view->owned().empty();
  if (said_all && IsWhole(kept)) SendStaged(stream, push.clock(), &kept);
  return absl::OkStatus();
}

absl::Status Asynchronous::Stage(Staged& staged, const v1::Push& push,
                                 const std::vector<ReceivedBlock>& blocks) {
  // All blocks are checked before any is added: a frame that violates the protocol changes nothing.
  for (const ReceivedBlock& block : blocks) {
    const BlockInfo& info = state_.model->block(block.block);
    if (info.kind == v1::COUNTER) {
      return absl::InvalidArgumentError(
          absl::StrCat("nothing can be pushed to counter '", state_.model->TensorName(info), "'"));
    }
    const bool repeated = staged.received.count({block.block, push.microbatches().begin()}) > 0;
    if (!repeated && staged.complete.count(push.partition()) > 0) {
      return absl::InvalidArgumentError(absl::StrCat(state_.model->BlockName(info),
                                                     " arrives after the completion of partition ",
                                                     push.partition()));
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

// R8: at the arbiter an update covers what its worker has leased.
absl::Status Asynchronous::CheckLeased(uint64_t worker, const v1::Apply& apply) const {
  const Interval samples = FromProto(apply.samples());
  if (!state_.view->is_arbiter() || !state_.rules.RepeatLeases() ||
      arbiter_.Covers(worker, samples)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("samples [", samples.begin, ", ", samples.end,
                                                 ") are not leased to the sender"));
}

absl::Status Asynchronous::OnApply(Stream& stream, const v1::Apply& apply) {
  const uint64_t worker = stream.incarnation();
  const UpdateFacts facts = FactsOf(worker);

  if (apply.clock() <= facts.applied && state_.rules.IgnoreAppliedClocks()) {
    SendApplied(stream, apply);
    return absl::OkStatus();
  }

  std::optional<GradientNorm> own;
  if (const auto staged = staged_.find(worker);
      staged != staged_.end() && !staged->second.norms.empty()) {
    own.emplace();
    for (const auto& [partition, norm] : staged->second.norms) {
      own->square_sum += norm.square_sum;
      own->non_finite = own->non_finite || norm.non_finite;
    }
  }

  absl::Status fits = CheckApply(state_, facts, apply, ledger_, own.has_value() ? &*own : nullptr);
  if (fits.ok()) fits = CheckLeased(worker, apply);
  if (!fits.ok()) return fits;
  Apply(stream, apply, /*combine=*/false);
  return absl::OkStatus();
}

void Asynchronous::Apply(Stream& stream, const v1::Apply& apply, bool combine) {
  const uint64_t worker = stream.incarnation();
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
  if (!applied) return;  // the job has failed

  SetVersions();
  SendApplied(stream, apply);
  AnswerWaiting();
  applied_();
}

// False if a gradient is not finite and the job fails; then nothing on this shard has changed.
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
  if (arbiter_.HoldsLease(worker)) {
    progressed_[worker] = state_.now;
  } else {
    progressed_.erase(worker);
  }
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
  const uint64_t worker = stream.incarnation();
  if (absl::Status fits = CheckLivePull(state_, FactsOf(worker), pull); !fits.ok()) return fits;
  absl::StatusOr<SharedSelections> rows = SelectionsOf(state_, stream, pull, payload);
  if (!rows.ok()) return rows.status();
  Hear(worker, pull.clock());

  if (MayAnswer(stream, pull)) {
    AnswerPull(stream, pull, rows->get());
  } else {
    if (stream.parked_pulls >= state_.options.max_parked_pulls) {
      return state_.Full(
          Bound::kParkedPulls,
          absl::StrCat("more than ", state_.options.max_parked_pulls, " pulls wait on one stream"));
    }
    absl::StatusOr<Charge> charge =
        ChargeParked(state_, stream, sizeof(Parked) + pull.SpaceUsedLong());
    if (!charge.ok()) return charge.status();
    ++stream.parked_pulls;
    parked_.push_back({stream.id, pull, *std::move(rows), *std::move(charge)});
  }
  AnswerWaiting();
  return absl::OkStatus();
}

// Records the clock that the worker has sent.
void Asynchronous::Hear(uint64_t worker, uint64_t clock) {
  arbiter_.Reached(worker, clock);
  reported_.insert(worker);
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
    const uint64_t reached = std::max(from, arbiter_.ClockOf(holder));
    if (pull.clock() > reached && pull.clock() - reached > bound) return false;
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

// A worker pulls only after its last update was applied here, so it computes its next update on the
// parameters that it was sent last.
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

absl::Status Asynchronous::OnLeaseRequest(Stream& stream, const v1::LeaseRequest& request) {
  const uint64_t worker = stream.incarnation();
  if (absl::Status fits = CheckLeaseRequest(state_, FactsOf(worker), request); !fits.ok()) {
    return fits;
  }
  Hear(worker, request.clock());
  v1::Header header = state_.NewHeader();
  *header.mutable_lease() = arbiter_.RequestLease(worker, request.samples(), request.clock());
  if (arbiter_.HoldsLease(worker)) progressed_.try_emplace(worker, state_.now);
  state_.Send(stream.id, std::move(header));
  AnswerWaiting();
  return absl::OkStatus();
}

absl::Status Asynchronous::OnPermitRequest(Stream& stream, const v1::PermitRequest& request) {
  const UpdateFacts facts = FactsOf(stream.incarnation());
  if (absl::Status fits = CheckPermitRequest(state_, facts, request); !fits.ok()) return fits;
  if (request.clock() <= facts.applied) {
    v1::Apply applied;
    applied.set_clock(request.clock());
    SendApplied(stream, applied);
    return absl::OkStatus();
  }
  arbiter_.RequestPermit(stream.incarnation(), request.clock(), request.base_version());
  AnswerWaiting();
  return absl::OkStatus();
}

// Answers waiting requests: clocks, leases or permits have changed.
void Asynchronous::AnswerWaiting() {
  if (state_.MayChange()) {
    for (Arbiter::Answer& answer : arbiter_.TakeAnswers()) {
      Stream* const stream = streams_.FindWorker(answer.worker);
      if (stream == nullptr) continue;  // the worker repeats the request on its next stream
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
    if (const Stream* stream = streams_.FindWorker(worker); stream != nullptr) {
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

  // A new view is not progress: each checkpoint causes one.
  std::map<uint64_t, absl::Time> progressed;
  for (const auto& [worker, lease] : leases) {
    const auto known = progressed_.find(worker);
    progressed[worker] = known == progressed_.end() ? state_.now : known->second;
  }
  progressed_ = std::move(progressed);
}

Arbiter::Limits Asynchronous::ArbiterLimits() const {
  const v1::TrainingSpec& training = state_.job.training();
  Arbiter::Limits limits;
  limits.total_samples = state_.TotalSamples();
  if (state_.last_position != 0) {
    limits.total_samples = std::min(limits.total_samples, state_.last_position);
  }
  if (state_.barrier != 0) limits.barrier = state_.barrier;
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
  reported_.clear();
  arbiter_ = Arbiter(&state_.rules);
  progressed_.clear();
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

std::vector<uint64_t> Asynchronous::Awaited() const {
  const absl::Duration limit = absl::Seconds(state_.job.timeouts().gradients());
  std::vector<uint64_t> awaited;
  if (limit <= absl::ZeroDuration() || !state_.MayChange() || !state_.view->is_arbiter() ||
      state_.view->proto().mode() != v1::ASYNCHRONOUS) {
    return awaited;
  }
  const std::vector<uint64_t> waiting = arbiter_.Waiting();  // for a permit that other workers hold
  for (const auto& [worker, since] : progressed_) {
    if (state_.now < since + limit) continue;
    if (std::find(waiting.begin(), waiting.end(), worker) == waiting.end()) {
      awaited.push_back(worker);
    }
  }
  return awaited;
}

bool Asynchronous::IsHeld() const {
  return !state_.view->synchronous() && state_.barrier != 0 && ledger_.Count() >= state_.barrier;
}

void Asynchronous::FillProgress(v1::ShardProgress* progress) const {
  progress->set_samples(ledger_.Count());
  if (state_.view->is_arbiter()) progress->set_leaseholders(arbiter_.LeaseHolders().size());
  for (uint64_t worker : Awaited()) progress->add_awaited(worker);
}

}  // namespace sluice::ps
