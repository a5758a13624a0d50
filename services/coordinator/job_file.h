// The job file: a JobSpec as JSON, as an operator or `sluice` writes it for the coordinator.
//
// The writer may be of a newer release than the coordinator. The coordinator ignores unknown fields
// if the job can run without them, and refuses the file otherwise (docs/versions.md).
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

// FAILED_PRECONDITION: a field has a value that this build does not know; a newer release may have
// written it. INVALID_ARGUMENT: the text is not a job.
absl::StatusOr<JobFile> ParseJobFile(absl::string_view text);

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_JOB_FILE_H_
