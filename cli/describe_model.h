#ifndef SLUICE_CLI_DESCRIBE_MODEL_H_
#define SLUICE_CLI_DESCRIBE_MODEL_H_

#include <string>

#include "cli/common/environment.h"
#include "proto/describe.pb.h"
#include "proto/job.pb.h"

namespace sluice::cli {

// sluice-worker's description of the job's model and data; not for a Custom model. Returns an exit
// code: if it is not kExitOk, the errors are on standard error. `program_directory`: --bin-dir.
// Runs the program and waits for it, which loads LibTorch and reads the data.
int DescribeModel(const Environment& environment, const std::string& program_directory,
                  const v1::JobSpec& job, v1::Description* description);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_DESCRIBE_MODEL_H_
