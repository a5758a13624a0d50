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
  std::string folder;  // of the checkpoint
  v1::Manifest manifest;
  std::vector<std::string> damaged;  // better ones that were passed over, a sentence each
};

// `path` is a checkpoint's folder (that one, or an error), or a job's storage (its best whole
// checkpoint). Reads all of its files. NOT_FOUND: there is none, naming the path; DATA_LOSS: the
// named one is damaged.
absl::StatusOr<RestoreSource> FindRestoreSource(FileSystem* files, const std::string& path);

}  // namespace sluice

#endif  // SLUICE_SERVICES_CHECKPOINT_RESTORE_SOURCE_H_
