// The files and folders that a job reads: where they are, and whether they are there.
#ifndef SLUICE_SERVICES_CLI_JOB_PATHS_H_
#define SLUICE_SERVICES_CLI_JOB_PATHS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/job.pb.h"
#include "services/common/file_util.h"

namespace sluice::cli {

// Data that its manifest names by a relative path ("data/mnist") and that is not there may be kept
// once for many checkouts: it is looked for, by the same path and by that without a leading
// "data/",
//   1. in `data_directory` ($SLUICE_DATA) unless that is empty;
//   2. in shared/data beside the repository (the nearest folder with a .git) that the manifest is
//      in.
// Paths of data that is found there are changed; returns a sentence for each, which says what was
// taken. `manifest` is the file's path. What is not found stays as it is.
std::vector<std::string> FindData(const std::string& manifest, const std::string& data_directory,
                                  FileSystem* files, v1::JobSpec* job);

// NOT_FOUND with the field and path of the first thing that the job reads and that is not there:
// data, labels, vocabulary, a TorchScript file, restoreFrom. What a program of the job's own reads
// is its business, and what is at an address (DownloadData) is not looked for.
absl::Status CheckPathsExist(const v1::JobSpec& job, FileSystem* files);

// The newest checkpoint's own folder in a folder of checkpoints; empty: there is none. Errors of
// the file system.
absl::StatusOr<std::string> NewestCheckpoint(const std::string& folder, FileSystem* files);

// Whether a folder of checkpoints holds one, i.e. something was trained. Errors of the file system.
absl::StatusOr<bool> HoldsCheckpoint(const std::string& folder, FileSystem* files);

}  // namespace sluice::cli

#endif  // SLUICE_SERVICES_CLI_JOB_PATHS_H_
