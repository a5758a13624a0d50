// Another job's checkpoint, as a user names it (checkpoint.restoreFrom).

#ifndef SLUICE_SERVICES_CHECKPOINT_RESTORE_SOURCE_H_
#define SLUICE_SERVICES_CHECKPOINT_RESTORE_SOURCE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/checkpoint.pb.h"
#include "services/checkpoint/storage.h"
#include "services/common/io/file_util.h"

namespace sluice {

// A checkpoint that was found whole, and what was skipped on the way to it.
struct RestoreSource {
  std::string directory;  // of the checkpoint
  v1::CheckpointIndex checkpoint_index;
  std::vector<std::string> damaged;  // one sentence for each better one that was skipped
};

// The remedy for a file, such as PyTorch's, in place of a directory of checkpoints.
std::string NotACheckpoint(absl::string_view path);

// Whether `path` is STORAGE/best, which is the name of the checkpoint with the best evaluation. A
// directory of this name is itself.
bool NamesBestCheckpoint(FileSystem* files, const std::string& path);

// `path` is a checkpoint's directory (returns this checkpoint or an error), a job's storage
// (returns the whole checkpoint with which the job would continue), or STORAGE/best (returns the
// whole checkpoint with the best evaluation). `check`: what "whole" means. NOT_FOUND: `path` has no
// checkpoint; the message names the path. DATA_LOSS: the named checkpoint is damaged.
// INVALID_ARGUMENT: `path` is a file.
absl::StatusOr<RestoreSource> FindRestoreSource(FileSystem* files, const std::string& path,
                                                FileCheck check = FileCheck::kContents);

}  // namespace sluice

#endif  // SLUICE_SERVICES_CHECKPOINT_RESTORE_SOURCE_H_
