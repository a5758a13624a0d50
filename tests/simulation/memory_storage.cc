#include "tests/simulation/memory_storage.h"

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "services/checkpoint/local_storage.h"

namespace sluice::simulation {
namespace {

constexpr char kDirectory[] = "/store";
constexpr char kClaims[] = "/store/claims";
constexpr char kOwner[] = "/store/owner";
constexpr size_t kMaxFileBytes = size_t{1} << 30;

std::string PathOf(const v1::CheckpointRef& ref, const std::string& name) {
  return absl::StrCat(kDirectory, "/", CheckpointDirectory(ref), "/", name);
}

// 0 if the path is not a claim.
uint64_t AttemptOfClaim(const std::string& path) {
  uint64_t attempt = 0;
  const bool is_claim = DirectoryOf(path) == kClaims &&
                        absl::SimpleAtoi(absl::StripSuffix(FileNameOf(path), ".json"), &attempt);
  return is_claim ? attempt : 0;
}

}  // namespace

MemoryStorage::MemoryStorage() : storage_(MakeLocalStorage(&disk_, kDirectory, "writer")) {}

std::optional<std::string> MemoryStorage::Read(const std::string& path) {
  absl::StatusOr<std::string> content = disk_.Read(path, kMaxFileBytes);
  if (!content.ok()) return std::nullopt;
  return *std::move(content);
}

void MemoryStorage::Write(const std::string& path, const std::string& content) {
  const std::unique_ptr<WritableFile> file = *disk_.Create(path, /*exclusive=*/false);
  (void)file->Append(content);
  (void)file->Sync();
  (void)disk_.SyncDirectory(DirectoryOf(path));
}

void MemoryStorage::Remove(const std::string& path) {
  (void)disk_.Remove(path);
  (void)disk_.SyncDirectory(DirectoryOf(path));
}

bool MemoryStorage::HasFile(const v1::CheckpointRef& ref, const std::string& name) {
  return Read(PathOf(ref, name)).has_value();
}

// ---- damage

std::string MemoryStorage::DamageCheckpoint(Random* random) {
  std::vector<v1::CheckpointIndex> whole;
  const std::vector<v1::CheckpointRef> candidates =
      RestoreCandidates(*storage_->ReadClaims(), *storage_->ListCheckpoints());
  for (const v1::CheckpointRef& ref : candidates) {
    absl::StatusOr<v1::CheckpointIndex> checkpoint_index = ReadWholeCheckpoint(*storage_, ref);
    if (checkpoint_index.ok()) whole.push_back(*std::move(checkpoint_index));
  }
  if (whole.size() < 2) return "";
  // Most often the newest, because a restoration reads it.
  const v1::CheckpointIndex& pick = whole[random->OneIn(3) ? random->Below(whole.size()) : 0];
  if (pick.files().empty() || random->OneIn(2)) {
    return DamageFile(PathOf(pick.checkpoint(), "manifest.json"), /*may_remove=*/false, random);
  }
  const int file = static_cast<int>(random->Below(static_cast<uint64_t>(pick.files_size())));
  return DamageFile(PathOf(pick.checkpoint(), pick.files(file).name()), /*may_remove=*/true,
                    random);
}

std::string MemoryStorage::DamageRecord(Random* random) {
  std::vector<std::string> paths;
  if (Read(kOwner).has_value()) paths.push_back(kOwner);
  const absl::StatusOr<std::vector<std::string>> claims = disk_.List(kClaims);
  if (claims.ok()) {
    for (const std::string& name : *claims) {
      if (absl::EndsWith(name, ".json")) paths.push_back(absl::StrCat(kClaims, "/", name));
    }
  }

  if (paths.empty()) return "";
  // Most often the newest claim, because a restoration begins with it.
  const std::string& path =
      paths[random->OneIn(2) ? random->Below(paths.size()) : paths.size() - 1];
  if (damage_.count(path) > 0) return "";

  // Once all shards that knew the newest attempt are gone and its claim is removed, only a
  // checkpoint of the attempt shows that it existed.
  const std::vector<v1::CheckpointRef> checkpoints = storage_->ListCheckpoints().value();
  const bool traceless =
      path == paths.back() && AttemptOfClaim(path) > 0 &&
      (checkpoints.empty() || checkpoints.back().attempt() != AttemptOfClaim(path));
  return DamageFile(path, /*may_remove=*/!traceless, random);
}

std::string MemoryStorage::DamageFile(const std::string& path, bool may_remove, Random* random) {
  const std::string written = *Read(path);
  if (written.empty()) return "";
  if (may_remove && random->OneIn(4)) {
    Remove(path);
    damage_[path] = {written, std::nullopt};
    return absl::StrCat(path, " is removed");
  }

  std::string content = written;
  const size_t at = random->Below(content.size());
  const bool cut = random->OneIn(3);
  if (cut) {
    content.resize(at);
  } else {
    content[at] = static_cast<char>(content[at] ^ 1 << random->Below(8));
  }

  Write(path, content);
  damage_[path] = {written, content};
  return absl::StrCat(path, cut ? " is truncated at byte " : " has a flipped bit in byte ", at);
}

// Forgets the damage of files that were written again or deleted with their checkpoint.
void MemoryStorage::Forget() {
  for (auto it = damage_.begin(); it != damage_.end();) {
    const bool there = *disk_.Exists(DirectoryOf(it->first));
    it = there && Read(it->first) == it->second.now ? std::next(it) : damage_.erase(it);
  }
}

std::vector<MemoryStorage::DamagedFile> MemoryStorage::Damaged() {
  Forget();
  std::vector<DamagedFile> files;
  for (const auto& [path, damage] : damage_) {
    files.push_back({path, !damage.now.has_value(), path == kOwner, AttemptOfClaim(path)});
  }
  return files;
}

bool MemoryStorage::Names(const std::string& sentence, const std::string& path) {
  const std::string directory = FileNameOf(DirectoryOf(path));
  if (absl::StartsWith(directory, "attempt-")) return absl::StrContains(sentence, directory);
  if (absl::StrContains(sentence, path)) return true;
  // Without its claim, an attempt is known only from its checkpoints.
  const uint64_t attempt = AttemptOfClaim(path);
  return attempt > 0 &&
         absl::StrContains(sentence, absl::StrCat("no claim of attempt ", attempt, ":"));
}

void MemoryStorage::PutBack() {
  Forget();
  for (const auto& [path, damage] : damage_) Write(path, damage.written);
  damage_.clear();
}

// ---- files as written

void MemoryStorage::WithFilesAsWritten(absl::FunctionRef<void()> look) {
  const std::map<std::string, Damage> damage = [this] {
    Forget();
    return damage_;
  }();
  PutBack();
  look();
  for (const auto& [path, damaged] : damage) {
    if (damaged.now.has_value()) {
      Write(path, *damaged.now);
    } else {
      Remove(path);
    }
  }
  damage_ = damage;
}

std::vector<v1::CheckpointRef> MemoryStorage::CandidatesAsWritten() {
  std::vector<v1::CheckpointRef> candidates;
  WithFilesAsWritten([&] {
    candidates = RestoreCandidates(*storage_->ReadClaims(), *storage_->ListCheckpoints());
  });
  return candidates;
}

std::optional<v1::CheckpointIndex> MemoryStorage::NewestAsWritten() {
  std::optional<v1::CheckpointIndex> newest;
  WithFilesAsWritten([&] {
    const std::vector<v1::CheckpointRef> candidates =
        RestoreCandidates(*storage_->ReadClaims(), *storage_->ListCheckpoints());
    if (!candidates.empty()) newest = *storage_->ReadCheckpointIndex(candidates.front());
  });
  return newest;
}

}  // namespace sluice::simulation
