#include "tests/simulation/memory_storage.h"

#include "absl/strings/str_cat.h"
#include "services/common/crc32c.h"

namespace sluice::simulation {

absl::Status MemoryStorage::Own(const std::string& job) {
  if (owner_.empty()) owner_ = job;
  if (IsSameJob(owner_, job)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("the storage is job ", owner_, "'s"));
}

absl::Status MemoryStorage::CreateClaim(const v1::Claim& claim) {
  if (!claims_.emplace(claim.attempt(), claim).second) {
    return absl::AlreadyExistsError(absl::StrCat("claim ", claim.attempt(), " exists"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<v1::Claim>> MemoryStorage::ReadClaims() {
  std::vector<v1::Claim> claims;
  for (const auto& [attempt, claim] : claims_) claims.push_back(claim);
  return claims;
}

absl::StatusOr<std::vector<v1::CheckpointRef>> MemoryStorage::ListCheckpoints() {
  std::vector<v1::CheckpointRef> refs;
  for (const auto& [key, manifest] : manifests_) refs.push_back(manifest.checkpoint());
  return refs;
}

absl::StatusOr<v1::Manifest> MemoryStorage::ReadManifest(const v1::CheckpointRef& ref) {
  auto it = manifests_.find(KeyOf(ref));
  if (it == manifests_.end()) {
    return absl::NotFoundError(absl::StrCat(CheckpointFolder(ref), " has no manifest"));
  }
  const auto damaged = damaged_.find(KeyOf(ref));
  if (damaged == damaged_.end()) return it->second;
  absl::StatusOr<v1::Manifest> manifest = ManifestFromJson(damaged->second);
  if (manifest.ok() && KeyOf(manifest->checkpoint()) != KeyOf(ref)) {
    return absl::DataLossError(
        absl::StrCat(CheckpointFolder(ref), " has the manifest of another checkpoint"));
  }
  return manifest;
}

absl::Status MemoryStorage::WriteManifest(const v1::Manifest& manifest) {
  const std::string folder = CheckpointFolder(manifest.checkpoint());
  for (const v1::PartitionFile& file : manifest.files()) {
    if (!HasFile(folder, file.name())) {
      return absl::NotFoundError(
          absl::StrCat("the manifest of ", folder, " names ", file.name(), ", which is not there"));
    }
  }
  manifests_[KeyOf(manifest.checkpoint())] = manifest;
  damaged_.erase(KeyOf(manifest.checkpoint()));
  return absl::OkStatus();
}

absl::Status MemoryStorage::WriteFile(const v1::CheckpointRef& ref, absl::string_view name,
                                      const absl::Cord& content) {
  files_[CheckpointFolder(ref)][std::string(name)] = content;
  return absl::OkStatus();
}

absl::StatusOr<absl::Cord> MemoryStorage::ReadFile(const v1::CheckpointRef& ref,
                                                   const v1::PartitionFile& file) {
  const std::string folder = CheckpointFolder(ref);
  if (!HasFile(folder, file.name())) {
    return absl::NotFoundError(absl::StrCat(folder, "/", file.name(), " is not there"));
  }
  const absl::Cord& content = files_[folder][file.name()];
  if (content.size() != file.bytes() || Crc32c(std::string(content)) != file.crc32c()) {
    return absl::DataLossError(absl::StrCat(folder, "/", file.name(), " is damaged"));
  }
  return content;
}

absl::Status MemoryStorage::Remove(const v1::CheckpointRef& ref) {
  manifests_.erase(KeyOf(ref));
  damaged_.erase(KeyOf(ref));
  files_.erase(CheckpointFolder(ref));
  return absl::OkStatus();
}

absl::Status MemoryStorage::RemoveIncomplete(uint64_t attempt) {
  for (auto it = files_.begin(); it != files_.end();) {
    absl::StatusOr<v1::CheckpointRef> ref = ParseCheckpointFolder(it->first);
    const bool incomplete =
        ref.ok() && ref->attempt() < attempt && manifests_.count(KeyOf(*ref)) == 0;
    it = incomplete ? files_.erase(it) : std::next(it);
  }
  return absl::OkStatus();
}

std::optional<v1::Manifest> MemoryStorage::NewestAsWritten() {
  const std::vector<v1::CheckpointRef> candidates =
      RestoreCandidates(*ReadClaims(), *ListCheckpoints());
  if (candidates.empty()) return std::nullopt;
  return manifests_[KeyOf(candidates.front())];
}

std::string MemoryStorage::Damage(Random* random) {
  std::vector<v1::Manifest> whole;
  for (const v1::CheckpointRef& ref : RestoreCandidates(*ReadClaims(), *ListCheckpoints())) {
    absl::StatusOr<v1::Manifest> manifest = ReadWholeCheckpoint(*this, ref);
    if (manifest.ok()) whole.push_back(*std::move(manifest));
  }
  if (whole.size() < 2) return "";
  // The newest one most often: that is what will be looked at.
  const size_t pick = random->OneIn(3) ? random->Below(whole.size()) : 0;
  const v1::CheckpointRef& ref = whole[pick].checkpoint();
  const std::string folder = CheckpointFolder(ref);
  if (whole[pick].files().empty() || random->OneIn(2)) {
    std::string text = ManifestToJson(whole[pick]);
    const size_t at = random->Below(text.size());
    const bool cut = random->OneIn(4);
    if (cut) {
      text.resize(at);
    } else {
      text[at] = static_cast<char>(text[at] ^ 1 << random->Below(8));
    }
    damaged_[KeyOf(ref)] = std::move(text);
    return absl::StrCat(folder, ": the manifest ",
                        cut ? "is cut at byte " : "has a flipped bit in byte ", at);
  }
  const std::string& name =
      whole[pick].files(static_cast<int>(random->Below(whole[pick].files_size()))).name();
  if (random->OneIn(4)) {
    files_[folder].erase(name);
    return absl::StrCat(folder, "/", name, " is removed");
  }
  std::string bytes(files_[folder][name]);
  const size_t at = random->Below(bytes.size());
  if (random->OneIn(3)) {
    bytes.resize(at);
  } else {
    bytes[at] = static_cast<char>(bytes[at] ^ 1 << random->Below(8));
  }
  files_[folder][name] = absl::Cord(bytes);
  return absl::StrCat(folder, "/", name, " is changed at byte ", at);
}

}  // namespace sluice::simulation
