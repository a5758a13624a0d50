// Reads the checkpoint storage before an attempt.
#ifndef SLUICE_SERVICES_COORDINATOR_OPEN_STORAGE_H_
#define SLUICE_SERVICES_COORDINATOR_OPEN_STORAGE_H_

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "proto/job.pb.h"
#include "services/checkpoint/restore_source.h"
#include "services/checkpoint/storage.h"
#include "services/coordinator/core/base/actions.h"

namespace sluice::coordinator {

// Finds another job's checkpoint (checkpoint.restoreFrom).
using FindSource = std::function<absl::StatusOr<RestoreSource>(FileCheck)>;

// Returns whether the job may use the storage, and its contents, which name damaged files.
// `find_source`, if set, is called if the storage has no checkpoint to begin with. Blocks for the
// disk. The message of an error is a sentence. If another job has the storage, the contents say so
// (kRefused), and hold nothing else of use.
absl::StatusOr<StorageContents> OpenStorage(CheckpointStorage& storage, const v1::JobSpec& job,
                                            const FindSource& find_source, FileCheck check);

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_OPEN_STORAGE_H_
