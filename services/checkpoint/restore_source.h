// Another job's checkpoint, as a user names it (checkpoint.restoreFrom).

#ifndef SLUICE_SERVICES_CHECKPOINT_RESTORE_SOURCE_H_
#define SLUICE_SERVICES_CHECKPOINT_RESTORE_SOURCE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/checkpoint.pb.h"
#include "services/common/file_util.h"

namespace sluice {

struct RestoreSource {
  std::string directory;  // of the checkpoint
  v1::CheckpointIndex checkpoint_index;
  std::vector<std::string> damaged;  // one sentence for each better one that was skipped
};

// `path` is a checkpoint's directory (returns this checkpoint or an error) or a job's storage
// (returns its best whole checkpoint). Reads all files of the checkpoint. NOT_FOUND: `path` has no
// checkpoint; the message names the path. DATA_LOSS: the named checkpoint is damaged.
absl::StatusOr<RestoreSource> FindRestoreSource(FileSystem* files, const std::string& path);

}  // namespace sluice

#endif  // SLUICE_SERVICES_CHECKPOINT_RESTORE_SOURCE_H_
