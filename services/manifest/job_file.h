// The file of a job, from which its coordinator reads it: the manifest of the job, with all
// defaults filled in, its uid, and without the fields that only clusters use. `sluice run`,
// `sluice render` and the operator write it.
//
// The writer may be of a newer release than the reader. The reader ignores unknown fields if the
// job can run without them, and refuses the file otherwise (docs/versions.md).
#ifndef SLUICE_SERVICES_MANIFEST_JOB_FILE_H_
#define SLUICE_SERVICES_MANIFEST_JOB_FILE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/job.pb.h"

namespace sluice::api {

// One line if `indent` is -1.
std::string JobFileText(const v1::JobSpec& job, int indent = 2);

struct JobFile {
  v1::JobSpec job;
  // Fields that this build does not know: "spec.training.newField".
  std::vector<std::string> unknown_fields;
};

// FAILED_PRECONDITION: a field has a value that this build does not know; a newer release may have
// written it. INVALID_ARGUMENT: the text is not a job.
absl::StatusOr<JobFile> ParseJobFile(absl::string_view text);

}  // namespace sluice::api

#endif  // SLUICE_SERVICES_MANIFEST_JOB_FILE_H_
