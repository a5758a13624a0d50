#include "services/checkpoint/local_storage.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "services/common/crc32c.h"

namespace sluice {
namespace {

constexpr char kOwner[] = "owner";
constexpr char kClaims[] = "claims";
constexpr char kManifest[] = "manifest.json";
constexpr size_t kMaxOwnerBytes = 4 << 10;
constexpr size_t kMaxClaimBytes = 64 << 10;
constexpr size_t kMaxManifestBytes = 256 << 20;
constexpr uint64_t kMaxPartitionFileBytes = uint64_t{64} << 30;

absl::Status Annotate(const absl::Status& status, absl::string_view where) {
  return absl::Status(status.code(), absl::StrCat(where, ": ", status.message()));
}

class LocalStorage final : public CheckpointStorage {
 public:
  LocalStorage(FileSystem* files, std::string folder, std::string writer)
      : files_(files), folder_(std::move(folder)), writer_(std::move(writer)) {}

  absl::Status Probe() override {
    if (absl::Status status = files_->CreateDirectories(ClaimsFolder()); !status.ok()) {
      return status;
    }
    const std::string path = JoinPath(folder_, absl::StrCat(".probe-", writer_));
    absl::Status status = AtomicWriteFile(files_, path, absl::Cord("sluice"), Suffix());
    if (status.ok()) status = files_->Remove(path);
    return status;
  }

  absl::Status Own(const std::string& job) override {
    absl::StatusOr<std::string> owner = ReadOwner();
    if (absl::IsNotFound(owner.status())) {
      owner = JobOfNewestManifest();
      if (owner.ok() && (owner->empty() || IsSameJob(*owner, job))) {
        absl::Status status = ExclusiveCreateFile(files_, JoinPath(folder_, kOwner),
                                                  absl::Cord(absl::StrCat(job, "\n")), Suffix());
        if (!absl::IsAlreadyExists(status)) return status;
        owner = ReadOwner();
      }
    }
    if (!owner.ok()) return owner.status();
    if (IsSameJob(*owner, job)) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(
        "the checkpoint folder ", folder_, " is job ", *owner, "'s, and this is job ", job,
        ": give each job a folder of its own; to begin with another job's checkpoint, name it in "
        "checkpoint.restoreFrom"));
  }

  absl::Status CreateClaim(const v1::Claim& claim) override {
    if (absl::Status status = files_->CreateDirectories(ClaimsFolder()); !status.ok()) {
      return status;
    }
    return ExclusiveCreateFile(files_, ClaimPath(claim.attempt()), absl::Cord(ClaimToJson(claim)),
                               Suffix());
  }

  absl::StatusOr<std::vector<v1::Claim>> ReadClaims() override {
    absl::StatusOr<std::vector<std::string>> names = ListIfThere(ClaimsFolder());
    if (!names.ok()) return names.status();
    std::vector<v1::Claim> claims;
    for (const std::string& name : *names) {
      if (!absl::EndsWith(name, ".json")) continue;  // somebody's temporary file
      const std::string path = JoinPath(ClaimsFolder(), name);
      absl::StatusOr<std::string> text = files_->Read(path, kMaxClaimBytes);
      if (!text.ok()) return text.status();
      absl::StatusOr<v1::Claim> claim = ClaimFromJson(*text);
      if (!claim.ok()) return Annotate(claim.status(), path);
      if (ClaimPath(claim->attempt()) != path) {
        return absl::DataLossError(
            absl::StrCat(path, ": claims attempt ", claim->attempt(), ", unlike its name"));
      }
      claims.push_back(*std::move(claim));
    }
    std::sort(claims.begin(), claims.end(),
              [](const auto& a, const auto& b) { return a.attempt() < b.attempt(); });
    return claims;
  }

  absl::StatusOr<std::vector<v1::CheckpointRef>> ListCheckpoints() override {
    std::vector<v1::CheckpointRef> checkpoints;
    absl::Status status = ForEachFolder([&](const v1::CheckpointRef& ref, bool has_manifest) {
      if (has_manifest) checkpoints.push_back(ref);
      return absl::OkStatus();
    });
    if (!status.ok()) return status;
    return checkpoints;
  }

  absl::StatusOr<v1::Manifest> ReadManifest(const v1::CheckpointRef& ref) override {
    const std::string path = JoinPath(Folder(ref), kManifest);
    absl::StatusOr<std::string> text = files_->Read(path, kMaxManifestBytes);
    if (!text.ok()) return text.status();
    absl::StatusOr<v1::Manifest> manifest = ManifestFromJson(*text);
    if (!manifest.ok()) return Annotate(manifest.status(), path);
    if (manifest->checkpoint().attempt() != ref.attempt() ||
        manifest->checkpoint().step() != ref.step()) {
      return absl::DataLossError(absl::StrCat(
          path, ": is of ", CheckpointFolder(manifest->checkpoint()), ", unlike its folder"));
    }
    return manifest;
  }

  absl::Status WriteManifest(const v1::Manifest& manifest) override {
    return WriteFile(manifest.checkpoint(), kManifest, absl::Cord(ManifestToJson(manifest)));
  }

  absl::Status WriteFile(const v1::CheckpointRef& ref, absl::string_view name,
                         const absl::Cord& content) override {
    const std::string folder = Folder(ref);
    if (absl::Status status = files_->CreateDirectories(folder); !status.ok()) return status;
    return AtomicWriteFile(files_, JoinPath(folder, name), content, Suffix());
  }

  absl::StatusOr<absl::Cord> ReadFile(const v1::CheckpointRef& ref,
                                      const v1::PartitionFile& file) override {
    // The name comes from a file that anybody may have edited.
    if (file.name().empty() || absl::StrContains(file.name(), '/')) {
      return absl::DataLossError(absl::StrCat(CheckpointFolder(ref), ": '", file.name(),
                                              "' is not the name of a file in it"));
    }
    const std::string path = JoinPath(Folder(ref), file.name());
    absl::StatusOr<std::string> content =
        files_->Read(path, std::min(file.bytes(), kMaxPartitionFileBytes));
    if (absl::IsResourceExhausted(content.status())) {
      return absl::DataLossError(
          absl::StrCat(path, ": is longer than the manifest's ", file.bytes(), " bytes"));
    }
    if (!content.ok()) return content.status();
    if (content->size() != file.bytes()) {
      return absl::DataLossError(absl::StrCat(path, ": has ", content->size(),
                                              " bytes, not the manifest's ", file.bytes()));
    }
    if (const uint32_t crc = Crc32c(*content); crc != file.crc32c()) {
      return absl::DataLossError(absl::StrFormat("%s: its CRC32C is %08x, not the manifest's %08x",
                                                 path, crc, file.crc32c()));
    }
    return absl::Cord(*std::move(content));
  }

  absl::Status Remove(const v1::CheckpointRef& ref) override {
    const std::string folder = Folder(ref);
    absl::Status status = files_->Remove(JoinPath(folder, kManifest));
    if (!status.ok() && !absl::IsNotFound(status)) return status;
    // Durably no checkpoint before its files go.
    if (status.ok()) status = files_->SyncDirectory(folder);
    if (!status.ok() && !absl::IsNotFound(status)) return status;
    return RemoveFolder(folder);
  }

  absl::Status RemoveIncomplete(uint64_t attempt) override {
    return ForEachFolder([&](const v1::CheckpointRef& ref, bool has_manifest) {
      if (has_manifest || ref.attempt() >= attempt) return absl::OkStatus();
      return RemoveFolder(Folder(ref));
    });
  }

 private:
  std::string ClaimsFolder() const { return JoinPath(folder_, kClaims); }
  std::string ClaimPath(uint64_t attempt) const {
    return JoinPath(ClaimsFolder(), absl::StrFormat("%06d.json", attempt));
  }
  std::string Folder(const v1::CheckpointRef& ref) const {
    return JoinPath(folder_, CheckpointFolder(ref));
  }
  // Several threads of one process write at once.
  std::string Suffix() { return absl::StrCat(writer_, "-", next_suffix_.fetch_add(1)); }

  absl::StatusOr<std::string> ReadOwner() {
    const std::string path = JoinPath(folder_, kOwner);
    absl::StatusOr<std::string> text = files_->Read(path, kMaxOwnerBytes);
    if (!text.ok()) return text.status();
    std::string job(absl::StripAsciiWhitespace(*text));
    if (std::count(job.begin(), job.end(), '/') == 2) return job;
    return absl::DataLossError(
        absl::StrCat(path, ": '", job, "' is not a job's name, namespace/name/uid"));
  }

  // Of the newest that can be read; empty if there is none.
  absl::StatusOr<std::string> JobOfNewestManifest() {
    absl::StatusOr<std::vector<v1::CheckpointRef>> checkpoints = ListCheckpoints();
    if (!checkpoints.ok()) return checkpoints.status();
    for (auto ref = checkpoints->rbegin(); ref != checkpoints->rend(); ++ref) {
      const absl::StatusOr<v1::Manifest> manifest = ReadManifest(*ref);
      if (manifest.ok()) return manifest->job();
      if (!absl::IsDataLoss(manifest.status()) && !absl::IsNotFound(manifest.status())) {
        return manifest.status();
      }
    }
    return "";
  }

  absl::StatusOr<std::vector<std::string>> ListIfThere(const std::string& folder) {
    absl::StatusOr<std::vector<std::string>> names = files_->List(folder);
    if (absl::IsNotFound(names.status())) return std::vector<std::string>();
    return names;
  }

  // Calls `visit` for each checkpoint folder, ascending, until it fails.
  template <typename Visit>
  absl::Status ForEachFolder(Visit visit) {
    absl::StatusOr<std::vector<std::string>> names = ListIfThere(folder_);
    if (!names.ok()) return names.status();
    for (const std::string& name : *names) {
      absl::StatusOr<v1::CheckpointRef> ref = ParseCheckpointFolder(name);
      if (!ref.ok()) continue;  // not ours
      absl::StatusOr<bool> has_manifest =
          files_->Exists(JoinPath(JoinPath(folder_, name), kManifest));
      if (!has_manifest.ok()) return has_manifest.status();
      if (absl::Status status = visit(*ref, *has_manifest); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status RemoveFolder(const std::string& folder) {
    absl::StatusOr<std::vector<std::string>> names = ListIfThere(folder);
    if (!names.ok()) return names.status();
    for (const std::string& name : *names) {
      absl::Status status = files_->Remove(JoinPath(folder, name));
      if (!status.ok() && !absl::IsNotFound(status)) return status;
    }
    absl::Status status = files_->RemoveDirectory(folder);
    return absl::IsNotFound(status) ? absl::OkStatus() : status;
  }

  FileSystem* const files_;
  const std::string folder_;
  const std::string writer_;
  std::atomic<uint64_t> next_suffix_{0};
};

}  // namespace

std::unique_ptr<CheckpointStorage> MakeLocalStorage(FileSystem* files, std::string folder,
                                                    std::string writer) {
  return std::make_unique<LocalStorage>(files, std::move(folder), std::move(writer));
}

}  // namespace sluice
