#include "services/ps/core/training/synchronous.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "services/common/check.h"
#include "services/common/status_macros.h"
#include "services/ps/core/replication/log.h"
#include "services/ps/core/session/frame_checks.h"
#include "services/ps/core/state/update_arguments.h"

namespace sluice::ps {

Synchronous::Synchronous(const ShardState* state, Outbox* out, JobFailure* failure,
                         PartitionMap* partitions, StreamTable* streams, DataSender* sender,
                         CopySender* copies, Events events)
    : state_(*state),
      out_(*out),
      failure_(*failure),
      partitions_(*partitions),
      streams_(*streams),
      sender_(*sender),
      copies_(*copies),
      events_(std::move(events)),
      norms_(state, out),
      set_(state, out),
      sums_(state, out, failure, streams) {}

absl::Status Synchronous::OnPush(Stream& stream, const v1::Push& push, const absl::Cord& payload) {
  SLUICE_DCHECK(state_.MayChange(), "R2: a shard that keeps a promise takes no contribution");
  const size_t member = *state_.view()->MemberIndex(stream.incarnation());
  // Everything is checked before anything changes.
  RETURN_IF_ERROR(CheckStepPush(state_, member, push));

  std::vector<ReceivedBlock> blocks;
  RETURN_IF_ERROR(SplitPush(state_, stream.incarnation(), push, payload, &blocks));

  const Partition::Source source = SourceOf(member, push);
  ASSIGN_OR_RETURN(const std::vector<const ReceivedBlock*> fresh, FreshOf(source, push, blocks));
  out_.CountRepeatedBlocks(blocks.size() - fresh.size());
  NoteHolder(member, push.step());
  RETURN_IF_ERROR(Contribute(source, push, fresh));

  if (push.pull_next()) {
    for (uint32_t number : push.complete()) {
      RETURN_IF_ERROR(AnswerOrPark(stream, *state_.Find(number), push.step() + 1, 0, nullptr));
    }
  }

  if (push.complete_size() > 0 && set_.active() && set_.Decide()) TryCloseAll();
  for (uint32_t number : push.complete()) TryClose(partitions_.at(number));
  return absl::OkStatus();
}

// A member that pushes a step holds every partition at that step, so every shard has closed the
// previous step. This shard cannot check that, and a single member may be wrong. So a version is
// committed only when all members have pushed its step; with stragglers dropped, all but the number
// that a step may close without. Until then its undo is kept, and a view change can take the
// version back.
void Synchronous::NoteHolder(size_t member, uint64_t step) {
  SLUICE_DCHECK(held_.size() == state_.view()->members(), "held steps are those of the members");
  if (step <= held_[member]) return;
  held_[member] = step;
  std::vector<uint64_t> held = held_;
  size_t absent = 0;
  if (set_.active()) absent = state_.job().training().stragglers().backup();
  if (!state_.rules().AwaitEveryHolder()) absent = held.size();
  absent = std::min(absent, held.size() - 1);
  std::nth_element(held.begin(), held.begin() + static_cast<std::ptrdiff_t>(absent), held.end());
  if (held[absent] > state_.committed()) Commit(held[absent]);
}

Partition::Source Synchronous::SourceOf(size_t member, const v1::Push& push) const {
  Partition::Source source;
  source.member = member;
  source.microbatches = FromProto(push.microbatches());
  source.tree_node = state_.job().training().bit_exact();
  source.allow_repeats = !state_.rules().IgnoreRepeatedBlocks();
  return source;
}

absl::StatusOr<std::vector<const ReceivedBlock*>> Synchronous::FreshOf(
    const Partition::Source& source, const v1::Push& push,
    const std::vector<ReceivedBlock>& blocks) const {
  std::vector<const ReceivedBlock*> fresh;
  fresh.reserve(blocks.size());
  for (const ReceivedBlock& block : blocks) {
    const Partition& partition = *state_.Find(push.partition());
    // The step has closed: the sender repeats blocks because it cannot know whether they arrived.
    absl::StatusOr<bool> is_new = false;
    if (push.step() == partition.version()) is_new = partition.IsNew(source, block);
    if (!is_new.ok()) return is_new.status();
    if (*is_new) fresh.push_back(&block);
  }
  return fresh;
}

absl::Status Synchronous::Contribute(const Partition::Source& source, const v1::Push& push,
                                     const std::vector<const ReceivedBlock*>& fresh) {
  for (const ReceivedBlock* block : fresh) {
    Partition& partition = partitions_.at(push.partition());
    SLUICE_DCHECK(push.step() == partition.version(),
                  "a block is added to the step that it belongs to");
    RETURN_IF_ERROR(partition.Add(source, *block, *state_.pool()));
  }
  for (uint32_t number : push.complete()) {
    Partition& partition = partitions_.at(number);
    if (push.step() != partition.version()) continue;
    RETURN_IF_ERROR(partition.Complete(
        source.member, {push.samples(), push.microbatch_count(), WeightOf(state_.rules(), push)},
        state_.rules().CloseBySet()));
  }
  return absl::OkStatus();
}

absl::Status Synchronous::OnPull(Stream& stream, const v1::Pull& pull, const absl::Cord& payload) {
  RETURN_IF_ERROR(CheckVersionPull(state_, pull));
  ASSIGN_OR_RETURN(SharedSelections rows, SelectionsOf(state_, &out_, stream, pull, payload));
  std::vector<uint32_t> wanted(pull.partitions().begin(), pull.partitions().end());
  if (wanted.empty()) wanted = state_.view()->owned();
  for (uint32_t number : wanted) {
    RETURN_IF_ERROR(
        AnswerOrPark(stream, *state_.Find(number), pull.version(), pull.request(), rows));
  }
  return absl::OkStatus();
}

absl::Status Synchronous::AnswerOrPark(Stream& stream, const Partition& partition, uint64_t version,
                                       uint64_t request, const SharedSelections& rows) {
  if (const std::vector<BlockState>* blocks = partition.At(version); blocks != nullptr) {
    sender_.SendLive(stream.id, partition.id(), version, *blocks, request, rows.get());
    return absl::OkStatus();
  }
  if (version < partition.version() && set_.active()) {
    // A member whose contribution was dropped may be any number of steps behind; it continues with
    // the current version. The rows that it named belong to the old step.
    sender_.SendLive(stream.id, partition.id(), partition.version(), partition.blocks(), request,
                     nullptr);
    return absl::OkStatus();
  }
  if (version < partition.version()) {
    streams_.RefuseAlways(stream, absl::StrCat("version ", version, " of partition ",
                                               partition.id(), " is no longer available"));
    return absl::OkStatus();
  }
  SLUICE_DCHECK(version == partition.version() + 1, "a pull waits for the next version only");
  std::vector<Parked>& parked = parked_[partition.id()];
  parked.erase(std::remove_if(parked.begin(), parked.end(),
                              [&](const Parked& p) { return streams_.Find(p.stream) == nullptr; }),
               parked.end());
  for (const Parked& p : parked) {
    if (p.stream == stream.id && p.version == version && p.request == request) {
      return absl::OkStatus();
    }
  }
  if (*stream.parked_pulls >= state_.options().max_parked_pulls) {
    return out_.Full(
        Bound::kParkedPulls,
        absl::StrCat("more than ", state_.options().max_parked_pulls, " pulls wait on one stream"));
  }
  parked.push_back({stream.id, version, request, rows, Charge(stream.parked_pulls, 1)});
  return absl::OkStatus();
}

void Synchronous::AnswerParked(const Partition& partition) {
  const std::vector<Parked> parked = std::exchange(parked_[partition.id()], {});
  for (const Parked& p : parked) {
    if (streams_.Find(p.stream) == nullptr) continue;
    const std::vector<BlockState>* const blocks = partition.At(p.version);
    SLUICE_DCHECK(blocks != nullptr, "a pull waits for the next version only");
    sender_.SendLive(p.stream, partition.id(), p.version, *blocks, p.request, p.rows.get());
  }
}

std::vector<StreamId> Synchronous::ParkedStreams() const {
  std::set<StreamId> streams;
  for (const auto& [partition, parked] : parked_) {
    for (const Parked& p : parked) streams.insert(p.stream);
  }
  return {streams.begin(), streams.end()};
}

void Synchronous::Commit(uint64_t version) {
  SLUICE_DCHECK(state_.view()->owned().empty() || version <= state_.LowestVersion(),
                "7.4: every partition has reached a version that is committed");
  for (uint32_t number : state_.view()->owned()) {
    Partition& partition = partitions_.at(number);
    if (partition.version() == version) partition.DropUndo();
  }
  if (version <= state_.committed()) return;
  committed_.version = version;
  set_.OnCommitted(version);
  events_.committed();
}

void Synchronous::OnInstalled(const v1::Install& install) {
  const uint64_t first_step = install.view().first_step();
  for (uint32_t number : state_.view()->owned()) {
    Partition& partition = partitions_.at(number);
    SLUICE_DCHECK(partition.version() == first_step && !partition.has_undo(),
                  "a view begins with one version, which is committed");
    if (state_.rules().DropAccumulators() || partition.members() != state_.view()->members()) {
      partition.Reset(state_.view()->members(), set_.active());
    }
  }
  held_.assign(state_.view()->members(), 0);
  norms_.Reset(first_step);
  set_.Reset(first_step);
  sums_.Reset();
  awaited_step_ = first_step;
  awaited_since_ = state_.now();
  committed_.version = std::max({committed_.version, install.committed(), first_step});
}

void Synchronous::TryClose(Partition& partition) {
  if (!state_.MayChange() || copies_.log().Awaits({CopyWait::kClose, partition.id()})) return;
  const uint64_t barrier = state_.barrier().version();
  if (barrier > 0 && partition.version() == barrier) return;
  const bool measured = NeedsNorms(state_.job()) && norms_.HasOwn(partition.id());
  if (!measured && !IsWhole(partition)) return;
  if (!NeedsNorms(state_.job())) {
    BeginClose(partition, {Arguments(partition)});
    return;
  }
  if (!measured && !Measure(partition)) return;
  TryCloseTogether();
}

void Synchronous::TryCloseAll() {
  for (uint32_t number : state_.view()->owned()) TryClose(partitions_.at(number));
}

bool Synchronous::IsWhole(Partition& partition) {
  if (!set_.active()) {
    if (!partition.IsComplete(state_.rules().CloseBySet())) return false;
  } else {
    const std::vector<size_t>* const members = set_.Of(partition);
    if (members == nullptr || !partition.IsComplete(*members)) return false;
    absl::Status selected = partition.Select(*members, *state_.pool(), state_.parallel());
    if (!selected.ok()) {
      failure_.Fail(absl::StrCat(selected.message()));
      return false;
    }
  }
  if (IsWeightless(state_.job(), partition.total().weight)) partition.DropGradients();
  return true;
}

UpdateArguments Synchronous::Arguments(const Partition& partition) const {
  UpdateArguments arguments;
  arguments.schedule_step = partition.version();
  const Partition::Contribution total = partition.total();
  arguments.gradient_scale = GradientScale(state_.job(), total.weight);
  if (total.microbatches > 0) {
    arguments.buffer_scale = 1.0 / static_cast<double>(total.microbatches);
  }
  arguments.check_finite = state_.job().training().non_finite() == v1::TrainingSpec::FAIL;
  arguments.learning_rate_factor = state_.barrier().LearningRateFactorAt(partition.version());
  return arguments;
}

bool Synchronous::Measure(Partition& partition) {
  GradientNorm norm;
  std::optional<uint32_t> offender;
  absl::Status measured = partition.Measure(Arguments(partition).gradient_scale, *state_.pool(),
                                            state_.parallel(), &norm, &offender);
  if (!measured.ok()) {
    failure_.Fail(absl::StrCat(measured.message()));
    return false;
  }
  if (norm.non_finite && state_.job().training().non_finite() == v1::TrainingSpec::FAIL) {
    failure_.Fail(absl::StrCat("step ", partition.version(), ": ",
                               state_.model()->BlockName(state_.model()->block(*offender)),
                               ": the gradient is not finite"));
  }
  norms_.AddOwn(partition.id(), norm);
  return true;
}

absl::Status Synchronous::OnNorms(uint64_t sender, const v1::Norms& norms) {
  if (state_.view()->owned().empty()) return absl::OkStatus();
  RETURN_IF_ERROR(CheckNorms(state_, sender, norms_.step(), norms));
  norms_.OnNorms(norms);
  if (NeedsNorms(state_.job())) TryCloseTogether();
  return absl::OkStatus();
}

absl::Status Synchronous::OnStepParticipants(uint64_t sender, const v1::StepParticipants& set) {
  if (!set_.active()) return absl::InvalidArgumentError("no stragglers are dropped in this job");
  if (state_.view()->owned().empty()) return absl::OkStatus();
  RETURN_IF_ERROR(CheckStepParticipants(state_, sender, set));
  set_.OnStepParticipants(set);
  TryCloseAll();
  return absl::OkStatus();
}

void Synchronous::OnShardConnected(uint64_t incarnation) {
  norms_.OnShardConnected(incarnation);
  if (set_.active()) set_.OnShardConnected(incarnation);
}

void Synchronous::TryCloseTogether() {
  if (!state_.MayChange() || !norms_.IsComplete()) return;

  const GradientNorm combined = norms_.Combined();
  const bool skip = combined.non_finite;
  if (skip && state_.job().training().non_finite() == v1::TrainingSpec::FAIL) return;
  const double factor = ClipFactor(state_.job().optimizer().clip_norm(), combined.square_sum);

  norms_.Advance();
  if (skip) out_.CountSkippedStep();
  for (uint32_t number : state_.view()->owned()) {
    Partition& partition = partitions_.at(number);
    SLUICE_DCHECK(partition.version() + 1 == norms_.step(), "partitions close a step together");
    StepClose close{Arguments(partition), skip};
    close.arguments.gradient_scale *= factor;
    close.arguments.check_finite = false;
    BeginClose(partition, close);
  }
}

void Synchronous::BeginClose(Partition& partition, StepClose close) {
  const uint32_t number = partition.id();
  std::set<uint64_t> receivers = copies_.ReceiversOf(number);
  if (receivers.empty()) {
    Close(partition, close);
    return;
  }
  if (absl::Status settled = partition.Settle(*state_.pool(), state_.parallel()); !settled.ok()) {
    failure_.Fail(absl::StrCat("step ", partition.version(), ": ", settled.message()));
    return;
  }

  copies_.log().AppendGradients(receivers, v1::CopyEntry(), number, partition.version(), close,
                                partition.sums());
  if (!state_.rules().AwaitCopies()) receivers.clear();
  copies_.log().Await({CopyWait::kClose, number}, receivers,
                      [this, number, close] { Close(partitions_.at(number), close); });
}

void Synchronous::Close(Partition& partition, const StepClose& close) {
  const uint64_t step = partition.version();
  SLUICE_DCHECK(set_.active() || !partition.has_undo(),
                "7.4: a version is committed before the next one closes");
  SLUICE_DCHECK(
      !state_.plan().has_value() ||
          partition.total().samples <=
              state_.plan()->PositionsOf(step, {0, state_.plan()->MicrobatchesPerStep()}).size(),
      "a sample counts once in a step");
  absl::Status closed = absl::OkStatus();
  if (close.unchanged) {
    partition.CloseUnchanged();
  } else {
    closed = partition.Close(close.arguments, *state_.pool(), state_.parallel());
  }
  if (!closed.ok()) {
    failure_.Fail(absl::StrCat("step ", step, ": ", closed.message()));
    return;
  }
  AfterClose(partition);
}

std::vector<uint64_t> Synchronous::Awaited() const {
  const double limit = state_.job().timeouts().gradients();
  std::vector<uint64_t> awaited;
  if (limit <= 0 || !state_.MayChange() || !state_.view()->synchronous() ||
      state_.view()->owned().empty()) {
    return awaited;
  }
  if (state_.now() < awaited_since_ + absl::Seconds(limit) || awaited_step_ >= state_.LastStep()) {
    return awaited;
  }

  for (size_t member = 0; member < state_.view()->members(); ++member) {
    const bool complete = std::all_of(
        state_.view()->owned().begin(), state_.view()->owned().end(), [&](uint32_t number) {
          const Partition& partition = partitions_.at(number);
          return partition.version() > awaited_step_ || partition.HasCompleted(member);
        });
    const bool wanted = !set_.active() || set_.Waits(awaited_step_, member);
    if (!complete && wanted) awaited.push_back(state_.view()->MemberIncarnation(member));
  }
  return awaited;
}

void Synchronous::AfterClose(Partition& partition) {
  SLUICE_DCHECK(!partition.IsComplete(state_.rules().CloseBySet()),
                "a step closes once: the next one begins without contributions");
  if (state_.job().timeouts().gradients() > 0 && state_.LowestVersion() > awaited_step_) {
    awaited_step_ = state_.LowestVersion();
    awaited_since_ = state_.now();
  }
  if (!state_.rules().KeepUndo()) partition.DropUndo();
  AnswerParked(partition);
  events_.closed(partition);
}

}  // namespace sluice::ps
