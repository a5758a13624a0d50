#include "services/checkpoint/storage.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

namespace sluice {
namespace {

std::tuple<uint64_t, uint64_t> OrderOf(const v1::CheckpointRef& ref) {
  return {ref.attempt(), ref.step()};
}

template <typename Message>
std::string ToJson(const Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.preserve_proto_field_names = true;
  std::string json;
  // Fails only on messages that are not initialised, which proto3 does not have.
  (void)google::protobuf::util::MessageToJsonString(message, &json, options);
  return json;
}

template <typename Message>
absl::StatusOr<Message> FromJson(absl::string_view json, absl::string_view what) {
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  Message message;
  const auto status = google::protobuf::util::JsonStringToMessage(
      google::protobuf::StringPiece(json.data(), json.size()), &message, options);
  if (!status.ok()) {
    return absl::DataLossError(absl::StrCat("not a ", what, ": ", status.ToString()));
  }
  if (message.format_version() == 0 || message.format_version() > kCheckpointFormatVersion) {
    return absl::DataLossError(absl::StrCat(what, " of format version ", message.format_version(),
                                            "; this build reads up to ", kCheckpointFormatVersion));
  }
  return message;
}

absl::Status CheckFiles(CheckpointStorage& storage, const v1::Manifest& manifest) {
  for (const v1::PartitionFile& file : manifest.files()) {
    if (auto content = storage.ReadFile(manifest.checkpoint(), file); !content.ok()) {
      return content.status();
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string CheckpointFolder(const v1::CheckpointRef& ref) {
  return absl::StrFormat("attempt-%04d-step-%012d", ref.attempt(), ref.step());
}

absl::StatusOr<v1::CheckpointRef> ParseCheckpointFolder(absl::string_view folder) {
  const std::vector<absl::string_view> parts = absl::StrSplit(folder, '-');
  v1::CheckpointRef ref;
  uint64_t attempt = 0;
  uint64_t step = 0;
  if (parts.size() == 4 && parts[0] == "attempt" && parts[2] == "step" &&
      absl::SimpleAtoi(parts[1], &attempt) && absl::SimpleAtoi(parts[3], &step)) {
    ref.set_attempt(attempt);
    ref.set_step(step);
    if (CheckpointFolder(ref) == folder) return ref;
  }
  return absl::InvalidArgumentError(absl::StrCat("'", folder, "' is not a checkpoint's name"));
}

std::vector<v1::CheckpointRef> RestoreCandidates(
    const std::vector<v1::Claim>& claims, const std::vector<v1::CheckpointRef>& checkpoints) {
  std::map<uint64_t, const v1::Claim*> claim_of;
  for (const v1::Claim& claim : claims) {
    if (!claim.end()) claim_of[claim.attempt()] = &claim;
  }
  std::vector<v1::CheckpointRef> candidates;
  if (claim_of.empty()) return candidates;
  std::vector<v1::CheckpointRef> descending = checkpoints;
  std::sort(descending.begin(), descending.end(),
            [](const auto& a, const auto& b) { return OrderOf(a) > OrderOf(b); });
  uint64_t attempt = claim_of.rbegin()->first;
  uint64_t highest_step = UINT64_MAX;
  while (true) {
    for (const v1::CheckpointRef& ref : descending) {
      if (ref.attempt() == attempt && ref.step() <= highest_step) candidates.push_back(ref);
    }
    const auto claim = claim_of.find(attempt);
    // Attempts only go down: a damaged or hostile chain of parents cannot make this endless.
    if (claim == claim_of.end() || !claim->second->has_parent() ||
        claim->second->parent().attempt() >= attempt) {
      return candidates;
    }
    const v1::CheckpointRef& parent = claim->second->parent();
    const bool there =
        std::any_of(checkpoints.begin(), checkpoints.end(),
                    [&](const v1::CheckpointRef& ref) { return OrderOf(ref) == OrderOf(parent); });
    attempt = parent.attempt();
    highest_step = there ? parent.step() : UINT64_MAX;
  }
}

bool IsSameJob(absl::string_view a, absl::string_view b) {
  const auto without_uid = [](absl::string_view job) { return job.substr(0, job.rfind('/')); };
  return without_uid(a) == without_uid(b);
}

absl::Status RemoveReplaced(CheckpointStorage& storage, const v1::CheckpointRef& ref,
                            uint64_t attempt) {
  const absl::StatusOr<std::vector<v1::Claim>> claims = storage.ReadClaims();
  if (!claims.ok()) return claims.status();
  for (const v1::Claim& claim : *claims) {
    if (claim.attempt() <= attempt) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("attempt ", claim.attempt(), " was claimed and may begin with it"));
  }
  return storage.Remove(ref);
}

absl::StatusOr<v1::Manifest> ReadWholeCheckpoint(CheckpointStorage& storage,
                                                 const v1::CheckpointRef& ref) {
  absl::StatusOr<v1::Manifest> manifest = storage.ReadManifest(ref);
  if (!manifest.ok()) return manifest;
  if (absl::Status status = CheckFiles(storage, *manifest); !status.ok()) return status;
  return manifest;
}

namespace {

// Looks once. `deleted`: a candidate vanished while it was read.
absl::StatusOr<RestorePoint> LookForRestorePoint(CheckpointStorage& storage, bool* deleted) {
  absl::StatusOr<std::vector<v1::Claim>> claims = storage.ReadClaims();
  if (!claims.ok()) return claims.status();
  absl::StatusOr<std::vector<v1::CheckpointRef>> checkpoints = storage.ListCheckpoints();
  if (!checkpoints.ok()) return checkpoints.status();
  RestorePoint point;
  for (const v1::CheckpointRef& ref : RestoreCandidates(*claims, *checkpoints)) {
    absl::StatusOr<v1::Manifest> manifest = ReadWholeCheckpoint(storage, ref);
    const absl::Status& status = manifest.status();
    if (status.ok()) {
      point.found = true;
      point.manifest = *std::move(manifest);
      return point;
    }
    // A storage that cannot be reached is not a damaged checkpoint: falling back further would lose
    // progress for nothing.
    if (absl::IsUnavailable(status) || absl::IsPermissionDenied(status)) return status;
    // A manifest goes first when a checkpoint is deleted.
    *deleted = *deleted || absl::IsNotFound(storage.ReadManifest(ref).status());
    point.damaged.push_back(
        absl::StrCat("checkpoint ", CheckpointFolder(ref), " is damaged: ", status.message()));
  }
  return point;
}

}  // namespace

absl::StatusOr<RestorePoint> FindRestorePoint(CheckpointStorage& storage) {
  for (int look = 1;; ++look) {
    bool deleted = false;
    absl::StatusOr<RestorePoint> point = LookForRestorePoint(storage, &deleted);
    if (!point.ok() || !deleted || look == kMaxLooks) return point;
  }
}

std::string ManifestToJson(const v1::Manifest& manifest) { return ToJson(manifest); }

absl::StatusOr<v1::Manifest> ManifestFromJson(absl::string_view json) {
  return FromJson<v1::Manifest>(json, "manifest");
}

std::string ClaimToJson(const v1::Claim& claim) { return ToJson(claim); }

absl::StatusOr<v1::Claim> ClaimFromJson(absl::string_view json) {
  return FromJson<v1::Claim>(json, "claim");
}

}  // namespace sluice
