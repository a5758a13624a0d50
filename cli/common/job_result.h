// How a run of a job ended, in one type: LocalJob::Run and the follower of a cluster's job make it,
// result.json keeps it, and the displays show it.
#ifndef SLUICE_CLI_COMMON_JOB_RESULT_H_
#define SLUICE_CLI_COMMON_JOB_RESULT_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "operator/policy/policy.h"
#include "proto/jobcontrol.pb.h"

namespace sluice::cli {

// How a run ended, and its last known progress.
struct JobResult {
  policy::Outcome outcome;
  v1::JobProgress progress;                 // the last progress
  bool has_progress = false;                // whether there was any progress
  uint32_t restarts = 0;                    // of all processes
  absl::Time ended = absl::InfinitePast();  // InfinitePast: not known
};

// "Succeeded", "Failed", "Suspended".
absl::string_view OutcomeName(policy::OutcomeKind outcome);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_COMMON_JOB_RESULT_H_
