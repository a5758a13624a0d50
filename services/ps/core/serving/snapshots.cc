#include "services/ps/core/serving/snapshots.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "services/common/check.h"
#include "services/ps/core/session/coordinator_checks.h"
#include "services/ps/core/state/partition_file.h"

namespace sluice::ps {
namespace {

bool SameName(const v1::CheckpointRef& a, const v1::CheckpointRef& b) {
  return a.attempt() == b.attempt() && a.step() == b.step();
}

}  // namespace

void Snapshots::Open(const v1::OpenSnapshot& request) {
  const auto found = snapshots_.find(request.snapshot_id());
  if (found != snapshots_.end() && SameName(found->second.request.name(), request.name())) {
    Report(found->second);
    return;
  }
  if (found != snapshots_.end()) snapshots_.erase(found);  // opened by another coordinator

  Snapshot snapshot;
  snapshot.request = request;
  absl::Status fits = CheckOpenSnapshot(state_, request);
  if (fits.ok() && snapshots_.size() >= state_.options().max_snapshots) {
    fits = out_.Full(Bound::kSnapshots, absl::StrCat("more than ", state_.options().max_snapshots,
                                                     " snapshots are open"));
  }
  if (!fits.ok()) {
    Fail(snapshot, std::string(fits.message()), 0);
    return;
  }

  Snapshot& kept = snapshots_[request.snapshot_id()] = std::move(snapshot);
  // Asynchronous: pinned at the Install that names it.
  if (!state_.view().has_value() || !state_.view()->synchronous()) return;
  PinNow(kept);
}

void Snapshots::PinNow(Snapshot& snapshot) {
  const uint64_t step = snapshot.request.step();
  for (uint32_t number : state_.view()->owned()) {
    const Partition& partition = state_.partitions().at(number);
    if (snapshot.pins.count(number) > 0 || partition.version() < step) continue;
    if (partition.At(step) == nullptr) {
      Fail(snapshot, absl::StrCat("partition ", number, " is past step ", step),
           state_.HighestVersion());
      return;
    }
    Pin(snapshot, partition, step);
  }
  Advance(snapshot);
}

void Snapshots::Pin(Snapshot& snapshot, const Partition& partition, uint64_t version) {
  std::shared_ptr<PartitionContent> content = partition.Pin(version);
  if (content == nullptr) return;
  SLUICE_DCHECK(content->version == snapshot.request.step(),
                "the pins of a snapshot are of one version");
  records_(content.get());
  state_hashes_.FillIn(content.get());
  snapshot.pins[partition.id()] = std::move(content);
}

void Snapshots::OnVersion(const Partition& partition) {
  state_hashes_.OnVersion(partition, state_.job().checkpoint().hash_interval_steps());
  for (auto& [id, snapshot] : snapshots_) {
    if (snapshot.request.step() != partition.version() || !snapshot.failure.empty()) continue;
    Pin(snapshot, partition, partition.version());
    Advance(snapshot);
  }
}

void Snapshots::OnCommitted() {
  for (auto& [id, snapshot] : snapshots_) Advance(snapshot);
}

bool Snapshots::IsCommitted(const Snapshot& snapshot) const {
  return !state_.view()->synchronous() || snapshot.pins.empty() ||
         state_.committed() >= snapshot.request.step();
}

void Snapshots::Advance(Snapshot& snapshot) {
  if (snapshot.reported || !snapshot.failure.empty()) return;
  if (snapshot.pins.size() < state_.view()->owned().size()) return;

  if (!IsCommitted(snapshot) && state_.rules().WriteOnlyCommitted()) return;
  SLUICE_DCHECK(snapshot.unwritten.empty() && snapshot.files.empty(),
                "R14: nothing is written of a snapshot before it is reported");

  snapshot.reported = true;
  snapshot.started = state_.now();
  ReportPinned(snapshot);

  if (!snapshot.request.write()) return;
  for (const auto& [number, content] : snapshot.pins) {
    snapshot.unwritten.insert(number);
    out_.Add(WritePartition{snapshot.request.snapshot_id(), number, snapshot.request.name(),
                            snapshot.request.directory(), PartitionFileName(number), content});
  }
  if (snapshot.unwritten.empty()) ReportWritten(snapshot);
}

void Snapshots::OnInstalled(const v1::OpenSnapshot* named) {
  for (auto it = snapshots_.begin(); it != snapshots_.end();) {
    const bool keep = named != nullptr && it->first == named->snapshot_id() &&
                      SameName(it->second.request.name(), named->name());
    it = keep ? std::next(it) : snapshots_.erase(it);
  }

  if (named == nullptr) return;
  Snapshot& snapshot = snapshots_[named->snapshot_id()];
  if (snapshot.request.snapshot_id() == 0) snapshot.request = *named;
  // A shard without partitions reports a version that does not exist yet, and may have partitions
  // in this view.
  const bool synchronous = state_.view()->synchronous();
  const bool ahead = synchronous && snapshot.request.step() > state_.view()->proto().first_step();
  if (ahead) snapshot.reported = false;
  if (snapshot.reported ||
      !snapshot.failure.empty()) {  // its version is committed, so the snapshot stays valid
    Report(snapshot);
    return;
  }

  if (!synchronous) {
    // The snapshot is of the view that named it first. It was closed before this Install came,
    // which waited for shards that lose something by it.
    if (snapshot.request.step() != state_.updates() && !state_.view()->owned().empty()) {
      Fail(snapshot, absl::StrCat("the shard is past step ", snapshot.request.step()),
           state_.updates());
      return;
    }
    for (uint32_t number : state_.view()->owned()) {
      Pin(snapshot, state_.partitions().at(number), state_.updates());
    }
    Advance(snapshot);
    return;
  }

  if (state_.rules().DropPinsAtRollBack() && ahead) snapshot.pins.clear();
  PinNow(snapshot);
}

void Snapshots::Close(uint64_t snapshot) { snapshots_.erase(snapshot); }

void Snapshots::OnWritten(uint64_t id, const v1::CheckpointRef& name, uint32_t partition,
                          absl::StatusOr<v1::PartitionFile> written) {
  const auto found = snapshots_.find(id);
  if (found == snapshots_.end() || !SameName(found->second.request.name(), name) ||
      found->second.unwritten.erase(partition) == 0) {
    return;
  }
  Snapshot& snapshot = found->second;
  SLUICE_DCHECK(snapshot.reported && snapshot.pins.count(partition) > 0,
                "a snapshot keeps its pins while it is written");
  if (!written.ok()) {
    Fail(snapshot, absl::StrCat(written.status().message()), 0);
    return;
  }

  snapshot.files[partition] = *std::move(written);
  if (snapshot.unwritten.empty() && snapshot.failure.empty()) ReportWritten(snapshot);
}

void Snapshots::Fail(Snapshot& snapshot, std::string reason, uint64_t past) {
  if (!snapshot.failure.empty()) return;
  SLUICE_DCHECK(!reason.empty(), "a failed snapshot has a reason");
  snapshot.failure = std::move(reason);
  snapshot.past = past;
  if (!snapshot.reported) snapshot.pins.clear();
  ReportFailed(snapshot);
}

void Snapshots::ReportPinned(const Snapshot& snapshot) {
  SLUICE_DCHECK(IsCommitted(snapshot), "R14: a snapshot is reported once its version is committed");
  v1::MemberMessage message;
  v1::SnapshotPinned& pinned = *message.mutable_snapshot_pinned();
  pinned.set_snapshot_id(snapshot.request.snapshot_id());
  *pinned.mutable_name() = snapshot.request.name();
  *pinned.mutable_view() = state_.view()->id();
  pinned.set_version(snapshot.request.step());
  out_.Report(std::move(message));
}

void Snapshots::ReportWritten(const Snapshot& snapshot) {
  v1::MemberMessage message;
  v1::SnapshotWritten& written = *message.mutable_snapshot_written();
  written.set_snapshot_id(snapshot.request.snapshot_id());
  *written.mutable_name() = snapshot.request.name();
  *written.mutable_view() = state_.view()->id();
  SLUICE_DCHECK(snapshot.files.size() == snapshot.pins.size(), "a file is written for each pin");
  for (const auto& [partition, file] : snapshot.files) *written.add_files() = file;
  written.set_seconds(absl::ToDoubleSeconds(state_.now() - snapshot.started));
  out_.Report(std::move(message));
}

void Snapshots::ReportFailed(const Snapshot& snapshot) {
  v1::MemberMessage message;
  v1::SnapshotFailed& failed = *message.mutable_snapshot_failed();
  failed.set_snapshot_id(snapshot.request.snapshot_id());
  *failed.mutable_name() = snapshot.request.name();
  if (state_.view().has_value()) *failed.mutable_view() = state_.view()->id();
  failed.set_reason(snapshot.failure);
  failed.set_past(snapshot.past);
  out_.Report(std::move(message));
}

void Snapshots::Report(const Snapshot& snapshot) {
  if (snapshot.reported) ReportPinned(snapshot);
  if (!snapshot.failure.empty()) {
    ReportFailed(snapshot);
  } else if (snapshot.reported && snapshot.request.write() && snapshot.unwritten.empty()) {
    ReportWritten(snapshot);
  }
}

void Snapshots::Report() {
  for (const auto& [id, snapshot] : snapshots_) Report(snapshot);
}

std::shared_ptr<const PartitionContent> Snapshots::Find(uint64_t snapshot,
                                                        uint32_t partition) const {
  const auto found = snapshots_.find(snapshot);
  if (found == snapshots_.end()) return nullptr;
  const auto pin = found->second.pins.find(partition);
  return pin == found->second.pins.end() ? nullptr : pin->second;
}

bool Snapshots::IsPinned(uint64_t snapshot) const {
  const auto found = snapshots_.find(snapshot);
  return found != snapshots_.end() && found->second.reported;
}

}  // namespace sluice::ps
