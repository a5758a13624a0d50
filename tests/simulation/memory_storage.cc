#include "tests/simulation/memory_storage.h"

#include "absl/strings/str_cat.h"

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
  return it->second;
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
  return files_[folder][file.name()];
}

absl::Status MemoryStorage::Remove(const v1::CheckpointRef& ref) {
  manifests_.erase(KeyOf(ref));
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

}  // namespace sluice::simulation
