// The job file: a JobSpec as JSON, as an operator or `sluice` writes it for the coordinator.
//
// The writer may be of a newer release than the coordinator. What the coordinator does not know is
// left out where the job can run without it, and refused where it cannot (docs/versions.md).
#ifndef SLUICE_SERVICES_COORDINATOR_JOB_FILE_H_
#define SLUICE_SERVICES_COORDINATOR_JOB_FILE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/job.pb.h"

namespace sluice::coordinator {

struct JobFile {
  v1::JobSpec job;
  // Fields that this build does not know: "training.newField", "model.stages[0].newField".
  std::vector<std::string> unknown_fields;
};

// FAILED_PRECONDITION: a field has a value that this build does not know, as a newer release may
// write. INVALID_ARGUMENT: the text is no job.
absl::StatusOr<JobFile> ParseJobFile(absl::string_view text);

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_JOB_FILE_H_
