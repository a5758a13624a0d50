#include "services/ps/core/replication/replica.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/common/check.h"
#include "services/common/status_macros.h"
#include "services/ps/core/base/check_errors.h"
#include "services/ps/core/replication/checks.h"
#include "services/ps/core/state/update_arguments.h"

namespace sluice::ps {
namespace {

v1::PartitionFile FileOf(const v1::CopyState& state) {
  v1::PartitionFile file;
  file.set_partition(state.partition());
  file.set_name(PartitionFileName(state.partition()));
  file.set_bytes(state.file_bytes());
  file.set_crc32c(state.file_crc32c());
  file.set_state_hash(state.state_hash());
  return file;
}

}  // namespace

bool Replica::IsOwner(uint64_t shard, uint32_t partition) const {
  return state_.view()->OwnerOf(partition).process().incarnation() == shard;
}

// ---- entries

absl::Status Replica::OnEntry(uint64_t sender, const v1::CopyEntry& entry,
                              const absl::Cord& payload) {
  uint64_t& last = of_view_.carried_out[sender];
  const bool repeated = entry.sequence() <= last;
  const bool next = entry.sequence() == last + 1;
  const bool discards = !state_.MayChange() && next && MayDiscard(entry);
  if (!state_.MayChange() && !repeated && !discards) return absl::OkStatus();

  RETURN_IF_ERROR(CheckCopyEntry(state_, sender, entry));
  if (!repeated && !next) {
    return Invalid("entry ", entry.sequence(), " comes after entry ", last);
  }
  if (next && !discards) RETURN_IF_ERROR(CarryOut(sender, entry, payload));
  if (next) last = entry.sequence();

  // A repetition is acked even during a promise, which it does not touch: the owner may need the
  // ack to stop after this step.
  Ack(sender);
  return absl::OkStatus();
}

// Whether a shard that keeps a promise acks the entry without keeping it. The next Install drops
// the copy, so its steps would only take memory: an owner that is cut off from the coordinator may
// train for as long as this shard waits. Asynchronous: an owner replies to a Pause between updates,
// so it needs no such ack.
bool Replica::MayDiscard(const v1::CopyEntry& entry) const {
  return entry.worker() == 0 && copies_.count(entry.gradients().partition()) == 0;
}

absl::Status Replica::CarryOut(uint64_t sender, const v1::CopyEntry& entry,
                               const absl::Cord& payload) {
  if (entry.has_gradients()) return Collect(entry, payload);
  if (entry.has_applied()) return OnApplied(sender, entry);
  events_.leased(entry.worker(), entry.leased());
  return absl::OkStatus();
}

absl::Status Replica::Collect(const v1::CopyEntry& entry, const absl::Cord& payload) {
  const v1::CopyEntry::Gradients& part = entry.gradients();
  const bool is_step = entry.worker() == 0;
  if (is_step) RETURN_IF_ERROR(CheckFollows(part));

  const WorkerAndPartition key{entry.worker(), part.partition()};
  CopiedUpdate fresh;
  const auto found = of_view_.collected.find(key);
  CopiedUpdate& update = found != of_view_.collected.end() ? found->second : fresh;
  RETURN_IF_ERROR(update.Add(*state_.model(), part, payload));
  if (!is_step) update.close.arguments.schedule_step = entry.ordinal();

  if (is_step && update.missing == 0) {
    CopiedUpdate step = std::move(update);
    of_view_.collected.erase(key);
    Enqueue(part.partition(), std::move(step));
  } else if (&update == &fresh) {
    of_view_.collected.emplace(key, std::move(fresh));
  }
  return absl::OkStatus();
}

// A whole copy misses no step. (CatchUp sees it of another one.)
absl::Status Replica::CheckFollows(const v1::CopyEntry::Gradients& step) const {
  const auto copy = copies_.find(step.partition());
  if (copy == copies_.end()) return absl::OkStatus();
  const std::deque<CopiedUpdate>* const queue = QueueOf(step.partition());
  const uint64_t next = copy->second.version() + (queue != nullptr ? queue->size() : 0);
  if (step.number() == next) return absl::OkStatus();
  return Invalid("step ", step.number(), " of partition ", step.partition(),
                 ", whose copy is at version ", next);
}

absl::Status Replica::OnApplied(uint64_t sender, const v1::CopyEntry& entry) {
  const v1::ClockRecord record = RecordOf(entry.worker(), entry.applied());
  std::set<uint32_t> staged;
  for (auto it = of_view_.collected.lower_bound({entry.worker(), 0});
       it != of_view_.collected.end() && it->first.first == entry.worker(); ++it) {
    if (!IsOwner(sender, it->first.second)) continue;
    if (it->second.number != record.clock() || it->second.missing > 0) {
      return Invalid("update ", record.clock(), " is applied, which is not staged whole");
    }
    staged.insert(it->first.second);
  }
  bool whole = !staged.empty();
  for (const auto& [number, copy] : copies_) {
    whole = whole && (!IsOwner(sender, number) || staged.count(number) > 0);
  }
  if (!whole) {
    return Invalid("update ", record.clock(), " is applied, which is not staged for each copy");
  }

  for (const uint32_t number : staged) {
    CopiedUpdate update = std::move(of_view_.collected.extract({entry.worker(), number}).mapped());
    update.close.arguments.schedule_step = entry.applied().ordinal();
    update.record = record;
    Enqueue(number, std::move(update));
    if (state_.failed()) return absl::OkStatus();
  }
  Note(record);
  return absl::OkStatus();
}

// ---- acks

// The owners' steps and updates wait for acks. So until a copy is whole, at most one more step of
// each partition comes, or one more update of each worker.
bool Replica::QueueIsFull() const {
  return of_view_.queued_bytes > state_.options().max_copy_queue_bytes;
}

// A step of a whole copy of the owner waits for decisions.
bool Replica::AwaitsDecisions(uint64_t owner) const {
  return std::any_of(copies_.begin(), copies_.end(), [&](const auto& entry) {
    return QueueOf(entry.first) != nullptr && IsOwner(owner, entry.first);
  });
}

void Replica::Ack(uint64_t owner) {
  // No copy becomes whole any more during a promise, and the owner may have to finish the step.
  const bool full = state_.MayChange() && QueueIsFull();
  if (full) out_.Reached(Bound::kCopyQueueBytes);
  if (full || AwaitsDecisions(owner)) {
    of_view_.held_back.insert(owner);
    return;
  }
  of_view_.held_back.erase(owner);
  SendToShard action = state_.NewMessageTo(owner);
  action.header.mutable_copy_ack()->set_sequence(of_view_.carried_out[owner]);
  out_.Add(std::move(action));
}

void Replica::AckHeldBack() {
  for (const uint64_t owner : std::exchange(of_view_.held_back, {})) Ack(owner);
}

bool Replica::MustAckHeldBack() const {
  return !state_.MayChange() &&
         std::any_of(of_view_.held_back.begin(), of_view_.held_back.end(),
                     [this](uint64_t owner) { return !AwaitsDecisions(owner); });
}

void Replica::SendWhole(uint32_t partition) {
  SendToShard action = state_.NewMessageTo(state_.view()->OwnerOf(partition));
  action.header.mutable_copy_whole()->set_partition(partition);
  out_.Add(std::move(action));
}

void Replica::OnShardConnected(uint64_t incarnation) {
  if (!state_.view().has_value()) return;
  // (R2) What was acked before a promise may be acked again.
  if (of_view_.carried_out.count(incarnation) > 0) Ack(incarnation);
  for (const auto& [number, copy] : copies_) {
    if (IsOwner(incarnation, number)) SendWhole(number);
  }
}

// ---- updates

void Replica::Enqueue(uint32_t partition, CopiedUpdate update) {
  of_view_.queued_bytes += update.bytes;
  of_view_.queued[partition].push_back(std::move(update));
  const auto whole = copies_.find(partition);
  if (whole != copies_.end()) ApplyDue(&whole->second);
}

// Null if nothing is queued.
const std::deque<CopiedUpdate>* Replica::QueueOf(uint32_t partition) const {
  const auto queue = of_view_.queued.find(partition);
  return queue == of_view_.queued.end() ? nullptr : &queue->second;
}

bool Replica::IsDue(const Partition& copy) const {
  return QueueOf(copy.id()) != nullptr && !state_.AwaitsDecisions(copy.version());
}

void Replica::ApplyDue(Partition* copy) {
  while (IsDue(*copy) && !state_.failed()) {
    if (ApplyNext(copy)) events_.changed();
  }
}

// Whether it was a step.
bool Replica::ApplyNext(Partition* copy) {
  const auto queue = of_view_.queued.find(copy->id());
  CopiedUpdate update = std::move(queue->second.front());
  queue->second.pop_front();
  if (queue->second.empty()) of_view_.queued.erase(queue);
  of_view_.queued_bytes -= update.bytes;
  if (update.is_step()) {
    Close(copy, &update);
  } else {
    Apply(copy, &update);
  }
  return update.is_step();
}

// The owner closes a step only when all of its contributions have come: every member held every
// partition at this step, so the version of this step is committed and needs no undo.
void Replica::Close(Partition* copy, CopiedUpdate* step) {
  SLUICE_DCHECK(step->number == copy->version(), "the steps of a copy come without gaps");
  copy->DropUndo();
  if (step->close.unchanged) return copy->CloseUnchanged();
  UpdateArguments& arguments = step->close.arguments;
  arguments.learning_rate_factor = state_.barrier().LearningRateFactorAt(arguments.schedule_step);
  // The parts were checked when they came, so only memory can be missing here.
  absl::Status closed = copy->CloseWith(arguments, &step->sums, *state_.pool(), state_.parallel());
  if (!closed.ok()) {
    failure_.Fail(absl::StrCat("step ", step->number, " of a copy: ", closed.message()));
  }
}

void Replica::Apply(Partition* copy, CopiedUpdate* update) {
  const v1::ClockRecord& record = update->record;
  of_view_.clocks[copy->id()][record.worker()] = record.clock();
  copy->SetVersion(copy->version() + 1);
  if (IsSkipped(state_.job(), record)) return;
  UpdateArguments arguments = ArgumentsFor(state_.job(), update->close.arguments, record);
  arguments.learning_rate_factor = state_.barrier().LearningRateFactorAt(0);
  absl::Status applied =
      copy->Apply(arguments, /*base=*/nullptr, &update->sums, *state_.pool(), state_.parallel());
  if (!applied.ok()) {
    failure_.Fail(absl::StrCat("update ", record.clock(), " of a copy: ", applied.message()));
  }
}

void Replica::Note(const v1::ClockRecord& record) {
  v1::ClockRecord& newest = of_view_.copied[record.worker()];
  if (record.clock() > newest.clock()) newest = record;
}

uint64_t Replica::AppliedClock(uint32_t partition, uint64_t worker) const {
  if (const auto copy = of_view_.clocks.find(partition); copy != of_view_.clocks.end()) {
    const auto clock = copy->second.find(worker);
    if (clock != copy->second.end()) return clock->second;
  }
  const auto base = of_view_.base.find(worker);
  return base == of_view_.base.end() ? 0 : base->second;
}

void Replica::OnBarrierMoved() {
  for (auto& [number, copy] : copies_) {
    if (!state_.MayChange()) return;
    ApplyDue(&copy);
  }
  AckHeldBack();
}

// ---- states

absl::Status Replica::OnState(uint64_t sender, const v1::CopyState& state,
                              const absl::Cord& payload) {
  RETURN_IF_ERROR(CheckCopyState(state_, sender, state, payload.size()));
  const uint32_t number = state.partition();
  if (copies_.count(number) > 0) {
    SendWhole(number);
    return absl::OkStatus();
  }

  Receiving& receiving = of_view_.receiving[number];
  if (receiving.parts.empty()) {
    receiving.version = state.version();
    receiving.file = FileOf(state);
    receiving.parts.resize(state.parts());
    receiving.missing = state.parts();
  }
  if (state.version() != receiving.version || state.parts() != receiving.parts.size() ||
      state.file_crc32c() != receiving.file.crc32c()) {
    return Invalid("a part of version ", state.version(), " of partition ", number,
                   ", of which version ", receiving.version, " is being received");
  }
  if (receiving.missing > 0 && receiving.parts[state.part()].empty()) {
    receiving.parts[state.part()] = payload;
    out_.CountCopiedBytes(payload.size());
    if (--receiving.missing == 0) Read(&receiving);
  }
  return absl::OkStatus();
}

void Replica::Read(Receiving* receiving) {
  ReadCopy action;
  action.transfer = receiving->transfer = out_.NewTransfer();
  action.file = receiving->file;
  for (absl::Cord& part : receiving->parts) action.bytes.Append(std::exchange(part, absl::Cord()));
  action.model = state_.model();
  action.pool = state_.pool();
  out_.Add(std::move(action));
}

void Replica::OnRead(uint64_t transfer, absl::StatusOr<std::shared_ptr<ReceivedCopy>> read) {
  const auto found =
      std::find_if(of_view_.receiving.begin(), of_view_.receiving.end(),
                   [&](const auto& entry) { return entry.second.transfer == transfer; });
  if (found == of_view_.receiving.end()) return;
  auto& [number, receiving] = *found;
  if (!read.ok()) return Drop(number, std::move(read).status());
  receiving.content = std::move((*read)->content);
  if (receiving.content->version != receiving.version) {
    return Drop(number, Invalid("the state of partition ", number, " is of version ",
                                receiving.content->version, ", not ", receiving.version));
  }
  receiving.copy = std::make_unique<Partition>(state_.model(), number, receiving.version,
                                               std::move(receiving.content->blocks));
  receiving.copy->Reserve(std::move((*read)->memory));
}

void Replica::Drop(uint32_t partition, absl::Status why) {
  of_view_.receiving.erase(partition);
  const uint64_t owner = state_.view()->OwnerOf(partition).process().incarnation();
  if (const Stream* stream = streams_.Find(v1::SHARD, owner)) {
    streams_.Close(stream->id, std::move(why));
  }
}

std::optional<uint32_t> Replica::FindDue() const {
  if (!state_.MayChange()) return std::nullopt;
  for (const auto& [number, receiving] : of_view_.receiving) {
    if (receiving.copy == nullptr) continue;
    if (QueueOf(number) == nullptr || IsDue(*receiving.copy)) return number;
  }
  return std::nullopt;
}

void Replica::OnTick() {
  if (MustAckHeldBack()) AckHeldBack();
  const std::optional<uint32_t> due = FindDue();
  if (!due.has_value()) return;
  absl::Status done = CatchUp(*due, &of_view_.receiving.at(*due));
  if (!done.ok()) Drop(*due, std::move(done));
}

absl::Time Replica::NextDeadline() const {
  return FindDue().has_value() || MustAckHeldBack() ? state_.now() : absl::InfiniteFuture();
}

// By one update. The copy is whole if that was the last one.
absl::Status Replica::CatchUp(uint32_t number, Receiving* receiving) {
  Partition* const copy = receiving->copy.get();
  if (receiving->content != nullptr) AdoptClocks(number, *std::exchange(receiving->content, {}));
  if (const std::deque<CopiedUpdate>* const queue = QueueOf(number); queue != nullptr) {
    const CopiedUpdate& next = queue->front();
    const bool follows = next.is_step() ? next.number == copy->version()
                                        : next.number > AppliedClock(number, next.record.worker());
    if (!follows) {
      return Invalid("update ", next.number, " of partition ", number,
                     " does not follow its state, of version ", receiving->version);
    }
    ApplyNext(copy);
  }
  if (QueueOf(number) == nullptr && !state_.failed()) BecomeWhole(number);
  return absl::OkStatus();
}

// Asynchronous: those that the state contains.
void Replica::AdoptClocks(uint32_t partition, const PartitionContent& content) {
  std::map<uint64_t, uint64_t>& clocks = of_view_.clocks[partition];
  for (const v1::ClockRecord& record : content.clocks) {
    if (record.clock() > AppliedClock(partition, record.worker())) Note(record);
    clocks[record.worker()] = record.clock();
  }
}

void Replica::BecomeWhole(uint32_t number) {
  const auto receiving = of_view_.receiving.find(number);
  copies_.try_emplace(number, std::move(*receiving->second.copy));
  of_view_.receiving.erase(receiving);
  SendWhole(number);
  AckHeldBack();
  events_.changed();
}

// ---- views

void Replica::Settle(const v1::Install& install) {
  std::vector<uint32_t> behind;
  for (auto& [number, copy] : copies_) {
    for (const v1::ClockRecord& winner : install.clocks()) {
      if (Settle(winner, &copy)) continue;
      behind.push_back(number);
      break;
    }
  }
  for (const uint32_t number : behind) copies_.erase(number);
}

// False: the copy lacks the update.
bool Replica::Settle(const v1::ClockRecord& winner, Partition* copy) {
  if (AppliedClock(copy->id(), winner.worker()) >= winner.clock()) return true;
  const auto found = of_view_.collected.find({winner.worker(), copy->id()});
  if (found == of_view_.collected.end()) return false;
  CopiedUpdate& update = found->second;
  if (update.number != winner.clock() || update.missing > 0) return false;
  update.record = winner;
  if (state_.rules().ApplyWinners()) Apply(copy, &update);
  return true;
}

void Replica::OnUpdatesInstalled(const std::map<uint64_t, v1::ClockRecord>& clocks) {
  for (const auto& [worker, record] : clocks) of_view_.base[worker] = record.clock();
  for (auto& [number, copy] : copies_) copy.SetVersion(state_.updates());
}

void Replica::FillPauseReply(v1::PauseReply* reply) const {
  for (const auto& [worker, record] : of_view_.copied) *reply->add_copied() = record;
}

}  // namespace sluice::ps
