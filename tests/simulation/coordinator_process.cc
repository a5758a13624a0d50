#include "tests/simulation/coordinator_process.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "services/checkpoint/existing_job.h"
#include "services/checkpoint/storage.h"
#include "services/coordinator/open_storage.h"
#include "tests/simulation/member.h"

namespace sluice::simulation {
namespace {

std::pair<uint64_t, uint64_t> KeyOf(const v1::CheckpointRef& ref) {
  return {ref.attempt(), ref.step()};
}

}  // namespace

CoordinatorProcess::CoordinatorProcess(Cluster* cluster, uint64_t incarnation)
    : cluster_(*cluster),
      incarnation_(incarnation),
      core_(
          cluster, this,
          [&] {
            coordinator::CoordinatorOptions options;
            options.job = cluster->scenario().job;
            options.incarnation = incarnation;
            options.checkpoint_directory = CheckpointDirectory;
            return options;
          }(),
          cluster->scheduler().now(), cluster->scenario().coordinator_rules) {}

void CoordinatorProcess::Start() { core_.PerformActions(); }

void CoordinatorProcess::Accept(const StreamRef& stream) {
  streams_[stream->id] = stream;
  stream->server.on_closed = [this, stream] {
    streams_.erase(stream->id);
    core_.Event(&Core::OnDisconnected, stream->id);
  };
  core_.Event(&Core::OnConnected, stream->id);
}

void CoordinatorProcess::OnMessage(const StreamRef& stream, const v1::MemberMessage& message) {
  if (message.has_register_() && !static_cast<Member*>(stream->client.process.get())->hostile()) {
    registered_[stream->id] = message.register_().process().incarnation();
  }
  core_.Event(&Core::OnMessage, stream->id, message);
}

void CoordinatorProcess::SetDesired(const v1::SetDesiredRequest& desired) {
  core_.Event(&Core::OnSetDesired, desired);
}

void CoordinatorProcess::OnParentCall() { core_.Event(&Core::OnParentCall); }

// As the coordinator's program does on SIGTERM.
void CoordinatorProcess::Leave() { core_.Event(&Core::OnAskedToStop); }

v1::JobProgress CoordinatorProcess::Progress() const {
  return core_->Progress(0, cluster_.scheduler().now());
}

uint64_t CoordinatorProcess::OpenSnapshot(const v1::OpenSnapshotRequest& request,
                                          SnapshotAnswered answered) {
  const uint64_t call = ++last_call_;
  snapshots_[call] = std::move(answered);
  core_.Event(&Core::OnOpenSnapshot, call, request);
  return call;
}

void CoordinatorProcess::EndSnapshotCall(uint64_t call) {
  if (snapshots_.erase(call) == 0) return;
  core_.Event(&Core::OnSnapshotCallEnded, call);
}

void CoordinatorProcess::AfterActions() {
  if (!cluster_.tracing()) return;
  const v1::JobProgress progress = core_->Progress(last_event_, cluster_.scheduler().now());
  for (const v1::Event& event : progress.events()) {
    last_event_ = event.sequence();
    cluster_.Trace(absl::StrCat("  event: ", event.message()));
  }
}

// The storage has a delay before the operation and before the answer.
void CoordinatorProcess::After(std::function<void()> event) {
  cluster_.scheduler().After(
      cluster_.random().Between(absl::Microseconds(50), absl::Milliseconds(5)),
      [self = shared_from_this(), event = std::move(event)] { self->Handle(event); });
}

void CoordinatorProcess::On(const coordinator::Send& action) {
  auto it = streams_.find(action.stream);
  if (it == streams_.end()) return;
  if (action.message.has_install()) cluster_.checker().OnView(action.message.install().view());
  if (action.message.has_committed()) cluster_.checker().OnCommitted(action.message.committed());
  cluster_.contract().OnCoordinatorSays(action.message);
  if (action.message.has_registered()) CheckAdmission(action.stream);
  StreamRef stream = it->second;
  auto member = std::static_pointer_cast<Member>(stream->client.process);
  cluster_.TraceMessage("coordinator", member->name(), action.message);
  cluster_.network().ToClient(
      stream, [member, message = action.message] { member->OnCoordinatorMessage(message); });
}

void CoordinatorProcess::On(const coordinator::CloseStream& action) {
  auto it = streams_.find(action.stream);
  if (it == streams_.end()) return;
  StreamRef stream = it->second;
  streams_.erase(it);
  cluster_.network().CloseByServer(stream);
}

// (R7) An incarnation that this coordinator has expelled is not admitted again.
void CoordinatorProcess::CheckAdmission(uint64_t stream) {
  const auto registered = registered_.find(stream);
  if (registered == registered_.end()) return;
  const v1::JobProgress progress = Progress();
  for (const v1::ProcessStatus& status : progress.processes()) {
    if (status.state() != v1::ProcessStatus::EXPELLED) continue;
    if (status.process().incarnation() != registered->second) continue;
    cluster_.checker().Fail(
        absl::StrCat("an incarnation of ", v1::Role_Name(status.process().role()), " ",
                     status.process().index(), " is admitted again after it was expelled (R7)"));
  }
}

void CoordinatorProcess::On(const coordinator::ReadStorage& read) {
  After([this, check = read.check] {
    absl::StatusOr<coordinator::StorageContents> contents = ReadContents(check);
    After([this, contents] { core_.Event(&Core::OnStorageRead, contents); });
  });
}

absl::StatusOr<coordinator::StorageContents> CoordinatorProcess::ReadContents(FileCheck check) {
  if (cluster_.DiskFails()) return absl::UnavailableError("the storage is unavailable");
  MemoryStorage& storage = cluster_.storage();
  const std::vector<MemoryStorage::DamagedFile> damaged = storage.Damaged();
  absl::StatusOr<coordinator::StorageContents> contents;
  OnDisk([&] {
    contents =
        coordinator::OpenStorage(*storage, cluster_.scenario().job, /*find_source=*/{}, check);
  });
  cluster_.CheckReplaced();
  if (!contents.ok() || !alive()) return contents;
  cluster_.outcome().damaged += contents->damaged.size();
  using Kind = ExistingJob::Kind;
  const Kind kind = contents->existing.kind;
  if (kind != Kind::kReplace && kind != Kind::kRefused) CheckContents(*contents, damaged);
  return contents;
}

// Checks that the newest whole checkpoint is used, that all damage is reported, and that training
// does not start from zero if there are checkpoints. `damaged`: the files that were damaged before
// the storage was read.
void CoordinatorProcess::CheckContents(const coordinator::StorageContents& contents,
                                       const std::vector<MemoryStorage::DamagedFile>& damaged) {
  MemoryStorage& storage = cluster_.storage();
  const auto is_named = [&](const std::string& path) {
    return std::any_of(
        contents.damaged.begin(), contents.damaged.end(),
        [&](const std::string& sentence) { return MemoryStorage::Names(sentence, path); });
  };
  const std::vector<MemoryStorage::DamagedFile> left = storage.Damaged();
  const uint64_t newest_claim = contents.claims.empty() ? 0 : contents.claims.back().attempt();
  bool claims_are_whole = true;
  for (const MemoryStorage::DamagedFile& file : damaged) {
    claims_are_whole = claims_are_whole && file.claim == 0;
    // A removed claim without a successor leaves no trace.
    const bool claim = file.claim > 0 && file.claim <= newest_claim;
    // The storage writes an owner file that is missing or unreadable again. An owner file that is
    // still damaged was readable.
    const bool owner =
        file.owner && !file.removed &&
        std::none_of(left.begin(), left.end(), [](const auto& other) { return other.owner; });
    if ((claim || owner) && !is_named(file.path)) {
      cluster_.checker().Fail(absl::StrCat("the damage of ", file.path, " is not reported"));
    }
  }
  std::vector<v1::CheckpointRef> candidates = storage.CandidatesAsWritten();
  if (candidates.empty()) return;
  if (!contents.has_newest) {
    cluster_.checker().Fail("training starts from zero although there are checkpoints");
    return;
  }
  const std::pair<uint64_t, uint64_t> used = KeyOf(contents.newest.checkpoint());
  for (const v1::CheckpointRef& ref : candidates) {
    if (KeyOf(ref) == used) break;
    if (ReadWholeCheckpoint(*storage, ref).ok()) {
      // If a claim is damaged, its parent is unknown, so a newer checkpoint may be used.
      if (claims_are_whole || used < KeyOf(ref)) {
        cluster_.checker().Fail(absl::StrCat(CheckpointDirectory(contents.newest.checkpoint()),
                                             " is used although ", CheckpointDirectory(ref),
                                             " is whole"));
      }
      break;
    }
    if (!is_named(absl::StrCat(CheckpointDirectory(ref), "/manifest.json"))) {
      cluster_.checker().Fail(
          absl::StrCat(CheckpointDirectory(ref), " is skipped without a report"));
    }
  }
}

// If a crash is due, the coordinator dies at one of the disk's operations. Half of the time its
// machine loses power.
void CoordinatorProcess::OnDisk(absl::FunctionRef<void()> use) {
  if (!cluster_.TakeCrash()) return use();
  FakeFileSystem& disk = cluster_.storage().disk();
  disk.FailAfter(static_cast<int>(cluster_.random().Below(10)));
  use();
  disk.FailNever();
  if (cluster_.random().OneIn(2)) disk.CutPower();
  cluster_.OnCoordinatorCrash(*this);
}

// A disk that fails does so at any of the operations, so the claim may have been made. Or the
// answer is lost.
absl::Status CoordinatorProcess::FailToClaim(const v1::Claim& claim) {
  FakeFileSystem& disk = cluster_.storage().disk();
  disk.FailAfter(static_cast<int>(cluster_.random().Below(10)));
  absl::Status status = cluster_.storage()->CreateClaim(claim);
  disk.FailNever();
  return status.ok() ? absl::UnavailableError("the storage is unavailable") : status;
}

void CoordinatorProcess::On(const coordinator::ClaimAttempt& action) {
  After([this, claim = action.claim] {
    absl::Status status;
    if (cluster_.DiskFails()) {
      status = FailToClaim(claim);
    } else {
      OnDisk([&] { status = cluster_.storage()->CreateClaim(claim); });
    }
    cluster_.Trace(absl::StrCat("claim ", claim.attempt(), claim.end() ? " (end)" : "", ": ",
                                status.ok() ? "created" : "failed"));
    After([this, claim, status] { core_.Event(&Core::OnClaimResult, claim.attempt(), status); });
  });
}

void CoordinatorProcess::On(const coordinator::ReadClaims&) {
  After([this] {
    absl::StatusOr<std::vector<v1::Claim>> claims = cluster_.storage()->ReadClaims();
    if (cluster_.DiskFails()) claims = absl::UnavailableError("the storage is unavailable");
    After([this, claims] { core_.Event(&Core::OnClaimsRead, claims); });
  });
}

void CoordinatorProcess::On(const coordinator::WriteCheckpointIndex& action) {
  After([this, checkpoint_index = action.checkpoint_index] {
    if (cluster_.DiskFails()) {
      // The index may have been written nevertheless.
      if (cluster_.random().OneIn(2))
        (void)cluster_.storage()->WriteCheckpointIndex(checkpoint_index);
      cluster_.Trace("a checkpoint index cannot be written");
      After([this, checkpoint_index] {
        core_.Event(&Core::OnCheckpointIndexWritten, checkpoint_index.checkpoint(),
                    absl::ResourceExhaustedError("no space left on device"));
      });
      return;
    }

    // If a newer attempt has removed the directory as incomplete, an older coordinator writes an
    // index whose files do not exist. No attempt begins with that checkpoint.
    const std::vector<v1::Claim> claims = cluster_.storage()->ReadClaims().value();
    const bool newest =
        claims.empty() || claims.back().attempt() <= checkpoint_index.checkpoint().attempt();
    for (const v1::PartitionFile& file : checkpoint_index.files()) {
      if (!newest || cluster_.storage().HasFile(checkpoint_index.checkpoint(), file.name()))
        continue;
      cluster_.checker().Fail(absl::StrCat("the checkpoint index of ",
                                           CheckpointDirectory(checkpoint_index.checkpoint()),
                                           " names ", file.name(), ", which does not exist"));
    }

    absl::Status status;
    OnDisk([&] { status = cluster_.storage()->WriteCheckpointIndex(checkpoint_index); });
    cluster_.Trace(
        absl::StrCat("checkpoint index of ", CheckpointDirectory(checkpoint_index.checkpoint())));
    cluster_.checker().OnCheckpointIndex(checkpoint_index);
    if (!alive()) return;
    if (newest && !status.ok()) cluster_.checker().Fail(std::string(status.message()));

    After([this, checkpoint_index, status] {
      core_.Event(&Core::OnCheckpointIndexWritten, checkpoint_index.checkpoint(), status);
    });
  });
}

void CoordinatorProcess::On(const coordinator::DeleteCheckpoint& action) {
  OnDisk([&] { (void)RemoveReplaced(*cluster_.storage(), action.checkpoint, action.attempt); });
}

void CoordinatorProcess::On(const coordinator::RemoveIncomplete& action) {
  After([this, checkpoint = action.checkpoint] {
    if (absl::IsNotFound(cluster_.storage()->ReadCheckpointIndex(checkpoint).status())) {
      OnDisk([&] { (void)cluster_.storage()->Remove(checkpoint); });
    }
  });
}

void CoordinatorProcess::On(const coordinator::AnswerSnapshot& action) {
  const auto call = snapshots_.find(action.request);
  if (call == snapshots_.end()) return;
  cluster_.scheduler().After(
      cluster_.random().Between(absl::Microseconds(100), absl::Milliseconds(5)),
      [answered = call->second, snapshot = action.snapshot] { answered(snapshot); });
  if (!action.snapshot.ok()) snapshots_.erase(call);
}

// A suspension with enough time to save loses no step, and no coordinator takes its own claim for
// another coordinator's.
void CoordinatorProcess::CheckExit(const coordinator::Exit& exit) {
  if (exit.reason == coordinator::ExitReason::kSuspended && exit.message == "suspended") {
    // A coordinator that was frozen and replaced reports an outdated state.
    if (cluster_.coordinator().get() != this) return;
    const std::optional<v1::CheckpointIndex> newest = cluster_.storage().NewestAsWritten();
    const uint64_t step = Progress().step();
    if (!newest.has_value() || newest->checkpoint().step() < step) {
      cluster_.checker().Fail(
          absl::StrCat("the job is suspended at step ", step, ", which is not saved"));
    }
  }
  if (exit.reason == coordinator::ExitReason::kSuperseded &&
      absl::StartsWith(exit.message, "another coordinator has ")) {
    const std::vector<v1::Claim> claims = cluster_.storage()->ReadClaims().value();
    if (!claims.empty() && claims.back().term().coordinator() == incarnation_) {
      cluster_.checker().Fail(
          absl::StrCat("a coordinator takes its own claim for another's: ", exit.message));
    }
  }
}

void CoordinatorProcess::On(const coordinator::Exit& action) {
  CheckExit(action);
  cluster_.OnCoordinatorExit(*this, action.reason == coordinator::ExitReason::kSucceeded,
                             action.reason == coordinator::ExitReason::kFailed,
                             action.reason == coordinator::ExitReason::kSuspended, action.message);
}

}  // namespace sluice::simulation
