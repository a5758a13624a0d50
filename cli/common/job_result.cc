#include "cli/common/job_result.h"

namespace sluice::cli {

absl::string_view OutcomeName(policy::OutcomeKind outcome) {
  switch (outcome) {
    case policy::OutcomeKind::kSucceeded:
      return "Succeeded";
    case policy::OutcomeKind::kSuspended:
      return "Suspended";
    case policy::OutcomeKind::kFailed:
      break;
  }
  return "Failed";
}

}  // namespace sluice::cli
