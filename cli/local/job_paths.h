// Finds the files and directories that a job reads.
#ifndef SLUICE_CLI_LOCAL_JOB_PATHS_H_
#define SLUICE_CLI_LOCAL_JOB_PATHS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/job.pb.h"
#include "services/common/io/file_util.h"

namespace sluice::cli {

// If data that its manifest names by a relative path ("data/mnist") does not exist there, one copy
// may serve many checkouts. FindData looks for it, by the same path and by that without a leading
// "data/",
//   1. in `data_directory` ($SLUICE_DATA) unless that is empty;
//   2. in shared/data beside the repository (the nearest directory with a .git) that the manifest
//   is
//      in.
// It changes the paths of the data that it finds. Returns a sentence for each of them that names
// the path in use. `manifest` is the file's path. Paths of data that is not found stay unchanged.
std::vector<std::string> FindData(const std::string& manifest, const std::string& data_directory,
                                  FileSystem* files, v1::JobSpec* job);

// NOT_FOUND names the field and path of the first of the job's inputs that does not exist: data,
// labels, vocabulary, a TorchScript file, restoreFrom. INVALID_ARGUMENT: restoreFrom is a file.
// Inputs of a job's own program and inputs at addresses (DownloadData) are not checked.
absl::Status CheckPathsExist(const v1::JobSpec& job, FileSystem* files);

// The directory of the newest checkpoint in a directory of checkpoints; empty: there is none.
// Errors of the file system.
absl::StatusOr<std::string> NewestCheckpoint(const std::string& directory, FileSystem* files);

// Whether a directory of checkpoints contains one, i.e. the job has trained. Errors of the file
// system.
absl::StatusOr<bool> HoldsCheckpoint(const std::string& directory, FileSystem* files);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_LOCAL_JOB_PATHS_H_
