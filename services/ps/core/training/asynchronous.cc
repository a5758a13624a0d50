#include "services/ps/core/training/asynchronous.h"

#include <algorithm>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "services/common/check.h"
#include "services/common/status_macros.h"
#include "services/ps/core/state/update_arguments.h"

namespace sluice::ps {

Asynchronous::Asynchronous(const ShardState* state, Outbox* out, JobFailure* failure,
                           PartitionMap* partitions, StreamTable* streams, DataSender* sender,
                           CopySender* copies, std::function<void()> applied)
    : state_(*state),
      out_(*out),
      failure_(*failure),
      partitions_(*partitions),
      streams_(*streams),
      sender_(*sender),
      copies_(*copies),
      applied_(std::move(applied)),
      arbiter_(&state->rules()) {}

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
  SLUICE_DCHECK(staged->second.clock > facts.applied || state_.failed(),
                "an update is staged only until it is applied");
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
  facts->whole = complete == state_.view()->owned().size();
}

uint64_t Asynchronous::AppliedClock(uint64_t worker) const {
  const auto found = clocks_.find(worker);
  return found == clocks_.end() ? 0 : found->second.clock();
}

// ---------------------------------------------------------------- staging

absl::Status Asynchronous::OnPush(Stream& stream, const v1::Push& push, const absl::Cord& payload) {
  const uint64_t worker = stream.incarnation();
  UpdateFacts facts = FactsOf(worker);
  RETURN_IF_ERROR(CheckUpdatePush(state_, facts, push));

  if (push.has_apply() && state_.view()->proto().shards_size() > 1 && copies_.HasReceivers()) {
    return absl::InvalidArgumentError(
        "a push is the Apply, and the shard's partitions have copies");
  }
  const bool repeated = push.clock() <= facts.applied && state_.rules().IgnoreAppliedClocks();
  if (repeated) {
    out_.CountRepeatedBlocks(static_cast<uint64_t>(push.blocks_size()));
    if (push.has_apply()) {
      AnswerApply(stream, push.apply());
    } else if (push.complete_size() > 0 || state_.view()->owned().empty()) {
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
  RETURN_IF_ERROR(SplitPush(state_, worker, push, payload, &blocks));

  Staged fresh;
  const auto known = staged_.find(worker);
  Staged& staged = known != staged_.end() ? known->second : fresh;
  RETURN_IF_ERROR(Stage(staged, push, blocks));
  staged.clock = push.clock();
  Staged& kept = known != staged_.end() ? staged : staged_[worker] = std::move(fresh);

  if (push.has_apply()) {
    Apply(stream, push.apply(), /*combine=*/true);
    return absl::OkStatus();
  }

  const bool said_all = push.complete_size() > 0 || state_.view()->owned().empty();
  if (said_all && IsWhole(kept)) AckStaged(stream, kept);
  return absl::OkStatus();
}

absl::Status Asynchronous::Stage(Staged& staged, const v1::Push& push,
                                 const std::vector<ReceivedBlock>& blocks) {
  // All blocks are checked before any is added: a frame that violates the protocol changes nothing.
  for (const ReceivedBlock& block : blocks) {
    const BlockInfo& info = state_.model()->block(block.block);
    if (info.kind == v1::COUNTER) {
      return absl::InvalidArgumentError(absl::StrCat("nothing can be pushed to counter '",
                                                     state_.model()->TensorName(info), "'"));
    }
    const bool repeated = staged.received.count({block.block, push.microbatches().begin()}) > 0;
    if (!repeated && staged.complete.count(push.partition()) > 0) {
      return absl::InvalidArgumentError(absl::StrCat(state_.model()->BlockName(info),
                                                     " arrives after the completion of partition ",
                                                     push.partition()));
    }
  }
  for (const ReceivedBlock& block : blocks) {
    const BlockInfo& info = state_.model()->block(block.block);
    if (!staged.received.insert({block.block, push.microbatches().begin()}).second &&
        state_.rules().IgnoreRepeatedBlocks()) {
      out_.CountRepeatedBlocks(1);
      continue;
    }
    std::vector<GradientSum>& sums = staged.sums[push.partition()];
    sums.resize(state_.model()->BlockCount(push.partition()));
    RETURN_IF_ERROR(sums[block.block - state_.model()->FirstBlock(push.partition())].Add(
        info, block.codec, block.payload, *state_.pool()));
  }
  if (push.complete().empty()) return absl::OkStatus();
  const bool was_whole = IsWhole(staged);
  staged.complete.insert(push.complete().begin(), push.complete().end());
  staged.samples = push.samples();
  staged.microbatches = push.microbatch_count();
  staged.weight = WeightOf(state_.rules(), push);
  staged.ordinal = push.ordinal();
  if (was_whole || !IsWhole(staged)) return absl::OkStatus();
  if (IsWeightless(state_.job(), staged.weight)) DropGradients(staged);
  return NeedsNorms(state_.job()) ? Measure(staged) : absl::OkStatus();
}

void Asynchronous::DropGradients(Staged& staged) const {
  for (auto& [number, sums] : staged.sums) {
    for (size_t place = 0; place < sums.size(); ++place) {
      const BlockInfo& info =
          state_.model()->block(state_.model()->FirstBlock(number) + static_cast<uint32_t>(place));
      if (info.kind == v1::PARAMETER) sums[place].Clear();
    }
  }
}

bool Asynchronous::IsWhole(const Staged& staged) const {
  return staged.complete.size() == state_.view()->owned().size();
}

absl::Status Asynchronous::Measure(Staged& staged) {
  for (uint32_t number : state_.view()->owned()) {
    GradientNorm norm;
    std::optional<uint32_t> offender;
    std::vector<GradientSum>& sums = staged.sums[number];
    sums.resize(state_.model()->BlockCount(number));
    RETURN_IF_ERROR(partitions_.at(number).MeasureSums(Arguments(staged).gradient_scale, &sums,
                                                       *state_.pool(), state_.parallel(), &norm,
                                                       &offender));
    staged.norms[number] = norm;
    if (offender.has_value() && staged.offender.empty()) {
      staged.offender = state_.model()->BlockName(state_.model()->block(*offender));
    }
  }
  return absl::OkStatus();
}

UpdateArguments Asynchronous::Arguments(const Staged& staged) const {
  UpdateArguments arguments;
  arguments.schedule_step = staged.ordinal;
  arguments.gradient_scale = GradientScale(state_.job(), staged.weight);
  if (staged.microbatches > 0) {
    arguments.buffer_scale = 1.0 / static_cast<double>(staged.microbatches);
  }
  arguments.check_finite = state_.job().training().non_finite() == v1::TrainingSpec::FAIL;
  // A view begins with its decisions, and has no others.
  arguments.learning_rate_factor = state_.barrier().LearningRateFactorAt(0);
  return arguments;
}

void Asynchronous::SendStaged(Stream& stream, uint64_t clock, const Staged* staged) {
  SLUICE_DCHECK(staged == nullptr || !NeedsNorms(state_.job()) ||
                    staged->norms.size() == state_.view()->owned().size(),
                "R6: an acked update is measured whole");
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
  out_.Send(stream.id, std::move(header));
}

// ---------------------------------------------------------------- applying

// R8: at the arbiter an update covers what its worker has leased.
absl::Status Asynchronous::CheckLeased(uint64_t worker, const v1::Apply& apply) const {
  const Interval samples = FromProto(apply.samples());
  if (!state_.view()->is_arbiter() || !state_.rules().RepeatLeases() ||
      arbiter_.Covers(worker, samples)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("samples [", samples.begin, ", ", samples.end,
                                                 ") are not leased to the sender"));
}

absl::Status Asynchronous::OnApply(Stream& stream, const v1::Apply& apply) {
  const uint64_t worker = stream.incarnation();
  const UpdateFacts facts = FactsOf(worker);

  if (apply.clock() <= facts.applied && state_.rules().IgnoreAppliedClocks()) {
    AnswerApply(stream, apply);
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
  if (const auto staged = staged_.find(worker);
      staged != staged_.end() && !CopiesHold(worker, staged->second)) {
    return absl::InvalidArgumentError(
        absl::StrCat("Apply of update ", apply.clock(), ", which was not acked"));
  }
  Apply(stream, apply, /*combine=*/false);
  return absl::OkStatus();
}

void Asynchronous::Apply(Stream& stream, const v1::Apply& apply, bool combine) {
  const uint64_t worker = stream.incarnation();
  SLUICE_DCHECK(state_.MayChange(), "R2: a shard that keeps a promise applies nothing");
  SLUICE_DCHECK(staged_.count(worker) > 0 || state_.view()->owned().empty(),
                "an update is staged before it is applied");
  Staged& staged = staged_[worker];
  SLUICE_DCHECK(IsWhole(staged), "R6: an update is applied whole");
  staged.ordinal = apply.ordinal();

  v1::ClockRecord record = RecordOf(worker, apply);
  if (combine) {
    double square_sum = 0;
    for (const auto& [partition, norm] : staged.norms) square_sum += norm.square_sum;
    record.set_square_sum(square_sum);
    record.set_non_finite(!staged.offender.empty());
  }
  const uint64_t samples_before = ledger_.Count();

  const bool applied = ApplyStaged(worker, staged, record);
  staged_.erase(worker);
  if (!applied) return;  // the job has failed
  SLUICE_DCHECK(ledger_.Count() == samples_before + FromProto(apply.samples()).size(),
                "a sample is applied once");

  SetVersions();
  SendApplyToCopies(worker, apply);
  AnswerApply(stream, apply);
  AnswerWaiting();
  applied_();
}

// False if a gradient is not finite and the job fails; then nothing on this shard has changed.
bool Asynchronous::ApplyStaged(uint64_t worker, Staged& staged, const v1::ClockRecord& record) {
  SLUICE_DCHECK(record.clock() > AppliedClock(worker), "R8: a clock is applied once");
  SLUICE_DCHECK(record.clock() == staged.clock || state_.view()->owned().empty(),
                "an update is applied under its own clock");
  const bool skip = IsSkipped(state_.job(), record);
  if (!skip && !staged.offender.empty()) {
    failure_.Fail(absl::StrCat("update ", record.clock(), ": ", staged.offender,
                               ": the gradient is not finite"));
    return false;
  }

  const UpdateArguments arguments = ArgumentsFor(state_.job(), Arguments(staged), record);
  for (uint32_t number : state_.view()->owned()) {
    if (skip) break;
    std::vector<GradientSum>& sums = staged.sums[number];
    sums.resize(state_.model()->BlockCount(number));
    absl::Status written = partitions_.at(number).Apply(arguments, PulledBy(worker, number), &sums,
                                                        *state_.pool(), state_.parallel());
    if (!written.ok()) {
      failure_.Fail(absl::StrCat("update ", record.clock(), ": ", written.message()));
      return false;
    }
  }

  if (skip) out_.CountSkippedStep();
  clocks_[worker] = record;
  ledger_.Add(FromProto(record.samples()));
  ++updates_.count;

  arbiter_.OnApplied(worker, record.clock(), FromProto(record.samples()));
  if (arbiter_.HoldsLease(worker)) {
    progressed_[worker] = state_.now();
  } else {
    progressed_.erase(worker);
  }
  return true;
}

void Asynchronous::SetVersions() {
  for (uint32_t number : state_.view()->owned()) {
    partitions_.at(number).SetVersion(state_.updates());
  }
}

void Asynchronous::AnswerApply(Stream& stream, const v1::Apply& apply) {
  if (copies_.log().Awaits({CopyWait::kApplied, stream.incarnation()})) return;
  SendApplied(stream, apply.clock(), apply.pull_next());
}

void Asynchronous::SendApplied(Stream& stream, uint64_t clock, bool pull_next) {
  SLUICE_DCHECK(clock <= AppliedClock(stream.incarnation()),
                "an update is acked as applied once it is applied");
  v1::Header header = state_.NewHeader();
  header.mutable_applied()->set_clock(clock);
  header.mutable_applied()->set_version(state_.updates());
  out_.Send(stream.id, std::move(header));
  if (pull_next) SendLive(stream, state_.view()->owned(), 0, nullptr);
}

// ---------------------------------------------------------------- pulls

absl::Status Asynchronous::OnPull(Stream& stream, const v1::Pull& pull, const absl::Cord& payload) {
  const uint64_t worker = stream.incarnation();
  RETURN_IF_ERROR(CheckLivePull(state_, FactsOf(worker), pull));
  ASSIGN_OR_RETURN(SharedSelections rows, SelectionsOf(state_, &out_, stream, pull, payload));
  RecordClock(worker, pull.clock());

  if (MayAnswer(stream, pull)) {
    AnswerPull(stream, pull, rows.get());
  } else {
    if (*stream.parked_pulls >= state_.options().max_parked_pulls) {
      return out_.Full(Bound::kParkedPulls,
                       absl::StrCat("more than ", state_.options().max_parked_pulls,
                                    " pulls wait on one stream"));
    }
    ASSIGN_OR_RETURN(Charge memory,
                     ChargeParked(state_, &out_, stream, sizeof(Parked) + pull.SpaceUsedLong()));
    parked_.push_back(
        {stream.id, pull, std::move(rows), std::move(memory), Charge(stream.parked_pulls, 1)});
  }
  AnswerWaiting();
  return absl::OkStatus();
}

// Records the clock that the worker has sent.
void Asynchronous::RecordClock(uint64_t worker, uint64_t clock) {
  arbiter_.Reached(worker, clock);
  reported_.insert(worker);
}

// R13.
bool Asynchronous::MayAnswer(const Stream& stream, const v1::Pull& pull) const {
  if (state_.view()->proto().mode() != v1::BOUNDED_STALENESS) return true;
  const uint64_t bound = state_.job().training().max_staleness();
  if (state_.view()->is_arbiter()) {
    return arbiter_.MayPull(stream.incarnation(), pull.clock(), bound);
  }
  if (!state_.rules().WaitForCounted()) return true;
  for (int i = 0; i < pull.counted_size(); ++i) {
    const uint64_t holder = pull.counted(i);
    if (holder == stream.incarnation() || !state_.view()->MemberIndex(holder).has_value()) continue;
    const uint64_t from = i < pull.counted_from_size() ? pull.counted_from(i) : 0;
    const uint64_t reached = std::max(from, arbiter_.ClockOf(holder));
    if (pull.clock() > reached && pull.clock() - reached > bound) return false;
  }
  return true;
}

void Asynchronous::AnswerPull(Stream& stream, const v1::Pull& pull, const RowSelections* rows) {
  if (state_.view()->proto().mode() == v1::BOUNDED_STALENESS && state_.view()->is_arbiter()) {
    v1::Header header = state_.NewHeader();
    v1::PullAnswer& answer = *header.mutable_pull_answer();
    answer.set_request(pull.request());
    answer.set_clock(pull.clock());
    for (uint64_t holder : arbiter_.LeaseHolders()) {
      if (holder == stream.incarnation()) continue;
      answer.add_counted(holder);
      answer.add_counted_from(arbiter_.ClockAtLease(holder));
    }
    out_.Send(stream.id, std::move(header));
  }
  const std::vector<uint32_t> wanted(pull.partitions().begin(), pull.partitions().end());
  SendLive(stream, wanted.empty() ? state_.view()->owned() : wanted, pull.request(), rows);
}

void Asynchronous::SendLive(Stream& stream, const std::vector<uint32_t>& partitions,
                            uint64_t request, const RowSelections* rows) {
  for (uint32_t number : partitions) {
    KeepPulled(stream.incarnation(), number);
    sender_.SendLive(stream.id, number, state_.updates(), partitions_.at(number).blocks(), request,
                     rows);
  }
}

// A worker pulls only after its last update was applied here, so it computes its next update on the
// parameters that it was sent last.
void Asynchronous::KeepPulled(uint64_t worker, uint32_t partition) {
  if (state_.job().training().staleness().rule() !=
      v1::TrainingSpec::Staleness::DELAY_COMPENSATION) {
    return;
  }
  std::vector<BlockRef>& pulled = pulled_[worker][partition];
  pulled.clear();
  for (const BlockState& block : partitions_.at(partition).blocks()) {
    pulled.push_back(block.parameters);
  }
}

const std::vector<BlockRef>* Asynchronous::PulledBy(uint64_t worker, uint32_t partition) const {
  const auto of_worker = pulled_.find(worker);
  if (of_worker == pulled_.end()) return nullptr;
  const auto found = of_worker->second.find(partition);
  if (found == of_worker->second.end()) return nullptr;
  SLUICE_DCHECK(found->second.size() == state_.model()->BlockCount(partition),
                "a pulled version is kept whole");
  return &found->second;
}

// ---------------------------------------------------------------- leases and permits

absl::Status Asynchronous::OnLeaseRequest(Stream& stream, const v1::LeaseRequest& request) {
  const uint64_t worker = stream.incarnation();
  RETURN_IF_ERROR(CheckLeaseRequest(state_, FactsOf(worker), request));
  RecordClock(worker, request.clock());
  const bool held = arbiter_.HoldsLease(worker);
  const v1::Lease lease = arbiter_.RequestLease(worker, request.samples(), request.clock());
  if (arbiter_.HoldsLease(worker)) progressed_.try_emplace(worker, state_.now());
  if (!held && arbiter_.HoldsLease(worker)) {
    RecordAtCopies(worker, lease);
  } else if (!copies_.log().Awaits({CopyWait::kLease, worker})) {
    SendLease(stream, lease);
  }
  AnswerWaiting();
  return absl::OkStatus();
}

absl::Status Asynchronous::OnPermitRequest(Stream& stream, const v1::PermitRequest& request) {
  const UpdateFacts facts = FactsOf(stream.incarnation());
  RETURN_IF_ERROR(CheckPermitRequest(state_, facts, request));
  if (request.clock() <= facts.applied) {
    v1::Apply applied;
    applied.set_clock(request.clock());
    AnswerApply(stream, applied);
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
      SLUICE_DCHECK(answer.lease.has_value() != answer.permit.has_value(),
                    "an answer is a lease or a permit");
      Stream* const stream = streams_.Find(v1::WORKER, answer.worker);
      if (stream == nullptr) continue;  // the worker repeats the request on its next stream
      v1::Header header = state_.NewHeader();
      if (answer.lease.has_value()) *header.mutable_lease() = *std::move(answer.lease);
      if (answer.permit.has_value()) *header.mutable_permit() = *std::move(answer.permit);
      out_.Send(stream->id, std::move(header));
    }
  }

  if (!state_.rules().WakeParkedPulls()) return;
  std::vector<Parked> parked = std::exchange(parked_, {});
  for (Parked& waiting : parked) {
    Stream* const stream = streams_.Find(waiting.stream);
    if (stream == nullptr) continue;
    if (MayAnswer(*stream, waiting.pull)) {
      AnswerPull(*stream, waiting.pull, waiting.rows.get());
    } else {
      parked_.push_back(std::move(waiting));
    }
  }
}

std::vector<StreamId> Asynchronous::ParkedStreams() const {
  SLUICE_DCHECK(parked_.empty() || state_.view()->proto().mode() == v1::BOUNDED_STALENESS,
                "a pull waits for slow workers only where staleness is bounded");
  std::set<StreamId> streams;
  for (const Parked& waiting : parked_) streams.insert(waiting.stream);
  for (uint64_t worker : arbiter_.Waiting()) {
    if (const Stream* stream = streams_.Find(v1::WORKER, worker); stream != nullptr) {
      streams.insert(stream->id);
    }
  }
  return {streams.begin(), streams.end()};
}

}  // namespace sluice::ps
