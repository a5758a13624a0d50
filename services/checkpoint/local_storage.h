// A job's checkpoint storage in a directory of a file system that all of its processes can reach.

#ifndef SLUICE_SERVICES_CHECKPOINT_LOCAL_STORAGE_H_
#define SLUICE_SERVICES_CHECKPOINT_LOCAL_STORAGE_H_

#include <memory>
#include <string>

#include "services/checkpoint/storage.h"
#include "services/common/io/file_util.h"

namespace sluice {

// `files` must outlive the storage. `writer` makes the temporary file names of concurrent processes
// differ: pass the process's incarnation.
std::unique_ptr<CheckpointStorage> MakeLocalStorage(FileSystem* files, std::string directory,
                                                    std::string writer);

}  // namespace sluice

#endif  // SLUICE_SERVICES_CHECKPOINT_LOCAL_STORAGE_H_
