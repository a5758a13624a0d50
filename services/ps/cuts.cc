#include "services/ps/cuts.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "services/ps/frame_checks.h"
#include "services/ps/partition_file.h"

namespace sluice::ps {
namespace {

bool SameName(const v1::CheckpointRef& a, const v1::CheckpointRef& b) {
  return a.attempt() == b.attempt() && a.step() == b.step();
}

}  // namespace

void Cuts::Open(const v1::OpenCut& request) {
  const auto found = cuts_.find(request.cut());
  if (found != cuts_.end() && SameName(found->second.request.name(), request.name())) {
    Report(found->second);
    return;
  }
  if (found != cuts_.end()) cuts_.erase(found);  // opened by another coordinator
  Cut cut;
  cut.request = request;
  absl::Status fits = CheckOpenCut(state_, request);
  if (fits.ok() && cuts_.size() >= state_.options.max_cuts) {
    fits = state_.Full(Bound::kCuts,
                       absl::StrCat("more than ", state_.options.max_cuts, " cuts are open"));
  }
  if (!fits.ok()) {
    Fail(cut, std::string(fits.message()), 0);
    return;
  }
  Cut& kept = cuts_[request.cut()] = std::move(cut);
  // Asynchronous: pinned at the Install that names it.
  if (!state_.view.has_value() || !state_.view->synchronous()) return;
  PinNow(kept);
}

// Pins the partitions that are at the cut's step; fails the cut if a partition is past it.
void Cuts::PinNow(Cut& cut) {
  const uint64_t step = cut.request.step();
  for (uint32_t number : state_.view->owned()) {
    const Partition& partition = *state_.partitions[number];
    if (cut.pins.count(number) > 0 || partition.version() < step) continue;
    if (partition.At(step) == nullptr) {
      Fail(cut, absl::StrCat("partition ", number, " is past step ", step),
           state_.HighestVersion());
      return;
    }
    Pin(cut, partition, step);
  }
  Advance(cut);
}

void Cuts::Pin(Cut& cut, const Partition& partition, uint64_t version) {
  std::shared_ptr<PartitionContent> content = partition.Pin(version);
  if (content == nullptr) return;
  records_(content.get());
  cut.pins[partition.id()] = std::move(content);
}

void Cuts::OnVersion(const Partition& partition) {
  for (auto& [id, cut] : cuts_) {
    if (cut.request.step() != partition.version() || !cut.failure.empty()) continue;
    Pin(cut, partition, partition.version());
    Advance(cut);
  }
}

void Cuts::OnCommitted() {
  for (auto& [id, cut] : cuts_) Advance(cut);
}

// Reports and writes a cut once it is pinned whole and committed.
void Cuts::Advance(Cut& cut) {
  if (cut.reported || !cut.failure.empty()) return;
  if (cut.pins.size() < state_.view->owned().size()) return;
  const bool committed = !state_.view->synchronous() || cut.pins.empty() ||
                         state_.committed >= cut.request.step() ||
                         !state_.rules.WriteOnlyCommitted();
  if (!committed) return;
  cut.reported = true;
  cut.started = state_.now;
  SayPinned(cut);
  if (!cut.request.write()) return;
  for (const auto& [number, content] : cut.pins) {
    cut.unwritten.insert(number);
    state_.actions.push_back(WritePartition{cut.request.cut(), number, cut.request.name(),
                                            cut.request.folder(), PartitionFileName(number),
                                            content});
  }
  if (cut.unwritten.empty()) SayWritten(cut);
}

void Cuts::OnInstalled(const v1::OpenCut* named) {
  for (auto it = cuts_.begin(); it != cuts_.end();) {
    const bool keep = named != nullptr && it->first == named->cut() &&
                      SameName(it->second.request.name(), named->name());
    it = keep ? std::next(it) : cuts_.erase(it);
  }
  if (named == nullptr) return;
  Cut& cut = cuts_[named->cut()];
  if (cut.request.cut() == 0) cut.request = *named;
  if (cut.reported || !cut.failure.empty()) {  // of a committed version, so it stays valid
    Report(cut);
    return;
  }
  if (!state_.view->synchronous()) {
    cut.request.set_step(state_.updates);
    for (uint32_t number : state_.view->owned()) {
      Pin(cut, *state_.partitions[number], state_.updates);
    }
    Advance(cut);
    return;
  }
  if (state_.rules.DropPinsAtFallBack() && cut.request.step() > state_.view->proto().first_step()) {
    cut.pins.clear();
  }
  PinNow(cut);
}

void Cuts::Close(uint64_t cut) { cuts_.erase(cut); }

void Cuts::OnWritten(uint64_t id, const v1::CheckpointRef& name, uint32_t partition,
                     absl::StatusOr<v1::PartitionFile> written) {
  const auto found = cuts_.find(id);
  if (found == cuts_.end() || !SameName(found->second.request.name(), name) ||
      found->second.unwritten.erase(partition) == 0) {
    return;
  }
  Cut& cut = found->second;
  if (!written.ok()) {
    Fail(cut, absl::StrCat(written.status().message()), 0);
    return;
  }
  cut.files[partition] = *std::move(written);
  if (cut.unwritten.empty() && cut.failure.empty()) SayWritten(cut);
}

void Cuts::Fail(Cut& cut, std::string reason, uint64_t past) {
  if (!cut.failure.empty()) return;
  cut.failure = std::move(reason);
  cut.past = past;
  if (!cut.reported) cut.pins.clear();
  SayFailed(cut);
}

void Cuts::SayPinned(const Cut& cut) {
  v1::MemberMessage message;
  v1::CutPinned& pinned = *message.mutable_cut_pinned();
  pinned.set_cut(cut.request.cut());
  *pinned.mutable_name() = cut.request.name();
  *pinned.mutable_view() = state_.view->id();
  pinned.set_version(cut.request.step());
  state_.Tell(std::move(message));
}

void Cuts::SayWritten(const Cut& cut) {
  v1::MemberMessage message;
  v1::CutWritten& written = *message.mutable_cut_written();
  written.set_cut(cut.request.cut());
  *written.mutable_name() = cut.request.name();
  *written.mutable_view() = state_.view->id();
  for (const auto& [partition, file] : cut.files) *written.add_files() = file;
  written.set_seconds(absl::ToDoubleSeconds(state_.now - cut.started));
  state_.Tell(std::move(message));
}

void Cuts::SayFailed(const Cut& cut) {
  v1::MemberMessage message;
  v1::CutFailed& failed = *message.mutable_cut_failed();
  failed.set_cut(cut.request.cut());
  *failed.mutable_name() = cut.request.name();
  if (state_.view.has_value()) *failed.mutable_view() = state_.view->id();
  failed.set_reason(cut.failure);
  failed.set_past(cut.past);
  state_.Tell(std::move(message));
}

void Cuts::Report(const Cut& cut) {
  if (cut.reported) SayPinned(cut);
  if (!cut.failure.empty()) {
    SayFailed(cut);
  } else if (cut.reported && cut.request.write() && cut.unwritten.empty()) {
    SayWritten(cut);
  }
}

void Cuts::Report() {
  for (const auto& [id, cut] : cuts_) Report(cut);
}

std::shared_ptr<const PartitionContent> Cuts::Find(uint64_t cut, uint32_t partition) const {
  const auto found = cuts_.find(cut);
  if (found == cuts_.end()) return nullptr;
  const auto pin = found->second.pins.find(partition);
  return pin == found->second.pins.end() ? nullptr : pin->second;
}

bool Cuts::IsPinned(uint64_t cut) const {
  const auto found = cuts_.find(cut);
  return found != cuts_.end() && found->second.reported;
}

}  // namespace sluice::ps
