#include "services/coordinator/core/testing/fake_job.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
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

v1::Register FakeWorker::Registration() const {
  v1::Register request = FakeProcess::Registration();
  if (was_member) *request.mutable_newest_view() = view->id();
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
    for (const v1::View::Member& member : view->workers()) {
      was_member = was_member || member.process().incarnation() == id.incarnation();
    }
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
      result.set_loss_sum(job->loss(message.evaluate().version()) * static_cast<double>(count));
      result.set_correct(std::min<double>(static_cast<double>(message.evaluate().version()), 100) /
                         100 * static_cast<double>(count));
      result.set_counted(true);
      if (job->sample_weight) {
        result.set_weight(*job->sample_weight * static_cast<double>(count));
      }
      for (const std::string& metric : ready.metrics()) {
        v1::MetricState& state = *result.add_metrics();
        state.set_name(metric);
        state.set_state(std::to_string(count));
      }
    }
    Say(answer);
  } else if (message.has_compute_metrics()) {
    computations.push_back(message.compute_metrics());
    if (!computes_metrics) return;
    v1::MemberMessage answer;
    *answer.mutable_metric_values() = ValuesOf(message.compute_metrics());
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

v1::MetricValues FakeWorker::ValuesOf(const v1::ComputeMetrics& request) {
  v1::MetricValues values;
  values.set_evaluation(request.evaluation());
  *values.mutable_name() = request.name();
  for (const v1::ComputeMetrics::Part& part : request.parts()) {
    for (int i = 0; i < part.metrics_size(); ++i) {
      if (i == values.metrics_size()) values.add_metrics()->set_name(part.metrics(i).name());
      v1::Metric& metric = *values.mutable_metrics(i);
      metric.set_value(metric.value() + std::stod(part.metrics(i).state()));
    }
  }
  return values;
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
  worker.ready = traits;
  v1::TensorSpec& tensor = *worker.ready.mutable_table()->add_tensors();
  tensor.set_name("w");
  tensor.add_shape(elements);
  tensor.set_dtype(v1::FLOAT32);
  worker.ready.set_training_samples(training_samples);
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

void FakeJob::Kill(FakeProcess& process, bool reported) {
  process.running = false;
  Break(process);
  if (!reported) return;
  v1::SetDesiredRequest desired;
  *desired.add_deaths()->mutable_process() = process.id;
  core->OnSetDesired(desired, now);
  Pump();
}

void FakeJob::RestartAlone() {
  ++options.incarnation;
  to_core_.clear();
  core = std::make_unique<CoordinatorCore>(options, now);
  Pump();
}

void FakeJob::RestartCoordinator() {
  RestartAlone();
  if (wanted_workers != spec.worker().replicas()) Scale(wanted_workers);
  if (wanted_shards != spec.parameter_server().replicas()) ScaleShards(wanted_shards);
  for (FakeShard* shard : Shards()) Connect(*shard);
  for (FakeWorker* worker : Workers()) Connect(*worker);
}

void FakeJob::AskToLeave(FakeProcess& process) {
  v1::MemberMessage message;
  message.mutable_leave()->set_reason("asked to stop by a signal");
  process.Say(message);
  Pump();
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
  RestorePoint point;
  point.found = contents.has_newest;
  point.checkpoint_index = contents.newest;
  contents.existing = JudgeExisting(spec, contents.claims, point);
  for (const v1::CheckpointRef& ref : contents.checkpoints) {
    const auto& metrics = checkpoint_indexes.at({ref.attempt(), ref.step()}).metrics();
    contents.metrics.emplace_back(ref, std::vector<v1::Metric>(metrics.begin(), metrics.end()));
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

void FakeJob::ReadStorageOrHold(FileCheck check) {
  if (hold_storage) return;
  if (storage != nullptr) {
    core->OnStorageRead(OpenStorage(*storage, spec, nullptr, check), now);
  } else if (read_storage != nullptr) {
    core->OnStorageRead(read_storage(), now);
  } else if (storage_error.ok()) {
    core->OnStorageRead(Contents(), now);
  } else {
    core->OnStorageRead(storage_error, now);
  }
}

void FakeJob::MakeLossRecord(const v1::Claim& record) {
  if (hold_loss_records) return;
  absl::Status status = loss_record_error;
  const auto other = absl::c_find_if(loss_records, [&](const v1::Claim& made) {
    return made.attempt() == record.attempt() && made.loss_record() == record.loss_record();
  });
  if (other == loss_records.end()) {
    if (status.ok() || made_although_failed) loss_records.push_back(record);
  } else if (status.ok() && !IsSameClaim(*other, record)) {
    status = absl::AlreadyExistsError("recorded");
  }
  core->OnClaimResult(record.attempt(), status, now);
}

void FakeJob::MakeClaim(const v1::Claim& claim) {
  absl::Status status = claim_error;
  if (storage != nullptr) {
    status = storage->CreateClaim(claim);
  } else if (const auto other = absl::c_find_if(
                 claims, [&](const v1::Claim& made) { return made.attempt() == claim.attempt(); });
             other == claims.end()) {
    if (status.ok() || made_although_failed) claims.push_back(claim);
  } else if (status.ok() && !IsSameClaim(*other, claim)) {
    status = absl::AlreadyExistsError("claimed");
  }
  core->OnClaimResult(claim.attempt(), status, now);
}

void FakeJob::WriteIndexOrHold(const v1::CheckpointIndex& index) {
  if (hold_checkpoint_index) return;
  const v1::CheckpointRef& ref = index.checkpoint();
  if (storage != nullptr) {
    core->OnCheckpointIndexWritten(ref, storage->WriteCheckpointIndex(index), now);
    return;
  }
  if (checkpoint_index_error.ok()) checkpoint_indexes[{ref.attempt(), ref.step()}] = index;
  core->OnCheckpointIndexWritten(ref, checkpoint_index_error, now);
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
  } else if (auto* read = std::get_if<ReadStorage>(&action)) {
    ReadStorageOrHold(read->check);
  } else if (auto* claim = std::get_if<ClaimAttempt>(&action)) {
    if (claim->claim.loss_record() > 0 && storage == nullptr) {
      MakeLossRecord(claim->claim);
    } else {
      MakeClaim(claim->claim);
    }
  } else if (std::get_if<ReadClaims>(&action)) {
    if (storage != nullptr) {
      core->OnClaimsRead(storage->ReadClaims(), now);
    } else {
      core->OnClaimsRead(Claims(), now);
    }
  } else if (auto* write = std::get_if<WriteCheckpointIndex>(&action)) {
    WriteIndexOrHold(write->checkpoint_index);
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
      if (sample_weight) {
        progress.mutable_steps(0)->set_weight(*sample_weight * static_cast<double>(samples));
      }
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
