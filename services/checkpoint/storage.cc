#include "services/checkpoint/storage.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <tuple>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "services/common/arithmetic/crc32c.h"
#include "services/common/status_macros.h"
#include "services/common/text/json_text.h"
#include "services/protocol/interval_set.h"
#include "services/protocol/layout.h"

namespace sluice {
namespace {

std::tuple<uint64_t, uint64_t> OrderOf(const v1::CheckpointRef& ref) {
  return {ref.attempt(), ref.step()};
}

// An index's deepest value is a tensor's extent: object, table, tensors, tensor, shape.
constexpr size_t kMaxJsonDepth = 16;
constexpr uint32_t kFirstSummedVersion = 2;
constexpr absl::string_view kSumBegins = ",\n \"crc32c\": \"";
constexpr absl::string_view kSumEnds = "\"\n}\n";
constexpr absl::string_view kObjectEnds = "\n}\n";
constexpr size_t kSumDigits = 8;

std::string SumText(absl::string_view bytes) { return absl::StrFormat("%08x", Crc32c(bytes)); }

template <typename Message>
constexpr uint32_t kFormatVersion = kCheckpointFormatVersion;
template <>
constexpr uint32_t kFormatVersion<v1::Claim> = kClaimFormatVersion;

// The checksum is the last member of the text's object and covers every byte before it: it detects
// every flipped, missing or inserted byte, even a space.
template <typename Message>
std::string ToJson(Message message) {
  message.set_format_version(kFormatVersion<Message>);
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.preserve_proto_field_names = true;

  std::string json;
  // Fails only on messages that are not initialised, which proto3 does not have.
  (void)google::protobuf::util::MessageToJsonString(message, &json, options);

  absl::string_view body = json;
  absl::ConsumeSuffix(&body, kObjectEnds);
  return absl::StrCat(body, kSumBegins, SumText(body), kSumEnds);
}

template <typename Message>
absl::Status ParseJson(absl::string_view json, bool ignore_unknown_fields, Message* message) {
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = ignore_unknown_fields;
  const auto status = google::protobuf::util::JsonStringToMessage(
      google::protobuf::StringPiece(json.data(), json.size()), message, options);
  if (status.ok()) return absl::OkStatus();
  // The lines after the first one show the position.
  const absl::string_view why(status.message().data(), status.message().size());
  return absl::DataLossError(why.substr(0, why.find('\n')));
}

template <typename Message>
absl::StatusOr<Message> FromJson(absl::string_view json, absl::string_view what) {
  const auto damaged = [&](absl::string_view why) {
    return absl::DataLossError(absl::StrCat("not a whole ", what, ": ", why));
  };
  RETURN_IF_ERROR(CheckJsonText(json, kMaxJsonDepth), damaged(_.message()));

  const size_t sum_bytes = kSumBegins.size() + kSumDigits + kSumEnds.size();
  const size_t body_bytes = json.size() > sum_bytes ? json.size() - sum_bytes : 0;
  absl::string_view sum = json.substr(body_bytes);
  const bool summed = body_bytes > 0 && absl::ConsumePrefix(&sum, kSumBegins) &&
                      absl::ConsumeSuffix(&sum, kSumEnds);

  std::string text(json);
  if (summed) {
    const absl::string_view body = json.substr(0, body_bytes);
    if (sum != SumText(body)) {
      return damaged(absl::StrCat("its CRC32C is ", SumText(body), ", not the stated ", sum));
    }
    text = absl::StrCat(body, kObjectEnds);
  }

  // Only the number of a newer version is known.
  if (Message any; ParseJson(text, /*ignore_unknown_fields=*/true, &any).ok() &&
                   any.format_version() > kFormatVersion<Message>) {
    return absl::UnimplementedError(
        absl::StrCat(what, " of format version ", any.format_version(), "; this build reads up to ",
                     kFormatVersion<Message>, ": use a newer version of Sluice"));
  }

  Message message;
  // An unknown field is damage: the field that it was before would be missing silently.
  RETURN_IF_ERROR(ParseJson(text, /*ignore_unknown_fields=*/false, &message), damaged(_.message()));

  if (message.format_version() == 0) return damaged("it has no format_version");
  if (summed != (message.format_version() >= kFirstSummedVersion)) {
    return damaged(summed ? "its version has no checksum" : "its checksum is missing");
  }
  return message;
}

absl::Status CheckFiles(CheckpointStorage& storage, const v1::CheckpointIndex& checkpoint_index,
                        FileCheck check) {
  const v1::CheckpointRef& ref = checkpoint_index.checkpoint();
  for (const v1::PartitionFile& file : checkpoint_index.files()) {
    RETURN_IF_ERROR(check == FileCheck::kSizes ? storage.CheckSize(ref, file)
                                               : storage.ReadFile(ref, file).status());
  }
  return absl::OkStatus();
}

}  // namespace

std::string CheckpointDirectory(const v1::CheckpointRef& ref) {
  return absl::StrFormat("attempt-%04d-step-%012d", ref.attempt(), ref.step());
}

absl::StatusOr<v1::CheckpointRef> ParseCheckpointDirectory(absl::string_view directory) {
  const std::vector<absl::string_view> parts = absl::StrSplit(directory, '-');
  v1::CheckpointRef ref;
  uint64_t attempt = 0;
  uint64_t step = 0;
  if (parts.size() == 4 && parts[0] == "attempt" && parts[2] == "step" &&
      absl::SimpleAtoi(parts[1], &attempt) && absl::SimpleAtoi(parts[3], &step)) {
    ref.set_attempt(attempt);
    ref.set_step(step);
    if (CheckpointDirectory(ref) == directory) return ref;
  }
  return absl::InvalidArgumentError(absl::StrCat("'", directory, "' is not a checkpoint's name"));
}

namespace {

// The highest claimed attempt above `low` and below `high` that has a checkpoint; else `low`.
uint64_t NewestBetween(const std::vector<v1::CheckpointRef>& descending,
                       const std::map<uint64_t, const v1::Claim*>& claim_of, uint64_t low,
                       uint64_t high) {
  for (const v1::CheckpointRef& ref : descending) {
    const bool between = ref.attempt() > low && ref.attempt() < high;
    if (between && claim_of.count(ref.attempt()) > 0) return ref.attempt();
  }
  return low;
}

}  // namespace

bool IsSameClaim(const v1::Claim& a, const v1::Claim& b) {
  return a.term().coordinator() != 0 && a.term().coordinator() == b.term().coordinator() &&
         a.term().counter() == b.term().counter() && a.attempt() == b.attempt() &&
         a.end() == b.end() && a.loss_record() == b.loss_record() &&
         std::equal(a.kept().begin(), a.kept().end(), b.kept().begin(), b.kept().end());
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
    if (claim != claim_of.end() && IsDamaged(*claim->second)) {
      if (claim == claim_of.begin()) return candidates;
      attempt = std::prev(claim)->first;
      highest_step = UINT64_MAX;
      continue;
    }

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

    // If all checkpoints of the parent's attempt are gone, and the claim's attempt has none that
    // could have replaced them, a later attempt that began with the parent replaced them: its
    // newest checkpoints are used instead.
    const bool gone = std::none_of(
        checkpoints.begin(), checkpoints.end(),
        [&](const v1::CheckpointRef& ref) { return ref.attempt() == parent.attempt(); });
    if (gone && candidates.empty()) {
      attempt = NewestBetween(descending, claim_of, parent.attempt(), claim->first);
    }
    highest_step = there ? parent.step() : UINT64_MAX;
  }
}

bool IsSameJob(absl::string_view a, absl::string_view b) {
  const auto without_uid = [](absl::string_view job) { return job.substr(0, job.rfind('/')); };
  return without_uid(a) == without_uid(b);
}

absl::Status RemoveReplaced(CheckpointStorage& storage, const v1::CheckpointRef& ref,
                            uint64_t attempt) {
  ASSIGN_OR_RETURN(const std::vector<v1::Claim> claims, storage.ReadClaims());
  for (const v1::Claim& claim : claims) {
    if (claim.attempt() <= attempt) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("attempt ", claim.attempt(), " was claimed and may begin with it"));
  }
  return storage.Remove(ref);
}

namespace {

// More samples than a job can have, so that sums do not overflow.
constexpr uint64_t kMaxSamples = uint64_t{1} << 62;

absl::Status CheckFileList(const v1::CheckpointIndex& checkpoint_index) {
  std::set<std::string> names;
  std::set<uint32_t> partitions;
  for (const v1::PartitionFile& file : checkpoint_index.files()) {
    if (file.name().empty() || absl::StrContains(file.name(), '/') ||
        !names.insert(file.name()).second) {
      return absl::DataLossError(absl::StrCat(
          "'", file.name(), "' is not a file name in its directory, or is listed twice"));
    }
    if (!partitions.insert(file.partition()).second) {
      return absl::DataLossError(absl::StrCat("it has two files of partition ", file.partition()));
    }
  }

  // Only tests have indexes without tensors.
  if (checkpoint_index.table().tensors().empty() && checkpoint_index.layout().blocks().empty()) {
    return absl::OkStatus();
  }

  RETURN_IF_ERROR(ValidateTable(checkpoint_index.table()), absl::DataLossError(_.message()));
  RETURN_IF_ERROR(ValidateLayout(checkpoint_index.table(), checkpoint_index.layout()),
                  absl::DataLossError(_.message()));

  const LayoutIndex index(checkpoint_index.table(), checkpoint_index.layout());
  for (uint32_t p = 0; p < index.partitions(); ++p) {
    if (index.IsEmpty(p) || partitions.count(p) > 0) continue;
    return absl::DataLossError(absl::StrCat("it has no file of partition ", p));
  }

  if (!partitions.empty() && *partitions.rbegin() >= index.partitions()) {
    return absl::DataLossError(absl::StrCat("it has a file of partition ", *partitions.rbegin(),
                                            ", and ", index.partitions(), " partitions"));
  }
  return absl::OkStatus();
}

absl::Status CheckPosition(const v1::CheckpointIndex& checkpoint_index) {
  if (!v1::Mode_IsValid(checkpoint_index.mode())) {
    return absl::DataLossError(absl::StrCat(checkpoint_index.mode(), " is not a mode"));
  }
  if (checkpoint_index.samples() > kMaxSamples ||
      checkpoint_index.checkpoint().step() > kMaxSamples) {
    return absl::DataLossError("its samples or its step are more than a job can have");
  }

  // Its parent may be of another job, whose attempts have other numbers.
  if (!checkpoint_index.has_ledger()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const IntervalSet applied,
                   IntervalSet::FromProtos(checkpoint_index.ledger().applied()),
                   absl::DataLossError(_.message()));
  if (!applied.empty() && applied.Intervals().back().end > kMaxSamples) {
    return absl::DataLossError("its ledger names samples that no job has");
  }

  if (applied.Count() != checkpoint_index.samples() ||
      checkpoint_index.ledger().updates() != checkpoint_index.checkpoint().step()) {
    return absl::DataLossError(
        absl::StrCat("its ledger has ", applied.Count(), " samples and ",
                     checkpoint_index.ledger().updates(), " updates, and the checkpoint ",
                     checkpoint_index.samples(), " and ", checkpoint_index.checkpoint().step()));
  }
  return absl::OkStatus();
}

std::string JoinSentences(const std::vector<std::string>& sentences) {
  return absl::StrCat(sentences.empty() ? "" : ": ", absl::StrJoin(sentences, "; "));
}

constexpr char kAdvice[] =
    ". Restore missing or damaged files from a copy, begin a job with a directory of its own from "
    "another checkpoint (checkpoint.restoreFrom), or remove the directory to train from the "
    "beginning";

// Called if no checkpoint can be used: OK if there is really nothing to begin with.
absl::Status CheckEmpty(const std::vector<v1::Claim>& claims, size_t checkpoints, bool candidates,
                        const RestorePoint& point) {
  const v1::Claim* newest = claims.empty() ? nullptr : &claims.back();
  if (newest == nullptr || newest->end()) return absl::OkStatus();  // has finished
  if (candidates) {
    return absl::FailedPreconditionError(
        absl::StrCat("no checkpoint of the job is whole", JoinSentences(point.damaged), kAdvice));
  }
  // (R11) The newest attempt began at zero, before there was a checkpoint.
  if (checkpoints > 0 && !IsDamaged(*newest) && !newest->has_parent()) return absl::OkStatus();
  for (const v1::Claim& claim : claims) {
    if (!IsDamaged(claim) && !claim.has_parent()) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "the job has no checkpoint that can be used, and ",
        IsDamaged(claim) ? absl::StrCat("it is not known how attempt ", claim.attempt(), " began")
                         : absl::StrCat("attempt ", claim.attempt(), " began with ",
                                        CheckpointDirectory(claim.parent())),
        JoinSentences(point.damaged), kAdvice));
  }
  return absl::OkStatus();
}

// A storage that cannot be reached, or was written by a newer version, is not damaged: an older
// checkpoint would lose progress needlessly.
bool IsUnreachable(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsPermissionDenied(status) ||
         absl::IsUnimplemented(status);
}

// Checkpoints of attempts that no coordinator has claimed.
struct Unclaimed {
  std::vector<v1::CheckpointRef> damaged;
  std::vector<std::string> sentences;  // about them
  absl::Status error;                  // claims were removed; OK if there are none
};

// A checkpoint without its attempt's claim shows that claims were removed, unless its index is
// damaged or another file is in its place: a coordinator may not have made that.
absl::StatusOr<Unclaimed> FindUnclaimed(CheckpointStorage& storage,
                                        const std::vector<v1::CheckpointRef>& checkpoints,
                                        uint64_t highest_claim) {
  Unclaimed unclaimed;
  for (const v1::CheckpointRef& ref : checkpoints) {
    if (ref.attempt() <= highest_claim) continue;
    const absl::Status status = storage.ReadCheckpointIndex(ref).status();
    if (IsUnreachable(status)) return status;
    if (absl::IsNotFound(status)) continue;  // deleted in the meantime

    if (unclaimed.error.ok()) {
      unclaimed.error = absl::FailedPreconditionError(
          absl::StrCat("there is ", CheckpointDirectory(ref), ", and no claim of attempt ",
                       ref.attempt(), ": claims were removed", kAdvice));
    }
    if (status.ok()) return unclaimed.error;
    unclaimed.damaged.push_back(ref);
    unclaimed.sentences.push_back(
        absl::StrCat("checkpoint ", CheckpointDirectory(ref),
                     ", of an attempt without a claim, is damaged: ", status.message()));
  }
  return unclaimed;
}

// Searches once. Sets `changed` if a job that trains may have changed the storage meanwhile.
absl::StatusOr<RestorePoint> FindRestorePointOnce(CheckpointStorage& storage, FileCheck check,
                                                  bool* changed) {
  ASSIGN_OR_RETURN(std::vector<v1::Claim> claims, storage.ReadClaims());
  ASSIGN_OR_RETURN(std::vector<v1::CheckpointRef> checkpoints, storage.ListCheckpoints());

  RestorePoint point;
  point.damaged = storage.FindDamage();

  const uint64_t highest = claims.empty() ? 0 : claims.back().attempt();
  absl::StatusOr<Unclaimed> unclaimed = FindUnclaimed(storage, checkpoints, highest);
  if (!unclaimed.ok()) {
    *changed = absl::IsFailedPrecondition(unclaimed.status());
    return unclaimed.status();
  }
  point.passed_over = std::move(unclaimed->damaged);
  for (std::string& sentence : unclaimed->sentences) point.damaged.push_back(std::move(sentence));

  const std::vector<v1::CheckpointRef> candidates = RestoreCandidates(claims, checkpoints);
  for (const v1::CheckpointRef& ref : candidates) {
    absl::StatusOr<v1::CheckpointIndex> checkpoint_index = ReadWholeCheckpoint(storage, ref, check);
    const absl::Status& status = checkpoint_index.status();
    if (status.ok()) {
      point.found = true;
      point.checkpoint_index = *std::move(checkpoint_index);
      return point;
    }
    if (IsUnreachable(status)) return status;
    // When a checkpoint is deleted, its index is removed first.
    *changed = *changed || absl::IsNotFound(storage.ReadCheckpointIndex(ref).status());
    point.passed_over.push_back(ref);
    point.damaged.push_back(
        absl::StrCat("checkpoint ", CheckpointDirectory(ref), " is damaged: ", status.message()));
  }

  // Without another checkpoint, a damaged one must not be ignored: the job would begin at zero.
  if (!unclaimed->error.ok()) {
    *changed = true;
    return unclaimed->error;
  }

  const bool any = !candidates.empty();
  if (absl::Status empty = CheckEmpty(claims, checkpoints.size(), any, point); !empty.ok()) {
    *changed = true;
    return empty;
  }

  for (const v1::CheckpointRef& ref : checkpoints) {
    point.damaged.push_back(absl::StrCat("checkpoint ", CheckpointDirectory(ref),
                                         " is not used: attempt ", highest,
                                         " was begun without it"));
  }
  return point;
}

}  // namespace

absl::Status ValidateCheckpointIndex(const v1::CheckpointIndex& checkpoint_index) {
  absl::Status status = CheckFileList(checkpoint_index);
  if (status.ok()) status = CheckPosition(checkpoint_index);
  if (status.ok()) return status;
  return absl::DataLossError(absl::StrCat("its index contradicts itself: ", status.message()));
}

absl::StatusOr<v1::CheckpointIndex> ReadWholeCheckpoint(CheckpointStorage& storage,
                                                        const v1::CheckpointRef& ref,
                                                        FileCheck check) {
  ASSIGN_OR_RETURN(v1::CheckpointIndex checkpoint_index, storage.ReadCheckpointIndex(ref));
  RETURN_IF_ERROR(ValidateCheckpointIndex(checkpoint_index));
  RETURN_IF_ERROR(CheckFiles(storage, checkpoint_index, check));
  return checkpoint_index;
}

absl::StatusOr<RestorePoint> FindRestorePoint(CheckpointStorage& storage, FileCheck check) {
  for (int search = 1;; ++search) {
    bool changed = false;
    absl::StatusOr<RestorePoint> point = FindRestorePointOnce(storage, check, &changed);
    if (!changed || search == kMaxSearches) return point;
  }
}

std::string CheckpointIndexToJson(const v1::CheckpointIndex& checkpoint_index) {
  return ToJson(checkpoint_index);
}

absl::StatusOr<v1::CheckpointIndex> CheckpointIndexFromJson(absl::string_view json) {
  return FromJson<v1::CheckpointIndex>(json, "checkpoint index");
}

std::string ClaimToJson(const v1::Claim& claim) { return ToJson(claim); }

absl::StatusOr<v1::Claim> ClaimFromJson(absl::string_view json) {
  return FromJson<v1::Claim>(json, "claim");
}

}  // namespace sluice
