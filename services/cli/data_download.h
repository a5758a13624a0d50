#ifndef SLUICE_SERVICES_CLI_DATA_DOWNLOAD_H_
#define SLUICE_SERVICES_CLI_DATA_DOWNLOAD_H_

#include "absl/status/status.h"
#include "proto/job.pb.h"
#include "services/cli/environment.h"

namespace sluice::cli {

// Downloads what a job's data names by addresses into this machine's cache, where its workers find
// it: so that what is wrong with it is said before anything starts, and how far it is where
// somebody looks. Nothing is done for jobs without addresses. An interrupt (Ctrl-C) ends it with
// Cancelled; the environment's handler of interrupts is none afterwards.
absl::Status DownloadData(const Environment& environment, bool quiet, const v1::DataSpec& data);

}  // namespace sluice::cli

#endif  // SLUICE_SERVICES_CLI_DATA_DOWNLOAD_H_
