#ifndef SLUICE_CLI_RUN_DATA_DOWNLOAD_H_
#define SLUICE_CLI_RUN_DATA_DOWNLOAD_H_

#include "absl/status/status.h"
#include "cli/common/environment.h"
#include "proto/job.pb.h"

namespace sluice::cli {

// Downloads the files that a job's data names by address into this machine's cache, where its
// workers find them, so that problems are reported before anything starts and the user sees the
// progress. Does nothing for jobs without addresses. An interrupt (Ctrl-C) ends it with CANCELLED;
// afterwards the environment has no interrupt handler.
absl::Status DownloadData(const Environment& environment, bool quiet, const v1::DataSpec& data);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_RUN_DATA_DOWNLOAD_H_
