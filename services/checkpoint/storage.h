// Stores a job's claims, checkpoint indexes and partition files (docs/checkpoints.md).
//
//   owner                                  exclusive create: the directory's job, with a checksum
//   claims/000001.json                     exclusive create: the claim of attempt 1 (R11); the last
//                                          one may be the end record
//   claims/000001-loss-0001.json           exclusive create: attempt 1's first loss record (R4)
//   attempt-0001-step-000000000500/        one checkpoint
//       partition-00000.safetensors ...
//       manifest.json                      written last: a directory without one is no checkpoint
//
// Intuition: a storage has only two operations that matter. Exclusive create decides between
// coordinators that do not know of each other (docs/decisions/claims.md). The index is written
// after all files that it names, so a checkpoint appears whole or not at all. Nothing is ever
// rewritten, except a damaged owner file.
//
// Stored files can be damaged later, so every file has a checksum. Damaged files are reported and
// not used: the newest whole checkpoint is used instead. If no checkpoint is whole, that is an
// error; the job does not silently begin at zero.

#ifndef SLUICE_SERVICES_CHECKPOINT_STORAGE_H_
#define SLUICE_SERVICES_CHECKPOINT_STORAGE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"
#include "proto/checkpoint.pb.h"

namespace sluice {

// The versions that indexes and claims are written with. Older versions can be read too: version
// 1 has no checksums over claims, indexes and the owner; claims of version 2 do not name their
// job.
inline constexpr uint32_t kCheckpointFormatVersion = 2;
inline constexpr uint32_t kClaimFormatVersion = 3;

// Claims are numbered without gaps. Up to this many missing claims count as lost; a number beyond
// that was not claimed by a coordinator.
inline constexpr uint64_t kMaxMissingClaims = 1000;

// Files that workers derive from the training data and keep in the job's checkpoint directory: the
// words of a text, the encoding of a table.
inline constexpr char kVocabularyFile[] = "vocabulary.txt";
inline constexpr char kTableEncodingFile[] = "encoding.csv";
// Positions of the stream that a Python program trains on (python/sluice/stream_states.py).
inline constexpr char kStreamStatesFile[] = "stream.states";

// "attempt-0001-step-000000000500"; sorts by attempt, then step, as text.
std::string CheckpointDirectory(const v1::CheckpointRef& ref);
// INVALID_ARGUMENT if `directory` is not such a name.
absl::StatusOr<v1::CheckpointRef> ParseCheckpointDirectory(absl::string_view directory);

// What is checked of a checkpoint's files besides its index: only that they exist and have the
// sizes that the index names, or also their contents, which reads all of them. Processes that load
// a file check its contents in any case.
enum class FileCheck { kSizes, kContents };

// Thread-safe. Calls block until the medium answers. Errors name the file; NOT_FOUND,
// ALREADY_EXISTS, RESOURCE_EXHAUSTED (full), PERMISSION_DENIED, DATA_LOSS (damaged), else
// UNAVAILABLE.
class CheckpointStorage {
 public:
  virtual ~CheckpointStorage() = default;

  // Checks that the storage can be written: creates missing directories, then creates and removes a
  // file. Makes durable what a process that crashed has left in it, so that what is read from now
  // on outlives a loss of power.
  virtual absl::Status Probe() = 0;

  // Makes the job ("<namespace>/<name>/<uid>") the owner of the storage; call it after Probe,
  // before any other use. FAILED_PRECONDITION, with a sentence that names both jobs, if another job
  // owns the storage; of several jobs that start at once, one gets it. The uid is not compared:
  // existing_job.h decides what a job does with the checkpoints of a job of the same name. A
  // storage of an older version has no owner file; its owner is the job that its newest index
  // names. The same holds if the owner file is damaged, which is then rewritten. DATA_LOSS, with
  // advice, if no index names an owner either.
  virtual absl::Status Own(const std::string& job) = 0;

  // Durable when it returns OK. ALREADY_EXISTS if another claim of this attempt number exists, or,
  // for a loss record, another one of this attempt and number; then nothing is changed. OK if the
  // claim that exists is this one (IsSameClaim): an earlier call made it, although it failed.
  virtual absl::Status CreateClaim(const v1::Claim& claim) = 0;
  // Ascending, without gaps. For a claim that is damaged, or missing below another one, only the
  // attempt is set (IsDamaged): a coordinator claimed it, and nothing else is known of it. A claim
  // has loss_record, kept and term of its attempt's newest loss record, if there is one; if that
  // record is damaged, `kept` is empty. Files that are not named like a claim or a loss record are
  // ignored. FAILED_PRECONDITION, with advice: more than kMaxMissingClaims claims are missing.
  virtual absl::StatusOr<std::vector<v1::Claim>> ReadClaims() = 0;
  // One sentence for each file of owner and claims/ that is damaged, missing or not Sluice's.
  virtual std::vector<std::string> FindDamage() { return {}; }

  // The checkpoints that have an index, ascending by (attempt, step). Does not read the
  // indexes.
  virtual absl::StatusOr<std::vector<v1::CheckpointRef>> ListCheckpoints() = 0;
  // Also checks that the index is of `ref`.
  virtual absl::StatusOr<v1::CheckpointIndex> ReadCheckpointIndex(const v1::CheckpointRef& ref) = 0;
  // Durable when it returns; what writers that died left beside the files of the checkpoint is
  // removed then. FAILED_PRECONDITION, and nothing is written, if the checkpoint's directory exists
  // but lacks a file that the index names, or the file has another size.
  virtual absl::Status WriteCheckpointIndex(const v1::CheckpointIndex& checkpoint_index) = 0;

  // Writes one file of a checkpoint that has no index yet; durable when it returns. An existing
  // file is replaced atomically.
  virtual absl::Status WriteFile(const v1::CheckpointRef& ref, absl::string_view name,
                                 const absl::Cord& content) = 0;
  // DATA_LOSS if size or CRC32C differ from the index's.
  virtual absl::StatusOr<absl::Cord> ReadFile(const v1::CheckpointRef& ref,
                                              const v1::PartitionFile& file) = 0;
  // The same without reading the content: compares the size only.
  virtual absl::Status CheckSize(const v1::CheckpointRef& ref, const v1::PartitionFile& file) {
    return ReadFile(ref, file).status();
  }

  // Removes the index first, so that a half-removed checkpoint does not count as one. OK if
  // there is none.
  virtual absl::Status Remove(const v1::CheckpointRef& ref) = 0;
  // Removes directories without an index that belong to attempts below `attempt`.
  virtual absl::Status RemoveIncomplete(uint64_t attempt) = 0;

  // Renames what workers keep beside the checkpoints of their data (vocabulary, encoding, states of
  // a stream), so that a job that begins at zero learns its own. OK if there is none.
  virtual absl::Status SetEncodingsAside() { return absl::OkStatus(); }
};

// The checkpoints to try, best first (R11): the newest of the highest claimed attempt, older ones
// of it, then the same of that claim's parent (from the parent checkpoint downwards), and so on. A
// missing parent was deleted when a newer checkpoint of its own attempt replaced it, before it was
// known to be a parent: the newest checkpoints of that attempt are used instead; if there are none,
// those of the newest attempt below the claim, which began with the parent. The parent of a damaged
// claim is not known: the checkpoints of the next lower attempt are used instead. Checkpoints of
// unclaimed attempts are left out.
std::vector<v1::CheckpointRef> RestoreCandidates(const std::vector<v1::Claim>& claims,
                                                 const std::vector<v1::CheckpointRef>& checkpoints);

// For a claim that ReadClaims returned: true if only its attempt is known.
inline bool IsDamaged(const v1::Claim& claim) { return claim.format_version() == 0; }

// Whether one coordinator made both, for the same purpose: equal attempts, ends, loss records with
// the shards that they keep, and terms with the incarnation.
bool IsSameClaim(const v1::Claim& a, const v1::Claim& b);

// Whether two full names ("<namespace>/<name>/<uid>") are of the same job; the uids may differ.
bool IsSameJob(absl::string_view a, absl::string_view b);

// Removes a checkpoint that a newer one of attempt `attempt` has replaced, unless a coordinator has
// meanwhile claimed a higher attempt, which may begin with it (R11): FAILED_PRECONDITION.
absl::Status RemoveReplaced(CheckpointStorage& storage, const v1::CheckpointRef& ref,
                            uint64_t attempt);

// How many times a reader searches at most: a job that trains may delete what it reads.
inline constexpr int kMaxSearches = 5;

struct RestorePoint {
  bool found = false;
  v1::CheckpointIndex checkpoint_index;
  // One sentence for each candidate that was skipped, for each problem of FindDamage, and, if none
  // is found, for each checkpoint that is not used.
  std::vector<std::string> damaged;
  std::vector<v1::CheckpointRef> passed_over;  // the skipped candidates
};

// Checks that an index's values (tables, layouts, files, ledgers) agree with each other;
// DATA_LOSS names those that do not. Reads nothing but the index.
absl::Status ValidateCheckpointIndex(const v1::CheckpointIndex& checkpoint_index);

// The index of checkpoint `ref`, if it and every file are whole, as far as they are checked;
// DATA_LOSS or NOT_FOUND otherwise.
absl::StatusOr<v1::CheckpointIndex> ReadWholeCheckpoint(CheckpointStorage& storage,
                                                        const v1::CheckpointRef& ref,
                                                        FileCheck check = FileCheck::kContents);

// The best candidate of which the index and every file are whole, as far as they are checked. A
// candidate that is deleted meanwhile (a job that trains has replaced it) is not damaged: the
// search starts again and finds its replacement. `found` is false only if there is nothing to begin
// with. FAILED_PRECONDITION, with advice, if there are or were checkpoints (a claim names one) and
// none of them is whole, or if claims were removed: a job that began at zero then would lose its
// progress silently.
absl::StatusOr<RestorePoint> FindRestorePoint(CheckpointStorage& storage,
                                              FileCheck check = FileCheck::kContents);

// Index and claim as JSON with the proto's field names, in the current format version. The last
// member is "crc32c", over all bytes before the comma that precedes it. DATA_LOSS on text that is
// not such JSON, does not match its checksum, or has a field that its version does not have;
// UNIMPLEMENTED if it is of a newer version.
std::string CheckpointIndexToJson(const v1::CheckpointIndex& checkpoint_index);
absl::StatusOr<v1::CheckpointIndex> CheckpointIndexFromJson(absl::string_view json);
std::string ClaimToJson(const v1::Claim& claim);
absl::StatusOr<v1::Claim> ClaimFromJson(absl::string_view json);

}  // namespace sluice

#endif  // SLUICE_SERVICES_CHECKPOINT_STORAGE_H_
