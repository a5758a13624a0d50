// A job's progress as JSON, under the names of `--output json` (docs/operating.md).
#ifndef SLUICE_CLI_COMMON_PROGRESS_JSON_H_
#define SLUICE_CLI_COMMON_PROGRESS_JSON_H_

#include <nlohmann/json.hpp>

#include "proto/jobcontrol.pb.h"

namespace sluice::cli {

// One evaluation. Numbers that JSON does not have (NaN, infinity) are null.
nlohmann::json EvaluationJson(const v1::Evaluation& evaluation);

// Where the job is: the fields of `progress` objects.
nlohmann::json ProgressJson(const v1::JobProgress& progress);

// The job's totals so far: times, bytes, staleness, the last evaluation, the newest checkpoint.
nlohmann::json TotalsJson(const v1::JobProgress& progress);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_COMMON_PROGRESS_JSON_H_
