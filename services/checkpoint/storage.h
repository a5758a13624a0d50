// Where a job's claims, manifests and partition files lie (docs/checkpoints.md).
//
//   owner                                  exclusive create: whose folder it is, with a checksum
//   claims/000001.json                     exclusive create: who gives attempt 1 (R11); the last
//                                          may be the end record
//   attempt-0001-step-000000000500/        one checkpoint
//       partition-00000.safetensors ...
//       manifest.json                      written last: a folder without one is no checkpoint
//
// Intuition: a storage has only two operations that matter. Exclusive create decides between
// coordinators that do not know of each other. A manifest that is written after all that it names
// makes a checkpoint appear whole or not at all. Nothing is ever rewritten, but a damaged owner.
//
// Storage rots. Every file has a checksum, and what is damaged is named and done without: the
// newest whole checkpoint is used; if none is whole, that is an error and no reason to begin at
// zero.

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

// The versions that manifests and claims are written with. Older ones can be read too: 1 has no
// checksums over claims, manifests and the owner; claims of 2 do not name their job.
inline constexpr uint32_t kCheckpointFormatVersion = 2;
inline constexpr uint32_t kClaimFormatVersion = 3;

// Claims are numbered without gaps. Up to so many that are missing are taken for lost; beyond that,
// a number is no claim of a coordinator.
inline constexpr uint64_t kMaxMissingClaims = 1000;

// "attempt-0001-step-000000000500"; sorts by attempt, then step, as text.
std::string CheckpointFolder(const v1::CheckpointRef& ref);
// INVALID_ARGUMENT if it is not such a name.
absl::StatusOr<v1::CheckpointRef> ParseCheckpointFolder(absl::string_view folder);

// Thread-safe. Calls block for as long as the medium takes. Errors name the file; NOT_FOUND,
// ALREADY_EXISTS, RESOURCE_EXHAUSTED (full), PERMISSION_DENIED, DATA_LOSS (damaged), else
// UNAVAILABLE.
class CheckpointStorage {
 public:
  virtual ~CheckpointStorage() = default;

  // Whether it can be written: creates what is missing, then makes and removes a file.
  virtual absl::Status Probe() = 0;

  // Takes the storage for a job ("<namespace>/<name>/<uid>"), before anything else is done with it.
  // FAILED_PRECONDITION, a sentence that names both jobs, if it is another job's; of many jobs that
  // begin at once one gets it. The uid is not compared: what a job does with the checkpoints of a
  // job of its name, existing_job.h decides. One of an older version, which has no owner, is whose
  // its newest manifest is; so is one whose owner is damaged, which is then made anew. DATA_LOSS,
  // with advice, if that cannot be told either.
  virtual absl::Status Own(const std::string& job) = 0;

  // ALREADY_EXISTS if a claim of this attempt number exists; then nothing is changed.
  virtual absl::Status CreateClaim(const v1::Claim& claim) = 0;
  // Ascending, without gaps. A claim that is damaged, or missing below another one, is there by its
  // attempt alone (IsDamaged): somebody claimed it, and nothing else is known of it. What is not
  // named as a claim is none. FAILED_PRECONDITION, with advice: more than kMaxMissingClaims lack.
  virtual absl::StatusOr<std::vector<v1::Claim>> ReadClaims() = 0;
  // What owner and claims/ hold that is damaged, missing or not Sluice's: a sentence each.
  virtual std::vector<std::string> FindDamage() { return {}; }

  // Those that have a manifest, ascending by (attempt, step). Does not read them.
  virtual absl::StatusOr<std::vector<v1::CheckpointRef>> ListCheckpoints() = 0;
  // Checks that it is the manifest of `ref`.
  virtual absl::StatusOr<v1::Manifest> ReadManifest(const v1::CheckpointRef& ref) = 0;
  // Durable when it returns. FAILED_PRECONDITION if the checkpoint's folder is there, and a file
  // that the manifest names is not, with its size: then nothing is written.
  virtual absl::Status WriteManifest(const v1::Manifest& manifest) = 0;

  // Writes one file of a checkpoint that has no manifest yet; durable when it returns. A file that
  // exists whole is replaced whole.
  virtual absl::Status WriteFile(const v1::CheckpointRef& ref, absl::string_view name,
                                 const absl::Cord& content) = 0;
  // DATA_LOSS if size or CRC32C differ from the manifest's.
  virtual absl::StatusOr<absl::Cord> ReadFile(const v1::CheckpointRef& ref,
                                              const v1::PartitionFile& file) = 0;

  // Removes the manifest first, so that a half-removed checkpoint is none. OK if there is none.
  virtual absl::Status Remove(const v1::CheckpointRef& ref) = 0;
  // Removes folders without a manifest that belong to attempts below `attempt`.
  virtual absl::Status RemoveIncomplete(uint64_t attempt) = 0;

  // Renames the vocabulary that workers keep beside the checkpoints, so that a job that replaces
  // these learns its own. OK if there is none.
  virtual absl::Status SetVocabularyAside() { return absl::OkStatus(); }
};

// The checkpoints to try, best first (R11): the newest of the highest claimed attempt, older ones
// of it, then the same of that claim's parent (from the parent checkpoint downwards), and so on. A
// parent that is not there was deleted when a newer checkpoint of its own attempt took its place,
// before it was known to be a parent: then that attempt's newest ones stand for it; or, if there
// are none, those of the newest attempt below the claim, which began with the parent. A damaged
// claim's parent is not known: the next lower attempt's stand for it. Checkpoints of attempts that
// nobody claimed are left out.
std::vector<v1::CheckpointRef> RestoreCandidates(const std::vector<v1::Claim>& claims,
                                                 const std::vector<v1::CheckpointRef>& checkpoints);

// Of a claim that ReadClaims returned: only its attempt is known.
inline bool IsDamaged(const v1::Claim& claim) { return claim.format_version() == 0; }

// Whether two names of jobs ("<namespace>/<name>/<uid>") are of the same one, in one life or in
// two.
bool IsSameJob(absl::string_view a, absl::string_view b);

// Removes a checkpoint that a newer one of attempt `attempt` has replaced, unless somebody has
// claimed a higher attempt meanwhile, which may begin with it (R11): FAILED_PRECONDITION.
absl::Status RemoveReplaced(CheckpointStorage& storage, const v1::CheckpointRef& ref,
                            uint64_t attempt);

// How often a reader begins again because a job that trains deletes what it reads.
inline constexpr int kMaxLooks = 5;

struct RestorePoint {
  bool found = false;
  v1::Manifest manifest;
  // One sentence for each better candidate that was passed over, and each claim that is damaged.
  std::vector<std::string> damaged;
  std::vector<v1::CheckpointRef> passed_over;  // the former
};

// Whether a manifest's values fit each other; DATA_LOSS says which do not: tables, layouts, files,
// ledgers. Needs nothing but the manifest.
absl::Status CheckManifest(const v1::Manifest& manifest);

// The one checkpoint `ref`, if its manifest and every file are whole; DATA_LOSS or NOT_FOUND
// otherwise.
absl::StatusOr<v1::Manifest> ReadWholeCheckpoint(CheckpointStorage& storage,
                                                 const v1::CheckpointRef& ref);

// The best candidate of which the manifest and every file are whole. Reads all of its files. One
// that is deleted meanwhile (a job that trains has replaced it) is not damaged: what replaced it is
// looked for. `found` is false only where there is nothing to begin with: FAILED_PRECONDITION with
// advice if checkpoints are there, or were (a claim names one), and none of them is whole, or if
// claims were removed. Beginning at zero beside them would be a loss without a word.
absl::StatusOr<RestorePoint> FindRestorePoint(CheckpointStorage& storage);

// Manifest and claim as JSON with the proto's field names, of the present format version. The last
// member is "crc32c", over all bytes before the comma that it follows. DATA_LOSS on text that is
// not one, differs from its checksum, or has a field that its version does not have; UNIMPLEMENTED
// if it is of a newer version.
std::string ManifestToJson(const v1::Manifest& manifest);
absl::StatusOr<v1::Manifest> ManifestFromJson(absl::string_view json);
std::string ClaimToJson(const v1::Claim& claim);
absl::StatusOr<v1::Claim> ClaimFromJson(absl::string_view json);

}  // namespace sluice

#endif  // SLUICE_SERVICES_CHECKPOINT_STORAGE_H_
