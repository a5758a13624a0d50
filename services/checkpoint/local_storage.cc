#include "services/checkpoint/local_storage.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "services/common/arithmetic/crc32c.h"
#include "services/common/status_macros.h"

namespace sluice {
namespace {

constexpr char kOwner[] = "owner";
constexpr char kClaims[] = "claims";
constexpr char kManifest[] = "manifest.json";
constexpr size_t kMaxOwnerBytes = 4 << 10;
constexpr size_t kMaxClaimBytes = 64 << 10;
constexpr size_t kMaxCheckpointIndexBytes = 256 << 20;
constexpr size_t kMaxSentences = 20;  // about damage in claims/
constexpr uint64_t kMaxPartitionFileBytes = uint64_t{64} << 30;

absl::Status Annotate(const absl::Status& status, absl::string_view where) {
  return absl::Status(status.code(), absl::StrCat(where, ": ", status.message()));
}

// Whether a file exists and is invalid. Another try would not help.
bool IsDamage(const absl::Status& status) {
  return !status.ok() && !absl::IsNotFound(status) && !absl::IsUnavailable(status) &&
         !absl::IsPermissionDenied(status) && !absl::IsUnimplemented(status);
}

class LocalStorage final : public CheckpointStorage {
 public:
  LocalStorage(FileSystem* files, std::string directory, std::string writer)
      : files_(files), directory_(std::move(directory)), writer_(std::move(writer)) {}

  absl::Status Probe() override {
    RETURN_IF_ERROR(files_->CreateDirectories(ClaimsDirectory()));
    const std::string path = JoinPath(directory_, absl::StrCat(".probe-", writer_));
    absl::Status status = AtomicWriteFile(files_, path, absl::Cord("sluice"), Suffix());
    if (status.ok()) status = files_->Remove(path);
    RETURN_IF_ERROR(status);

    RETURN_IF_ERROR(files_->SyncDirectory(ClaimsDirectory()));
    return ForEachDirectory([&](const v1::CheckpointRef& ref, bool) {
      const absl::Status synced = files_->SyncDirectory(Directory(ref));
      // Removed in the meantime; or not a directory, which FindDamage reports.
      const bool ignored = absl::IsNotFound(synced) || absl::IsFailedPrecondition(synced);
      return ignored ? absl::OkStatus() : synced;
    });
  }

  absl::Status Own(const std::string& job) override {
    const std::string path = JoinPath(directory_, kOwner);
    absl::StatusOr<std::string> owner = ReadOwner();

    if (absl::IsNotFound(owner.status())) {
      owner = JobOfNewestCheckpointIndex();
      if (owner.ok() && (owner->empty() || IsSameJob(*owner, job))) {
        absl::Status status =
            ExclusiveCreateFile(files_, path, absl::Cord(OwnerText(job)), Suffix());
        if (!absl::IsAlreadyExists(status)) return status;
        owner = ReadOwner();
      }
    }

    if (IsDamage(owner.status())) {
      // Only the owner writes checkpoints into a directory, so their indexes name it as well.
      const absl::Status damage = owner.status();
      owner = JobOfNewestCheckpointIndex();
      if (owner.ok() && owner->empty()) {
        return absl::DataLossError(absl::StrCat(
            damage.message(), ". No checkpoint names the owner of this directory; if it is job ",
            job, "'s, remove ", path));
      }
      if (owner.ok() && IsSameJob(*owner, job)) {
        // If it cannot be rewritten, it is found damaged again next time.
        AtomicWriteFile(files_, path, absl::Cord(OwnerText(job)), Suffix()).IgnoreError();
      }
    }

    RETURN_IF_ERROR(owner.status());
    if (IsSameJob(*owner, job)) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(
        "the checkpoint directory ", directory_, " is job ", *owner, "'s, and this is job ", job,
        ": give each job a directory of its own; to begin with another job's checkpoint, name it "
        "in "
        "checkpoint.restoreFrom"));
  }

  absl::Status CreateClaim(const v1::Claim& claim) override {
    RETURN_IF_ERROR(files_->CreateDirectories(ClaimsDirectory()));
    if (claim.has_parent()) {
      // The process that wrote the parent may have died before the parent's index was durable.
      absl::Status status = files_->SyncDirectory(Directory(claim.parent()));
      if (!status.ok() && !absl::IsNotFound(status)) return status;
    }
    const absl::Status created =
        ExclusiveCreateFile(files_, ClaimPath(claim.attempt(), claim.loss_record()),
                            absl::Cord(ClaimToJson(claim)), Suffix());
    if (!absl::IsAlreadyExists(created)) return created;

    const absl::StatusOr<v1::Claim> found = ReadClaim(claim.attempt(), claim.loss_record());
    if (absl::IsUnavailable(found.status())) return found.status();
    if (!found.ok() || !IsSameClaim(*found, claim)) return created;
    return files_->SyncDirectory(ClaimsDirectory());
  }

  absl::StatusOr<std::vector<v1::Claim>> ReadClaims() override {
    ASSIGN_OR_RETURN(const ClaimFiles files, ListClaims(/*junk=*/nullptr));
    std::vector<v1::Claim> claims;

    for (const uint64_t attempt : files.attempts) {
      while (claims.size() + 1 < attempt) AddDamaged(&claims);

      absl::StatusOr<v1::Claim> claim = ReadClaim(attempt, 0);
      if (claim.ok()) {
        claims.push_back(*std::move(claim));
        RETURN_IF_ERROR(AddLossRecord(files, &claims.back()));
      } else if (IsDamage(claim.status())) {
        AddDamaged(&claims);
      } else {
        return claim.status();
      }
    }
    return claims;
  }

  std::vector<std::string> FindDamage() override {
    std::vector<std::string> sentences;
    if (const absl::Status owner = ReadOwner().status(); IsDamage(owner)) {
      sentences.emplace_back(owner.message());
    }

    // ListCheckpoints reports an error of the list itself.
    (void)ForEachDirectory([&](const v1::CheckpointRef& ref, bool) {
      if (const absl::Status status = files_->List(Directory(ref)).status(); IsDamage(status)) {
        sentences.push_back(absl::StrCat(
            Directory(ref), " is named like a checkpoint and ignored: ", status.message()));
      }
      return absl::OkStatus();
    });

    const absl::StatusOr<ClaimFiles> files = ListClaims(&sentences);
    if (!files.ok()) return sentences;  // an error of ReadClaims

    const auto check = [&](uint64_t attempt, uint64_t loss_record) {
      if (const absl::Status claim = ReadClaim(attempt, loss_record).status(); IsDamage(claim)) {
        sentences.emplace_back(claim.message());
      }
    };
    uint64_t next = 1;
    for (const uint64_t attempt : files->attempts) {
      for (; next < attempt; ++next)
        sentences.push_back(absl::StrCat(ClaimPath(next, 0), " is missing"));
      check(attempt, 0);
      ++next;
    }
    // An older record of an attempt is not read any more.
    for (const auto& [attempt, loss_record] : files->losses) check(attempt, loss_record);

    if (sentences.size() > kMaxSentences) {
      const size_t more = sentences.size() - kMaxSentences;
      sentences.resize(kMaxSentences);
      sentences.push_back(absl::StrCat("there is more damage of this kind, ", more, " times"));
    }
    return sentences;
  }

  absl::StatusOr<std::vector<v1::CheckpointRef>> ListCheckpoints() override {
    std::vector<v1::CheckpointRef> checkpoints;
    RETURN_IF_ERROR(ForEachDirectory([&](const v1::CheckpointRef& ref, bool has_checkpoint_index) {
      if (has_checkpoint_index) checkpoints.push_back(ref);
      return absl::OkStatus();
    }));
    std::sort(checkpoints.begin(), checkpoints.end(), [](const auto& a, const auto& b) {
      return std::tuple(a.attempt(), a.step()) < std::tuple(b.attempt(), b.step());
    });
    return checkpoints;
  }

  absl::StatusOr<v1::CheckpointIndex> ReadCheckpointIndex(const v1::CheckpointRef& ref) override {
    const std::string path = JoinPath(Directory(ref), kManifest);
    ASSIGN_OR_RETURN(std::string text, files_->Read(path, kMaxCheckpointIndexBytes));
    ASSIGN_OR_RETURN(v1::CheckpointIndex checkpoint_index, CheckpointIndexFromJson(text),
                     Annotate(_, path));
    if (checkpoint_index.checkpoint().attempt() != ref.attempt() ||
        checkpoint_index.checkpoint().step() != ref.step()) {
      return absl::DataLossError(absl::StrCat(path, ": is of ",
                                              CheckpointDirectory(checkpoint_index.checkpoint()),
                                              ", which does not match its directory"));
    }
    return checkpoint_index;
  }

  absl::Status WriteCheckpointIndex(const v1::CheckpointIndex& checkpoint_index) override {
    // The shards' reports are compared with the existing files, so that an index never names
    // missing ones. If shards write to their own disks (pods without a shared volume) there is no
    // directory.
    ASSIGN_OR_RETURN(bool shared, files_->Exists(Directory(checkpoint_index.checkpoint())));
    if (!shared) {
      return WriteFile(checkpoint_index.checkpoint(), kManifest,
                       absl::Cord(CheckpointIndexToJson(checkpoint_index)));
    }

    for (const v1::PartitionFile& file : checkpoint_index.files()) {
      const std::string path = JoinPath(Directory(checkpoint_index.checkpoint()), file.name());
      const absl::StatusOr<uint64_t> size = files_->Size(path);
      if (absl::IsUnavailable(size.status())) return size.status();
      if (size.ok() && *size == file.bytes()) continue;
      return absl::FailedPreconditionError(absl::StrCat(
          path, " was written with ", file.bytes(), " bytes, and now ",
          size.ok() ? absl::StrCat("it has ", *size) : std::string(size.status().message())));
    }

    RETURN_IF_ERROR(WriteFile(checkpoint_index.checkpoint(), kManifest,
                              absl::Cord(CheckpointIndexToJson(checkpoint_index))));
    RemoveAbandonedFiles(checkpoint_index);
    return absl::OkStatus();
  }

  absl::Status WriteFile(const v1::CheckpointRef& ref, absl::string_view name,
                         const absl::Cord& content) override {
    const std::string directory = Directory(ref);
    RETURN_IF_ERROR(files_->CreateDirectories(directory));
    RETURN_IF_ERROR(CheckOwnDirectory(ref));
    return AtomicWriteFile(files_, JoinPath(directory, name), content, Suffix());
  }

  absl::StatusOr<absl::Cord> ReadFile(const v1::CheckpointRef& ref,
                                      const v1::PartitionFile& file) override {
    ASSIGN_OR_RETURN(const std::string path, PathOf(ref, file));
    absl::StatusOr<std::string> content =
        files_->Read(path, std::min(file.bytes(), kMaxPartitionFileBytes));
    if (absl::IsResourceExhausted(content.status())) return TooLong(path, file);
    RETURN_IF_ERROR(content.status());
    RETURN_IF_ERROR(CompareSize(path, content->size(), file));
    if (const uint32_t crc = Crc32c(*content); crc != file.crc32c()) {
      return absl::DataLossError(absl::StrFormat("%s: its CRC32C is %08x, not the index's %08x",
                                                 path, crc, file.crc32c()));
    }
    return absl::Cord(*std::move(content));
  }

  absl::Status CheckSize(const v1::CheckpointRef& ref, const v1::PartitionFile& file) override {
    ASSIGN_OR_RETURN(const std::string path, PathOf(ref, file));
    ASSIGN_OR_RETURN(const uint64_t size, files_->Size(path));
    return CompareSize(path, size, file);
  }

  absl::Status Remove(const v1::CheckpointRef& ref) override {
    const std::string directory = Directory(ref);
    absl::Status status = files_->Remove(JoinPath(directory, kManifest));
    if (!status.ok() && !absl::IsNotFound(status)) return status;
    // The index must be durably gone before the files are removed.
    if (status.ok()) status = files_->SyncDirectory(directory);
    if (!status.ok() && !absl::IsNotFound(status)) return status;
    return RemoveDirectory(directory);
  }

  absl::Status RemoveIncomplete(uint64_t attempt) override {
    return ForEachDirectory([&](const v1::CheckpointRef& ref, bool has_checkpoint_index) {
      if (has_checkpoint_index || ref.attempt() >= attempt) return absl::OkStatus();
      const absl::Status removed = RemoveDirectory(Directory(ref));
      // Names that no coordinator made, such as files or directories with directories, are skipped.
      return absl::IsFailedPrecondition(removed) ? absl::OkStatus() : removed;
    });
  }

  absl::Status SetEncodingsAside() override {
    for (const char* const name : {kVocabularyFile, kTableEncodingFile, kStreamStatesFile}) {
      const std::string path = JoinPath(directory_, name);
      absl::Status status = files_->Rename(path, path + ".replaced");
      if (status.ok()) status = files_->SyncDirectory(directory_);
      if (!status.ok() && !absl::IsNotFound(status)) return status;
    }
    return absl::OkStatus();
  }

 private:
  std::string ClaimsDirectory() const { return JoinPath(directory_, kClaims); }
  // loss_record is 0 for the claim of the attempt itself.
  static std::string ClaimName(uint64_t attempt, uint64_t loss_record) {
    return loss_record == 0 ? absl::StrFormat("%06d.json", attempt)
                            : absl::StrFormat("%06d-loss-%04d.json", attempt, loss_record);
  }
  std::string ClaimPath(uint64_t attempt, uint64_t loss_record) const {
    return JoinPath(ClaimsDirectory(), ClaimName(attempt, loss_record));
  }
  std::string Directory(const v1::CheckpointRef& ref) const {
    return JoinPath(directory_, CheckpointDirectory(ref));
  }
  // Several threads of one process write at once.
  std::string Suffix() { return absl::StrCat(writer_, "-", next_suffix_.fetch_add(1)); }

  struct ClaimFiles {
    std::vector<uint64_t> attempts;       // that are claimed, ascending
    std::map<uint64_t, uint64_t> losses;  // attempt -> its newest loss record
  };

  // All files that are named like claims or loss records. Other files are ignored; sentences about
  // them are added to `junk` unless it is null.
  absl::StatusOr<ClaimFiles> ListClaims(std::vector<std::string>* junk) {
    ASSIGN_OR_RETURN(std::vector<std::string> names, ListOrEmpty(ClaimsDirectory()));

    ClaimFiles files;
    std::vector<uint64_t>& attempts = files.attempts;
    for (const std::string& name : names) {
      const std::vector<absl::string_view> parts =
          absl::StrSplit(absl::StripSuffix(name, ".json"), "-loss-");
      uint64_t attempt = 0;
      uint64_t loss_record = 0;
      const bool is_claim = parts.size() <= 2 && absl::SimpleAtoi(parts[0], &attempt) &&
                            attempt > 0 &&
                            (parts.size() == 1 || absl::SimpleAtoi(parts[1], &loss_record)) &&
                            ClaimName(attempt, loss_record) == name;
      if (is_claim && loss_record > 0) {
        uint64_t& newest = files.losses[attempt];
        newest = std::max(newest, loss_record);
      } else if (is_claim) {
        attempts.push_back(attempt);
      } else if (junk != nullptr && !IsTemporaryName(name)) {
        junk->push_back(
            absl::StrCat(JoinPath(ClaimsDirectory(), name), " is not a claim and is ignored"));
      }
    }

    std::sort(attempts.begin(), attempts.end());
    if (!attempts.empty() && attempts.back() - attempts.size() > kMaxMissingClaims) {
      return absl::FailedPreconditionError(
          absl::StrCat(ClaimPath(attempts.back(), 0), " claims attempt ", attempts.back(),
                       ", and there are ", attempts.size() - 1,
                       " claims before it: no coordinator has made it, or claims were "
                       "removed. Remove this claim, or restore the removed ones"));
    }
    return files;
  }

  absl::StatusOr<v1::Claim> ReadClaim(uint64_t attempt, uint64_t loss_record) {
    const std::string path = ClaimPath(attempt, loss_record);
    ASSIGN_OR_RETURN(std::string text, files_->Read(path, kMaxClaimBytes));

    ASSIGN_OR_RETURN(v1::Claim claim, ClaimFromJson(text), Annotate(_, path));
    if (claim.attempt() != attempt) {
      return absl::DataLossError(absl::StrCat(path, ": claims attempt ", claim.attempt(),
                                              ", which is not the attempt in its name"));
    }
    if (claim.loss_record() != loss_record || (loss_record == 0) != claim.kept().empty()) {
      return absl::DataLossError(absl::StrCat(path, ": is loss record ", claim.loss_record(),
                                              " with ", claim.kept_size(),
                                              " shards, which does not match its name"));
    }
    if (claim.has_parent() && claim.parent().attempt() >= attempt) {
      return absl::DataLossError(absl::StrCat(path, ": its parent is of attempt ",
                                              claim.parent().attempt(), ", not an older one"));
    }
    return claim;
  }

  // Adds the attempt's newest loss record to its claim.
  absl::Status AddLossRecord(const ClaimFiles& files, v1::Claim* claim) {
    const auto found = files.losses.find(claim->attempt());
    if (found == files.losses.end()) return absl::OkStatus();
    claim->set_loss_record(found->second);

    const absl::StatusOr<v1::Claim> record = ReadClaim(claim->attempt(), found->second);
    if (IsDamage(record.status())) return absl::OkStatus();
    RETURN_IF_ERROR(record.status());
    *claim->mutable_kept() = record->kept();
    *claim->mutable_term() = record->term();
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> PathOf(const v1::CheckpointRef& ref,
                                     const v1::PartitionFile& file) const {
    // The name comes from a file that may have been edited.
    if (file.name().empty() || absl::StrContains(file.name(), '/')) {
      return absl::DataLossError(absl::StrCat(CheckpointDirectory(ref), ": '", file.name(),
                                              "' is not the name of a file in it"));
    }
    return JoinPath(Directory(ref), file.name());
  }

  static absl::Status TooLong(const std::string& path, const v1::PartitionFile& file) {
    return absl::DataLossError(
        absl::StrCat(path, ": is longer than the index's ", file.bytes(), " bytes"));
  }

  static absl::Status CompareSize(const std::string& path, uint64_t size,
                                  const v1::PartitionFile& file) {
    if (size > std::min(file.bytes(), kMaxPartitionFileBytes)) return TooLong(path, file);
    if (size == file.bytes()) return absl::OkStatus();
    return absl::DataLossError(
        absl::StrCat(path, ": has ", size, " bytes, not the index's ", file.bytes()));
  }

  static void AddDamaged(std::vector<v1::Claim>* claims) {
    const uint64_t attempt = claims->size() + 1;
    claims->emplace_back().set_attempt(attempt);
  }

  // The job, and a checksum over its line, which older versions did not write.
  static std::string OwnerText(const std::string& job) {
    const std::string line = absl::StrCat(job, "\n");
    return absl::StrFormat("%scrc32c %08x\n", line, Crc32c(line));
  }

  absl::StatusOr<std::string> ReadOwner() {
    const std::string path = JoinPath(directory_, kOwner);
    ASSIGN_OR_RETURN(std::string text, files_->Read(path, kMaxOwnerBytes));
    const std::string job = text.substr(0, text.find('\n'));
    const bool one_line = absl::StripTrailingAsciiWhitespace(text) == job;

    const bool is_name = std::count(job.begin(), job.end(), '/') == 2 &&
                         std::all_of(job.begin(), job.end(), absl::ascii_isgraph);
    if (is_name && (one_line || text == OwnerText(job))) return job;

    return absl::DataLossError(absl::StrCat(
        path, " is damaged: it should be a job's name, namespace/name/uid, and its CRC32C"));
  }

  // The job of the newest index that can be read; empty if there is none.
  absl::StatusOr<std::string> JobOfNewestCheckpointIndex() {
    ASSIGN_OR_RETURN(std::vector<v1::CheckpointRef> checkpoints, ListCheckpoints());
    for (auto ref = checkpoints.rbegin(); ref != checkpoints.rend(); ++ref) {
      const absl::StatusOr<v1::CheckpointIndex> checkpoint_index = ReadCheckpointIndex(*ref);
      if (checkpoint_index.ok()) return checkpoint_index->job();
      if (!IsDamage(checkpoint_index.status()) && !absl::IsNotFound(checkpoint_index.status())) {
        return checkpoint_index.status();
      }
    }

    if (checkpoints.empty()) return "";
    return absl::DataLossError(
        absl::StrCat(directory_, " holds ", checkpoints.size(),
                     " checkpoints, but neither a file 'owner' nor an index that names their job"));
  }

  absl::StatusOr<std::vector<std::string>> ListOrEmpty(const std::string& directory) {
    absl::StatusOr<std::vector<std::string>> names = files_->List(directory);
    if (absl::IsNotFound(names.status())) return std::vector<std::string>();
    return names;
  }

  // Calls `visit` for each checkpoint directory, ascending, until it fails.
  template <typename Visit>
  absl::Status ForEachDirectory(Visit visit) {
    ASSIGN_OR_RETURN(std::vector<std::string> names, ListOrEmpty(directory_));
    for (const std::string& name : names) {
      absl::StatusOr<v1::CheckpointRef> ref = ParseCheckpointDirectory(name);
      if (!ref.ok()) continue;  // not ours
      const absl::StatusOr<bool> has_checkpoint_index =
          files_->Exists(JoinPath(JoinPath(directory_, name), kManifest));
      // A file, or a link to itself.
      if (absl::IsFailedPrecondition(has_checkpoint_index.status())) {
        RETURN_IF_ERROR(visit(*ref, false));
        continue;
      }
      RETURN_IF_ERROR(has_checkpoint_index.status());
      RETURN_IF_ERROR(visit(*ref, *has_checkpoint_index));
    }
    return absl::OkStatus();
  }

  // The name may be a link to another checkpoint, whose files must not be replaced. A damaged index
  // is replaced.
  absl::Status CheckOwnDirectory(const v1::CheckpointRef& ref) {
    const std::string path = JoinPath(Directory(ref), kManifest);
    ASSIGN_OR_RETURN(const bool has_checkpoint_index, files_->Exists(path));
    if (!has_checkpoint_index) return absl::OkStatus();

    const absl::StatusOr<std::string> text = files_->Read(path, kMaxCheckpointIndexBytes);
    if (!text.ok()) return absl::OkStatus();

    const absl::StatusOr<v1::CheckpointIndex> index = CheckpointIndexFromJson(*text);
    if (!index.ok() || (index->checkpoint().attempt() == ref.attempt() &&
                        index->checkpoint().step() == ref.step())) {
      return absl::OkStatus();
    }
    return absl::FailedPreconditionError(absl::StrCat(Directory(ref),
                                                      " cannot be written: it is a link to ",
                                                      CheckpointDirectory(index->checkpoint())));
  }

  // A shard that is killed while it writes a file leaves a temporary one. Errors are ignored: it
  // takes space, but does no harm.
  void RemoveAbandonedFiles(const v1::CheckpointIndex& checkpoint_index) {
    const std::string directory = Directory(checkpoint_index.checkpoint());
    const absl::StatusOr<std::vector<std::string>> names = files_->List(directory);
    if (!names.ok()) return;

    for (const std::string& name : *names) {
      // Another coordinator may write the same index now.
      if (!IsTemporaryName(name) || absl::StartsWith(name, kManifest)) continue;
      files_->Remove(JoinPath(directory, name)).IgnoreError();
    }
  }

  absl::Status RemoveDirectory(const std::string& directory) {
    ASSIGN_OR_RETURN(std::vector<std::string> names, ListOrEmpty(directory));
    for (const std::string& name : names) {
      absl::Status status = files_->Remove(JoinPath(directory, name));
      if (!status.ok() && !absl::IsNotFound(status)) return status;
    }
    absl::Status status = files_->RemoveDirectory(directory);
    return absl::IsNotFound(status) ? absl::OkStatus() : status;
  }

  FileSystem* const files_;
  const std::string directory_;
  const std::string writer_;
  std::atomic<uint64_t> next_suffix_{0};
};

}  // namespace

std::unique_ptr<CheckpointStorage> MakeLocalStorage(FileSystem* files, std::string directory,
                                                    std::string writer) {
  return std::make_unique<LocalStorage>(files, std::move(directory), std::move(writer));
}

}  // namespace sluice
