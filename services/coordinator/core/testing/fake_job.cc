#include "services/coordinator/core/testing/fake_job.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "services/common/crc32c.h"
#include "services/coordinator/open_storage.h"
#include "services/protocol/ids.h"

namespace sluice::coordinator {

// ---- processes

FakeProcess::FakeProcess(FakeJob* job, v1::Role role, uint32_t index, uint64_t incarnation)
    : job(job) {
  id.set_role(role);
  id.set_index(index);
  id.set_incarnation(incarnation);
}

v1::Register FakeProcess::Registration() const {
  v1::Register request;
  *request.mutable_process() = id;
  request.set_job(JobName(job->spec));
  request.set_address(absl::StrCat("host:", id.incarnation()));
  request.set_pid(id.incarnation());
  request.set_wire_version(1);
  return request;
}

void FakeProcess::Say(v1::MemberMessage message) {
  if (stream == 0 || !running) return;
  job->said.push_back(message);
  job->to_core_.emplace_back(stream, std::move(message));
}

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
  message.mutable_state_ready()->set_error(load_error);
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

void FakeShard::OnMessage(const v1::CoordinatorMessage& message) {
  if (message.has_prepare_state()) {
    init_id = message.prepare_state().init_id();
    Obey(init_id.attempt(), init_id.term());
    prepare = message.prepare_state();
    ready = has_view = paused = false;
    after.reset();
    snapshot.reset();
    view.Clear();
    version = committed = message.prepare_state().version();
    barrier = 0;
    ledger = IntervalSet();
    clocks.clear();
    leases.clear();
    staged.clear();
    for (const v1::Range& range : message.prepare_state().checkpoint().ledger().applied()) {
      ledger.Add(FromProto(range));
    }

    // The shard's partitions before there is a view.
    *view.mutable_shards() = message.prepare_state().shards();
    *view.mutable_owner() = message.prepare_state().owner();
    copies.clear();
    if (message.prepare_state().has_checkpoint() || Owned().empty()) LoadedOrInitialized();
    // Pushes that arrived before this message have waited.
    for (FakeWorker* worker : job->Workers()) {
      if (!ready && Same(worker->pushed, init_id)) LoadedOrInitialized();
    }
  } else if (message.has_pause()) {
    Obey(message.pause().id().attempt(), message.pause().id().term());
    if (message.pause().now() || paused) {
      Reply(message.pause().id());
    } else {
      after = message.pause();
      CheckAfter();
    }
  } else if (message.has_install() && !drop_installs) {
    Install(message.install());
  } else if (message.has_committed()) {
    if (Same(message.committed().view(), view.id())) Commit(message.committed().version());
    CheckSnapshot();
  } else if (message.has_open_snapshot()) {
    if (Has(message.open_snapshot())) {
      reported = written = false;  // reports again
    } else if (version > message.open_snapshot().step()) {
      v1::MemberMessage past;
      past.mutable_snapshot_failed()->set_snapshot_id(message.open_snapshot().snapshot_id());
      *past.mutable_snapshot_failed()->mutable_view() = view.id();
      past.mutable_snapshot_failed()->set_past(version);
      *past.mutable_snapshot_failed()->mutable_name() = message.open_snapshot().name();
      Say(past);
      return;
    } else {
      snapshot = message.open_snapshot();
      pinned = reported = written = false;
    }
    CheckSnapshot();
  } else if (message.has_barrier()) {
    if (!has_view || !Same(message.barrier().view(), view.id())) return;
    barrier = message.barrier().version();
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
  for (const auto& [p, stands] : copies) held.insert(p);
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
  const auto stands = [&](uint32_t p) {
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
      EXPECT_TRUE(stands(p)) << "ps-" << id.index() << " becomes the owner of partition " << p;
    }
  }
  const auto keep = [&](const auto& whole, const auto& positions) {
    for (const uint32_t p : whole) {
      if (!is_me(positions.Get(static_cast<int>(p)) - 1)) continue;
      EXPECT_TRUE(stands(p)) << "ps-" << id.index() << " keeps its copy of partition " << p;
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

  for (uint32_t p : Owned()) {
    v1::PauseReply::PartitionState& state = *reply.add_partitions();
    state.set_partition(p);
    state.set_version(version);
    state.set_has_undo(committed < version);
  }
  for (const auto& [p, stands] : copies) {
    v1::PauseReply::PartitionState& state = *reply.add_partitions();
    state.set_partition(p);
    state.set_version(stands);
    state.set_has_undo(committed < stands);
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
  for (const auto& [p, stands] : copies) {
    if (stands <= step && !Held()) return;
  }
  if (Owned().empty() || Held() || version >= step + 1) Reply(after->id());
}

void FakeShard::Close() {
  Commit(version);
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
  for (const auto& [p, stands] : copies) progress.add_copies(p);
  progress.set_busy_seconds(busy_seconds);
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

v1::Register FakeWorker::Registration() const {
  v1::Register request = FakeProcess::Registration();
  if (view.has_value()) *request.mutable_newest_view() = view->id();
  return request;
}

void FakeWorker::Announce() {
  if (!says_ready) return;
  v1::MemberMessage message;
  *message.mutable_ready() = ready;
  Say(message);
}

void FakeWorker::OnMessage(const v1::CoordinatorMessage& message) {
  if (message.has_initialize()) {
    ++asked;
    if (!initializes) return;
    pushed = message.initialize().init_id();
    for (FakeShard* shard : job->Shards()) {
      if (Same(shard->init_id, message.initialize().init_id())) shard->LoadedOrInitialized();
    }
  } else if (message.has_new_view()) {
    has_table = has_table || message.new_view().has_table();
    EXPECT_TRUE(has_table);
    view = message.new_view().view();
  } else if (message.has_evaluate()) {
    evaluations.push_back(message.evaluate());
    if (!evaluates) return;
    v1::MemberMessage answer;
    v1::EvaluationResult& result = *answer.mutable_evaluation_result();
    result.set_evaluation(message.evaluate().evaluation());
    *result.mutable_samples() = message.evaluate().samples();
    result.mutable_name()->set_attempt(view.has_value() ? view->id().attempt() : 0);
    result.mutable_name()->set_step(message.evaluate().version());
    if (!evaluation_error.empty()) {
      result.set_error(evaluation_error);
    } else {
      const uint64_t count =
          message.evaluate().samples().end() - message.evaluate().samples().begin();
      result.set_count(count);
      result.set_loss_sum(0.5 * static_cast<double>(count));
      result.set_correct(std::min<double>(static_cast<double>(message.evaluate().version()), 100) /
                         100 * static_cast<double>(count));
    }
    Say(answer);
  } else if (message.has_heartbeat_reply()) {
    batch_size = message.heartbeat_reply().batch_size();
  } else if (message.has_finish()) {
    finished = true;
    v1::MemberMessage leave;
    leave.mutable_leave();
    Say(leave);
  } else if (message.has_refusal()) {
    refusal = message.refusal();
  }
}

// ---- the job

v1::JobSpec FakeJob::Spec() {
  v1::JobSpec spec;
  spec.set_name("digits");
  spec.set_namespace_("default");
  spec.set_uid("u1");
  spec.mutable_training()->set_mode(v1::SYNCHRONOUS);
  spec.mutable_training()->set_global_batch_size(32);
  spec.mutable_training()->set_microbatch_size(4);
  spec.mutable_training()->set_steps(20);
  spec.mutable_parameter_server()->set_replicas(2);
  spec.mutable_parameter_server()->set_partitions(4);
  spec.mutable_worker()->set_replicas(2);
  spec.mutable_checkpoint()->set_directory("checkpoints");
  spec.mutable_checkpoint()->set_max_to_keep(2);
  spec.set_loss("nll");
  spec.set_backoff_limit(3);
  return spec;
}

FakeJob::FakeJob(v1::JobSpec job)
    : spec(std::move(job)),
      wanted_workers(spec.worker().replicas()),
      wanted_shards(spec.parameter_server().replicas()) {
  options.job = spec;
  options.incarnation = 7;
  options.checkpoint_directory = [](const v1::CheckpointRef& ref) {
    return absl::StrCat("a", ref.attempt(), "s", ref.step());
  };
  core = std::make_unique<CoordinatorCore>(options, now);
}

FakeShard& FakeJob::AddShard(uint32_t index) {
  shards.push_back(std::make_unique<FakeShard>(this, v1::SHARD, index, ++next_incarnation));
  Connect(*shards.back());
  return *shards.back();
}

void FakeJob::Scale(uint32_t wanted) {
  wanted_workers = wanted;
  v1::SetDesiredRequest desired;
  desired.set_workers(wanted);
  core->OnSetDesired(desired, now);
  Pump();
}

void FakeJob::ScaleShards(uint32_t wanted) {
  wanted_shards = wanted;
  v1::SetDesiredRequest desired;
  desired.set_shards(wanted);
  core->OnSetDesired(desired, now);
  Pump();
}

FakeWorker& FakeJob::AddWorker(uint32_t index, bool initializes) {
  if (index >= wanted_workers) Scale(index + 1);
  workers.push_back(std::make_unique<FakeWorker>(this, v1::WORKER, index, ++next_incarnation));
  FakeWorker& worker = *workers.back();
  worker.initializes = initializes;
  v1::TensorSpec& tensor = *worker.ready.mutable_table()->add_tensors();
  tensor.set_name("w");
  tensor.add_shape(elements);
  tensor.set_dtype(v1::FLOAT32);
  worker.ready.set_training_samples(3200);
  worker.ready.set_evaluation_samples(
      spec.data().evaluation().has_source() || spec.data().evaluation().interval_steps() ? 1000
                                                                                         : 0);
  Connect(worker);
  return worker;
}

void FakeJob::Connect(FakeProcess& process) {
  process.waiting.clear();  // of its old stream
  process.stream = next_stream++;
  process.closed = absl::OkStatus();
  core->OnConnected(process.stream, now);
  v1::MemberMessage message;
  *message.mutable_register_() = process.Registration();
  process.Say(std::move(message));
  process.Announce();
  Pump();
}

void FakeJob::Start() {
  Pump();
  for (uint32_t i = 0; i < spec.parameter_server().replicas(); ++i) AddShard(i);
  for (uint32_t i = 0; i < spec.worker().replicas(); ++i) AddWorker(i);
  Pump();
}

void FakeJob::Break(FakeProcess& process) {
  const StreamId stream = std::exchange(process.stream, 0);
  to_core_.erase(std::remove_if(to_core_.begin(), to_core_.end(),
                                [&](const auto& entry) { return entry.first == stream; }),
                 to_core_.end());
  if (stream != 0) core->OnDisconnected(stream, now);
  Pump();
}

void FakeJob::Kill(FakeProcess& process, bool told) {
  process.running = false;
  Break(process);
  if (!told) return;
  v1::SetDesiredRequest desired;
  *desired.add_deaths()->mutable_process() = process.id;
  core->OnSetDesired(desired, now);
  Pump();
}

void FakeJob::RestartCoordinator() {
  ++options.incarnation;
  to_core_.clear();
  core = std::make_unique<CoordinatorCore>(options, now);
  Pump();
  if (wanted_workers != spec.worker().replicas()) Scale(wanted_workers);
  if (wanted_shards != spec.parameter_server().replicas()) ScaleShards(wanted_shards);
  for (FakeShard* shard : Shards()) Connect(*shard);
  for (FakeWorker* worker : Workers()) Connect(*worker);
}

FakeProcess* FakeJob::OnStream(StreamId stream) {
  for (const auto& shard : shards) {
    if (shard->stream == stream) return shard.get();
  }
  for (const auto& worker : workers) {
    if (worker->stream == stream) return worker.get();
  }
  for (FakeProcess* stranger : strangers) {
    if (stranger->stream == stream) return stranger;
  }
  return nullptr;
}

std::vector<v1::Claim> FakeJob::Claims() const {
  std::vector<v1::Claim> with_losses = claims;
  for (const v1::Claim& record : loss_records) {
    v1::Claim& claim = with_losses[record.attempt() - 1];
    claim.set_loss_record(record.loss_record());
    *claim.mutable_kept() = record.kept();
    *claim.mutable_term() = record.term();
  }
  return with_losses;
}

StorageContents FakeJob::Contents() const {
  StorageContents contents;
  contents.claims = Claims();
  // R11, if each claim's parent was the newest checkpoint at the time of the claim.
  for (auto it = checkpoint_indexes.rbegin(); it != checkpoint_indexes.rend(); ++it) {
    if (deleted.count(it->first) > 0) continue;
    contents.checkpoints.push_back(it->second.checkpoint());
    if (damaged.count(it->first) > 0) {
      contents.damaged.push_back(absl::StrCat("step ", it->first.second, " is damaged"));
    } else if (!contents.has_newest) {
      contents.has_newest = true;
      contents.newest = it->second;
    }
  }
  return contents;
}

// Every shard must have a worker in its list before the worker learns of a shard.
void FakeJob::CheckAdmissions(const Send& send) {
  if (send.message.has_admitted()) {
    std::set<uint64_t>& admitted = admitted_[send.stream];
    admitted.clear();
    for (const v1::ProcessId& process : send.message.admitted().processes()) {
      EXPECT_TRUE(admitted.insert(process.incarnation()).second) << process.ShortDebugString();
    }
  }

  const bool names_shards = send.message.has_new_view() || send.message.has_initialize();
  const FakeProcess* worker = OnStream(send.stream);
  if (!names_shards || worker == nullptr) return;
  for (const FakeShard* shard : Shards()) {
    const auto sent = admitted_.find(shard->stream);
    if (sent == admitted_.end()) continue;  // it has no stream, or is not registered
    EXPECT_EQ(sent->second.count(worker->id.incarnation()), 1u)
        << "worker-" << worker->id.index() << " learns of shards before they admit it";
  }
}

void FakeJob::Perform(Action& action) {
  if (auto* send = std::get_if<Send>(&action)) {
    CheckAdmissions(*send);
    if (FakeProcess* process = OnStream(send->stream); process != nullptr && process->running) {
      process->waiting.push_back(std::move(send->message));
    }
  } else if (auto* close = std::get_if<CloseStream>(&action)) {
    if (FakeProcess* process = OnStream(close->stream); process != nullptr) {
      Deliver();
      process->closed = close->status;
      process->stream = 0;
    }
  } else if (std::get_if<ReadStorage>(&action)) {
    if (hold_storage) return;
    if (storage != nullptr) {
      core->OnStorageRead(OpenStorage(*storage, spec, nullptr), now);
    } else if (read_storage != nullptr) {
      core->OnStorageRead(read_storage(), now);
    } else if (storage_error.ok()) {
      core->OnStorageRead(Contents(), now);
    } else {
      core->OnStorageRead(storage_error, now);
    }
  } else if (auto* claim = std::get_if<ClaimAttempt>(&action)) {
    const uint64_t attempt = claim->claim.attempt();
    if (claim->claim.loss_record() > 0 && storage == nullptr) {
      if (hold_loss_records) return;
      absl::Status status = loss_record_error;
      for (const v1::Claim& other : loss_records) {
        if (other.attempt() == attempt && other.loss_record() == claim->claim.loss_record()) {
          status = absl::AlreadyExistsError("recorded");
        }
      }
      if (status.ok()) loss_records.push_back(claim->claim);
      core->OnClaimResult(attempt, status, now);
      return;
    }
    absl::Status status = claim_error;
    if (storage != nullptr) status = storage->CreateClaim(claim->claim);
    for (const v1::Claim& other : claims) {
      if (other.attempt() == attempt) status = absl::AlreadyExistsError("claimed");
    }
    if (status.ok() && storage == nullptr) claims.push_back(claim->claim);
    core->OnClaimResult(attempt, status, now);
  } else if (std::get_if<ReadClaims>(&action)) {
    if (storage != nullptr) {
      core->OnClaimsRead(storage->ReadClaims(), now);
    } else {
      core->OnClaimsRead(Claims(), now);
    }
  } else if (auto* write = std::get_if<WriteCheckpointIndex>(&action)) {
    if (hold_checkpoint_index) return;
    const v1::CheckpointRef ref = write->checkpoint_index.checkpoint();
    if (storage != nullptr) {
      core->OnCheckpointIndexWritten(ref, storage->WriteCheckpointIndex(write->checkpoint_index),
                                     now);
      return;
    }
    if (checkpoint_index_error.ok())
      checkpoint_indexes[{ref.attempt(), ref.step()}] = write->checkpoint_index;
    core->OnCheckpointIndexWritten(ref, checkpoint_index_error, now);
  } else if (auto* remove = std::get_if<DeleteCheckpoint>(&action)) {
    deleted.insert({remove->checkpoint.attempt(), remove->checkpoint.step()});
    if (storage != nullptr) {
      (void)RemoveReplaced(*storage, remove->checkpoint, remove->attempt);
    }
  } else if (auto* incomplete = std::get_if<RemoveIncomplete>(&action)) {
    removed.emplace_back(incomplete->checkpoint.attempt(), incomplete->checkpoint.step());
    if (storage != nullptr &&
        absl::IsNotFound(storage->ReadCheckpointIndex(incomplete->checkpoint).status())) {
      (void)storage->Remove(incomplete->checkpoint);
    }
  } else if (auto* answer = std::get_if<AnswerSnapshot>(&action)) {
    snapshots.push_back(*answer);
  } else if (auto* end = std::get_if<Exit>(&action)) {
    EXPECT_FALSE(exit.has_value());
    exit = *end;
  }
}

void FakeJob::Deliver() {
  const auto deliver = [](FakeProcess& process) {
    while (process.running && !process.frozen && !process.waiting.empty()) {
      const v1::CoordinatorMessage message = std::move(process.waiting.front());
      process.waiting.pop_front();
      process.OnMessage(message);
    }
  };
  for (size_t i = 0; i < shards.size(); ++i) deliver(*shards[i]);
  for (size_t i = 0; i < workers.size(); ++i) deliver(*workers[i]);
  for (FakeProcess* stranger : strangers) deliver(*stranger);
}

void FakeJob::Pump() {
  for (int round = 0; round < 1000; ++round) {
    std::vector<Action> actions = core->TakeActions();
    for (Action& action : actions) Perform(action);
    Deliver();
    if (actions.empty() && to_core_.empty()) return;
    while (!to_core_.empty()) {
      auto [stream, message] = std::move(to_core_.front());
      to_core_.pop_front();
      core->OnMessage(stream, message, now);
    }
  }
  ADD_FAILURE() << "messages never end";
}

void FakeJob::OpenSnapshot(uint64_t call, double hold_seconds) {
  v1::OpenSnapshotRequest request;
  request.set_hold_seconds(hold_seconds);
  request.mutable_reader()->set_role(v1::READER);
  request.mutable_reader()->set_incarnation(1'000'000 + call);
  core->OnOpenSnapshot(call, request, now);
  Pump();
}

void FakeJob::EndSnapshot(uint64_t call) {
  core->OnSnapshotCallEnded(call, now);
  Pump();
}

void FakeJob::Pass(absl::Duration time) {
  const absl::Time end = now + time;
  while (now < end) {
    now += absl::Milliseconds(50);
    for (FakeProcess* process : std::vector<FakeProcess*>([this] {
           std::vector<FakeProcess*> all;
           for (FakeShard* shard : Shards()) all.push_back(shard);
           for (FakeWorker* worker : Workers()) all.push_back(worker);
           return all;
         }())) {
      if (process->frozen || !heartbeats) continue;
      v1::MemberMessage beat;
      beat.mutable_heartbeat();
      process->Say(beat);
    }
    for (FakeShard* shard : Shards()) {
      if (makes_copies) shard->MakeCopy();
    }
    if (core->NextDeadline() <= now) {
      core->OnTick(now);
      EXPECT_GT(core->NextDeadline(), now) << "the shell would spin";
    }
    Pump();
  }
}

void FakeJob::Train(int steps) {
  for (int step = 0; step < steps; ++step) {
    Pass(absl::Milliseconds(100));
    CloseOn(Shards());
  }
}

void FakeJob::CloseOn(const std::vector<FakeShard*>& some) {
  const uint64_t version = Version();
  const v1::View& view = core->view();
  if (view.workers_size() == 0 || version >= spec.training().steps()) return;
  for (const auto& member : view.workers()) {
    const FakeWorker* found = nullptr;
    for (FakeWorker* worker : Workers()) {
      if (worker->id.incarnation() == member.process().incarnation()) found = worker;
    }
    if (found == nullptr || found->frozen || !found->view.has_value() ||
        !Same(found->view->id(), view.id())) {
      return;
    }
  }
  for (const v1::View::Shard& entry : view.shards()) {
    const FakeShard* shard = Find(entry.process().incarnation());
    if (shard == nullptr || !shard->has_view || !Same(shard->view.id(), view.id())) return;
  }

  // The first push of this step shows that its sender holds the version of all shards.
  for (FakeShard* shard : Shards()) {
    if (!shard->paused && shard->version == version) shard->Commit(version);
  }
  for (FakeShard* shard : some) {
    if (shard->CanClose() && shard->version == version) shard->Close();
  }

  for (const auto& member : view.workers()) {
    for (FakeWorker* worker : Workers()) {
      if (worker->id.incarnation() != member.process().incarnation()) continue;
      v1::MemberMessage message;
      v1::WorkerProgress& progress = *message.mutable_worker_progress();
      *progress.mutable_view() = view.id();
      uint64_t samples = 0;
      for (const v1::Range& range : member.microbatches()) {
        samples += (range.end() - range.begin()) * spec.training().microbatch_size();
      }
      progress.add_steps()->set_samples(samples);
      progress.mutable_steps(0)->set_step(version);
      progress.mutable_steps(0)->set_loss_sum(0.25 * static_cast<double>(samples));
      progress.set_compute_seconds(worker->seconds_per_sample * static_cast<double>(samples));
      worker->Say(message);
    }
  }
  Pump();
}

void FakeJob::Update(FakeWorker& worker, uint64_t samples, const std::vector<FakeShard*>& not_yet,
                     uint64_t from) {
  const uint64_t incarnation = worker.id.incarnation();
  FakeShard& arbiter = *Shards().front();
  const Interval range = arbiter.ledger.FirstGap(from, UINT64_MAX, samples);
  v1::ClockRecord record = arbiter.clocks[incarnation];
  record.set_worker(incarnation);
  record.set_clock(record.clock() + 1);
  *record.mutable_samples() = ToProto(range);

  for (FakeShard* shard : Shards()) {
    if (shard->paused || !shard->has_view) continue;
    if (std::find(not_yet.begin(), not_yet.end(), shard) != not_yet.end()) {
      shard->staged[incarnation] = record;
      continue;
    }
    shard->clocks[incarnation] = record;
    shard->ledger.Add(range);
    ++shard->version;
    shard->SayProgress();
  }
  Pump();
}

void FakeJob::FinishUpdates(const FakeWorker& worker) {
  for (FakeShard* shard : Shards()) {
    const auto staged = shard->staged.find(worker.id.incarnation());
    if (shard->paused || !shard->has_view || staged == shard->staged.end()) continue;
    shard->ledger.Add(FromProto(staged->second.samples()));
    shard->clocks[staged->first] = staged->second;
    shard->staged.erase(staged);
    ++shard->version;
    shard->SayProgress();
  }
  Pump();
}

std::vector<std::string> FakeJob::Events() {
  std::vector<std::string> messages;
  const v1::JobProgress progress = Progress();
  for (const v1::Event& event : progress.events()) messages.push_back(event.message());
  return messages;
}

bool FakeJob::HasEvent(const std::string& part) {
  for (const std::string& message : Events()) {
    if (message.find(part) != std::string::npos) return true;
  }
  return false;
}

std::vector<FakeShard*> FakeJob::Shards() {
  std::vector<FakeShard*> running;
  for (const auto& shard : shards) {
    if (shard->running) running.push_back(shard.get());
  }
  return running;
}

FakeShard* FakeJob::Find(uint64_t incarnation) {
  for (FakeShard* shard : Shards()) {
    if (shard->id.incarnation() == incarnation) return shard;
  }
  return nullptr;
}

std::vector<FakeWorker*> FakeJob::Workers() {
  std::vector<FakeWorker*> running;
  for (const auto& worker : workers) {
    if (worker->running) running.push_back(worker.get());
  }
  return running;
}

uint64_t FakeJob::Version() {
  uint64_t lowest = UINT64_MAX;
  for (const v1::View::Shard& entry : core->view().shards()) {
    const FakeShard* shard = Find(entry.process().incarnation());
    if (shard != nullptr && !shard->Owned().empty()) lowest = std::min(lowest, shard->version);
  }
  if (lowest < UINT64_MAX) return lowest;
  for (FakeShard* shard : Shards()) lowest = std::min(lowest, shard->version);
  return lowest;
}

}  // namespace sluice::coordinator
