#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "services/common/arithmetic/crc32c.h"
#include "services/coordinator/core/evaluation/decisions.h"
#include "services/coordinator/core/testing/fake_job.h"
#include "services/protocol/ids.h"

namespace sluice::coordinator {

v1::Register FakeShard::Registration() const {
  v1::Register request = FakeProcess::Registration();
  if (has_view) *request.mutable_newest_view() = view.id();
  if (obeyed.attempt() > 0) *request.mutable_obeyed() = obeyed;
  return request;
}

std::vector<uint32_t> FakeShard::Owned() const {
  std::vector<uint32_t> owned;
  for (int p = 0; p < view.owner_size(); ++p) {
    if (view.shards(view.owner(p)).process().incarnation() == id.incarnation()) {
      owned.push_back(p);
    }
  }
  return owned;
}

std::vector<uint32_t> FakeShard::NamedCopies() const {
  std::vector<uint32_t> named;
  for (int p = 0; p < view.owner_size(); ++p) {
    for (const auto* positions : {&view.follower(), &view.target()}) {
      if (positions->empty() || positions->Get(p) == 0) continue;
      if (view.shards(static_cast<int>(positions->Get(p)) - 1).process().incarnation() ==
          id.incarnation()) {
        named.push_back(p);
      }
    }
  }
  return named;
}

void FakeShard::MakeCopy() {
  if (!has_view || paused || frozen || !running) return;
  for (uint32_t p : NamedCopies()) {
    if (copies.count(p) > 0) continue;
    const FakeShard* owner = job->Holder(view, view.owner(static_cast<int>(p)));
    if (owner == nullptr || owner->paused || owner->frozen || !owner->has_view ||
        !Same(owner->view.id(), view.id())) {
      continue;
    }
    copies[p] = owner->version;
    SayProgress();
    return;
  }
}

// An owner does not close a step that a whole copy cannot hold: its shard has made a promise, or
// does not answer.
bool FakeShard::CanClose() const {
  if (!has_view || paused || Held()) return false;
  for (uint32_t p : Owned()) {
    for (const auto* positions : {&view.follower(), &view.target()}) {
      if (positions->empty() || positions->Get(static_cast<int>(p)) == 0) continue;
      const auto position = positions->Get(static_cast<int>(p)) - 1;
      const FakeShard* holder = job->Holder(view, position);
      if (holder == nullptr || holder->frozen) return false;
      if (holder->copies.count(p) > 0 && holder->paused) return false;
    }
  }
  return true;
}

void FakeShard::LoadedOrInitialized() {
  ready = true;
  v1::MemberMessage message;
  *message.mutable_state_ready()->mutable_init_id() = init_id;
  message.mutable_state_ready()->set_error(job->load ? job->load(*this) : load_error);
  Say(message);
}

bool FakeShard::Has(const v1::OpenSnapshot& named) const {
  return snapshot.has_value() && snapshot->snapshot_id() == named.snapshot_id() &&
         snapshot->name().attempt() == named.name().attempt() &&
         snapshot->name().step() == named.name().step();
}

// Sends the last reports again: they may have been lost with the previous stream.
void FakeShard::Repeat() {
  v1::MemberMessage message;
  if (has_view) {
    *message.mutable_installed()->mutable_view() = view.id();
    Say(message);
  } else if (ready) {
    LoadedOrInitialized();
  }
  reported = written = false;
  CheckSnapshot();
  if (paused) Reply(answered);
}

void FakeShard::Obey(uint64_t attempt, const v1::Term& term) {
  obeyed.set_attempt(attempt);
  *obeyed.mutable_term() = term;
}

void FakeShard::OnPrepareState(const v1::PrepareState& state) {
  init_id = state.init_id();
  Obey(init_id.attempt(), init_id.term());
  prepare = state;
  ready = has_view = paused = false;
  after.reset();
  snapshot.reset();
  view.Clear();
  version = committed = state.version();
  barrier = 0;
  decisions.Clear();
  ledger = IntervalSet();
  clocks.clear();
  leases.clear();
  staged.clear();
  for (const v1::Range& range : state.checkpoint().ledger().applied()) {
    ledger.Add(FromProto(range));
  }

  // The shard's partitions before there is a view.
  *view.mutable_shards() = state.shards();
  *view.mutable_owner() = state.owner();
  copies.clear();
  if (state.has_checkpoint() || Owned().empty()) LoadedOrInitialized();
  // Pushes that arrived before this message have waited.
  for (FakeWorker* worker : job->Workers()) {
    if (!ready && Same(worker->pushed, init_id)) LoadedOrInitialized();
  }
}

void FakeShard::OnPause(const v1::Pause& pause) {
  Obey(pause.id().attempt(), pause.id().term());
  if (pause.now() || paused) {
    Reply(pause.id());
  } else {
    after = pause;
    CheckAfter();
  }
}

void FakeShard::OnOpenSnapshot(const v1::OpenSnapshot& named) {
  if (Has(named)) {
    reported = written = false;  // reports again
  } else if (version > named.step()) {
    v1::MemberMessage past;
    past.mutable_snapshot_failed()->set_snapshot_id(named.snapshot_id());
    *past.mutable_snapshot_failed()->mutable_view() = view.id();
    past.mutable_snapshot_failed()->set_past(version);
    *past.mutable_snapshot_failed()->mutable_name() = named.name();
    Say(past);
    return;
  } else {
    snapshot = named;
    pinned = reported = written = false;
  }
  CheckSnapshot();
}

void FakeShard::OnMessage(const v1::CoordinatorMessage& message) {
  if (message.has_prepare_state()) {
    OnPrepareState(message.prepare_state());
  } else if (message.has_pause()) {
    OnPause(message.pause());
  } else if (message.has_install() && !drop_installs) {
    Install(message.install());
  } else if (message.has_committed()) {
    if (Same(message.committed().view(), view.id())) Commit(message.committed().version());
    CheckSnapshot();
  } else if (message.has_open_snapshot()) {
    OnOpenSnapshot(message.open_snapshot());
  } else if (message.has_barrier()) {
    if (!has_view || !Same(message.barrier().view(), view.id())) return;
    barrier = message.barrier().version();
    if (message.barrier().has_decisions()) decisions = message.barrier().decisions();
    CheckAfter();
  } else if (message.has_registered()) {
    job_spec = message.registered().job();
    Repeat();
  } else if (message.has_admitted()) {
    admitted = message.admitted();
  } else if (message.has_close_snapshot()) {
    if (snapshot.has_value() && snapshot->snapshot_id() == message.close_snapshot().snapshot_id())
      snapshot.reset();
  } else if (message.has_finish()) {
    finished = true;
    v1::MemberMessage leave;
    leave.mutable_leave();
    Say(leave);
  } else if (message.has_refusal()) {
    refusal = message.refusal();
  }
}

void FakeShard::Install(const v1::Install& install) {
  if (has_view && Same(install.view().id(), view.id())) {
    v1::MemberMessage installed;
    *installed.mutable_installed()->mutable_view() = view.id();
    Say(installed);
    return;
  }
  if (!paused || !Same(install.pause(), answered)) return;

  CheckLosers(install);
  if (install.view().mode() == v1::SYNCHRONOUS && stream != 0) {
    EXPECT_GE(install.view().first_step(), job->committed[install.view().id().attempt()])
        << "a committed version is taken back";
  }
  installs.push_back(install);
  const bool held = !Owned().empty();
  InstallCopies(install);
  view = install.view();
  has_view = true;
  paused = false;
  if (view.mode() == v1::SYNCHRONOUS && held) {
    EXPECT_TRUE(version == view.first_step() || version == view.first_step() + 1)
        << version << " " << view.first_step();
  }
  version = view.first_step();
  barrier = view.mode() == v1::SYNCHRONOUS ? install.barrier() : 0;
  decisions = install.decisions();

  for (const v1::ClockRecord& record : install.clocks()) {
    if (clocks[record.worker()].clock() < record.clock()) {
      EXPECT_EQ(staged[record.worker()].clock(), record.clock());
      clocks[record.worker()] = record;
      ledger.Add(FromProto(record.samples()));
    }
  }
  for (const v1::Range& range : install.ledger().applied()) ledger.Add(FromProto(range));
  staged.clear();
  leases.assign(install.leases().begin(), install.leases().end());

  if (!install.has_snapshot()) {
    snapshot.reset();
  } else if (!Has(install.snapshot())) {
    snapshot = install.snapshot();
    pinned = false;
  } else if (view.mode() == v1::SYNCHRONOUS && snapshot->step() > view.first_step()) {
    pinned = false;  // R14
  }
  reported = written = false;  // the shard reports again what it reported in the view before

  v1::MemberMessage installed;
  *installed.mutable_installed()->mutable_view() = view.id();
  Say(installed);
  Commit(version);
  CheckSnapshot();
}

// Whether the view takes a partition or a whole copy away from this shard.
bool FakeShard::Loses(const v1::Install& install) const {
  const v1::View& next = install.view();
  const auto is_me = [&](uint32_t position) {
    return next.shards(static_cast<int>(position)).process().incarnation() == id.incarnation();
  };
  std::set<uint32_t> with_blocks;
  for (const auto& block : prepare.layout().blocks()) with_blocks.insert(block.partition());
  std::set<uint32_t> held;
  for (uint32_t p : Owned()) held.insert(p);
  for (const auto& [p, copy_version] : copies) held.insert(p);
  const auto keep = [&](uint32_t p) { held.erase(p); };
  for (int p = 0; p < next.owner_size(); ++p) {
    if (is_me(next.owner(p)) || with_blocks.count(p) == 0) keep(p);
  }
  for (const uint32_t p : install.whole_followers()) {
    if (is_me(next.follower(static_cast<int>(p)) - 1)) keep(p);
  }
  for (const uint32_t p : install.whole_targets()) {
    if (is_me(next.target(static_cast<int>(p)) - 1)) keep(p);
  }
  return !held.empty();
}

// A shard that loses nothing installs a view after all shards of the view before that replied to
// its Pause and lose something.
void FakeShard::CheckLosers(const v1::Install& install) const {
  if (install.view().mode() != v1::SYNCHRONOUS || Loses(install)) return;
  for (const FakeShard* other : job->Shards()) {
    const bool waits = other->paused && Same(other->answered, install.pause()) &&
                       Same(other->view.id(), install.view().previous());
    EXPECT_FALSE(waits && other->stream != 0 && other->Loses(install))
        << "ps-" << id.index() << " installs a view before ps-" << other->id.index()
        << ", which loses something by it";
  }
}

// Keeps the copies that the Install lists as whole, which must have its first step. A partition
// that becomes owned was owned before, or was such a copy.
void FakeShard::InstallCopies(const v1::Install& install) {
  const v1::View& next = install.view();
  std::map<uint32_t, uint64_t> held = std::exchange(copies, {});
  for (uint32_t p : Owned()) held[p] = version;
  const auto is_me = [&](uint32_t position) {
    return next.shards(static_cast<int>(position)).process().incarnation() == id.incarnation();
  };
  const auto is_current = [&](uint32_t p) {
    const auto found = held.find(p);
    if (stream == 0) return true;  // it is no longer part of the job
    return found != held.end() &&
           (found->second == next.first_step() || found->second == next.first_step() + 1);
  };
  if (next.mode() != v1::SYNCHRONOUS) return;
  std::set<uint32_t> with_blocks;
  for (const auto& block : prepare.layout().blocks()) with_blocks.insert(block.partition());
  for (int p = 0; p < next.owner_size(); ++p) {
    if (is_me(next.owner(p)) && with_blocks.count(p) > 0) {
      EXPECT_TRUE(is_current(p)) << "ps-" << id.index() << " becomes the owner of partition " << p;
    }
  }
  const auto keep = [&](const auto& whole, const auto& positions) {
    for (const uint32_t p : whole) {
      if (!is_me(positions.Get(static_cast<int>(p)) - 1)) continue;
      EXPECT_TRUE(is_current(p)) << "ps-" << id.index() << " keeps its copy of partition " << p;
      copies[p] = next.first_step();
    }
  };
  keep(install.whole_followers(), next.follower());
  keep(install.whole_targets(), next.target());
}

void FakeShard::Reply(const v1::PauseId& pause) {
  paused = true;
  answered = pause;
  after.reset();  // `pause` may refer to it.
  v1::MemberMessage message;
  v1::PauseReply& reply = *message.mutable_pause_reply();
  *reply.mutable_pause() = answered;
  if (has_view) {
    *reply.mutable_view() = view.id();
    *reply.mutable_newest() = view;
  }
  if (ready) *reply.mutable_ready_init_id() = init_id;
  if (decisions.step() > 0) *reply.mutable_decisions() = decisions;

  for (uint32_t p : Owned()) {
    v1::PauseReply::PartitionState& state = *reply.add_partitions();
    state.set_partition(p);
    state.set_version(version);
    state.set_has_undo(committed < version);
  }
  for (const auto& [p, copy_version] : copies) {
    v1::PauseReply::PartitionState& state = *reply.add_partitions();
    state.set_partition(p);
    state.set_version(copy_version);
    state.set_has_undo(committed < copy_version);
    state.set_copy(true);
  }
  reply.set_committed(committed);

  for (const auto& [worker, record] : clocks) {
    if (record.clock() > 0) *reply.add_clocks() = record;
  }
  for (const auto& [worker, record] : staged) {
    reply.add_staged()->set_worker(worker);
    reply.mutable_staged(reply.staged_size() - 1)->set_clock(record.clock());
  }
  *reply.mutable_leases() = {leases.begin(), leases.end()};
  ledger.ToProtos(reply.mutable_ledger()->mutable_applied());
  reply.mutable_ledger()->set_updates(version);
  Say(message);
}

// Stops when all partitions and all whole copies are past the step (R5).
void FakeShard::CheckAfter() {
  if (!after.has_value()) return;
  const uint64_t step = after->after_step();
  for (const auto& [p, copy_version] : copies) {
    if (copy_version <= step && !Held()) return;
  }
  if (Owned().empty() || Held() || version >= step + 1) Reply(after->id());
}

void FakeShard::Close() {
  Commit(version);
  learning_rate_factors[version] = LearningRateFactor(decisions);
  ++version;
  // Its copies hold the step before it closes, and make the same version.
  for (uint32_t p : Owned()) {
    for (FakeShard* shard : job->Shards()) {
      const auto copy = shard->copies.find(p);
      if (copy == shard->copies.end() || !Same(shard->view.id(), view.id())) continue;
      copy->second = version;
      if (shard != this) shard->CheckAfter();
    }
  }
  SayProgress();
  CheckSnapshot();
  CheckAfter();
}

void FakeShard::Commit(uint64_t to) {
  committed = std::max(committed, to);
  if (has_view && view.mode() == v1::SYNCHRONOUS) {
    uint64_t& highest = job->committed[view.id().attempt()];
    highest = std::max(highest, committed);
  }
  CheckSnapshot();
}

void FakeShard::SayProgress() {
  v1::MemberMessage message;
  v1::ShardProgress& progress = *message.mutable_shard_progress();
  *progress.mutable_view() = view.id();
  progress.set_closed(version);
  progress.set_committed(committed);
  progress.set_samples(ledger.Count());
  progress.set_leaseholders(leases.size());
  for (const auto& [p, copy_version] : copies) progress.add_copies(p);
  progress.set_busy_seconds(busy_seconds);
  progress.set_skipped_steps(skipped_steps);
  Say(message);
}

void FakeShard::CheckSnapshot() {
  if (!snapshot.has_value() || silent_snapshots) return;
  const bool synchronous = view.mode() == v1::SYNCHRONOUS;
  // A shard without partitions has nothing to pin, and reports at once.
  const bool owns_nothing = synchronous && has_view && Owned().empty();
  if (version == snapshot->step() || owns_nothing) pinned = true;
  if (frozen || !pinned) return;
  if (synchronous && !owns_nothing && committed < snapshot->step()) return;
  v1::MemberMessage message;
  if (!reported) {
    reported = true;
    message.mutable_snapshot_pinned()->set_snapshot_id(snapshot->snapshot_id());
    *message.mutable_snapshot_pinned()->mutable_view() = view.id();
    message.mutable_snapshot_pinned()->set_version(snapshot->step());
    *message.mutable_snapshot_pinned()->mutable_name() = snapshot->name();
    Say(message);
  }

  if (!snapshot->write() || written) return;
  written = true;
  if (disk_full) {
    message.mutable_snapshot_failed()->set_snapshot_id(snapshot->snapshot_id());
    *message.mutable_snapshot_failed()->mutable_view() = view.id();
    message.mutable_snapshot_failed()->set_reason("no space left on device");
    *message.mutable_snapshot_failed()->mutable_name() = snapshot->name();
  } else {
    v1::SnapshotWritten& done = *message.mutable_snapshot_written();
    done.set_snapshot_id(snapshot->snapshot_id());
    *done.mutable_view() = view.id();
    *done.mutable_name() = snapshot->name();
    for (uint32_t p : Owned()) {
      done.add_files()->set_partition(p);
      v1::PartitionFile& file = *done.mutable_files(done.files_size() - 1);
      file.set_bytes(1000);
      if (job->storage == nullptr) continue;
      const std::string content(file.bytes(), 'x');
      file.set_name(absl::StrCat("partition-", p));
      file.set_crc32c(Crc32c(content));
      // If this fails, the checkpoint index cannot be written.
      (void)job->storage->WriteFile(snapshot->name(), file.name(), absl::Cord(content));
    }
  }
  Say(message);
}

}  // namespace sluice::coordinator
