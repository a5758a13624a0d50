#include "cli/common/exit_codes.h"

#include "absl/strings/str_format.h"

namespace sluice::cli {

int ExitCodeOf(policy::OutcomeKind outcome) {
  switch (outcome) {
    case policy::OutcomeKind::kSucceeded:
      return kExitOk;
    case policy::OutcomeKind::kSuspended:
      return kExitInterrupted;
    case policy::OutcomeKind::kFailed:
      break;
  }
  return kExitFailed;
}

int ExitCodeOf(const absl::Status& error) {
  switch (error.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kFailedPrecondition:
      return kExitUsage;
    default:
      return kExitFailed;
  }
}

std::string ExitCodesText() {
  std::string text = "Exit codes:\n";
  for (const auto& [code, meaning] : kExitCodes) {
    absl::StrAppendFormat(&text, "  %-3d  %s\n", code, meaning);
  }
  return text;
}

int PrintError(const Environment& environment, const absl::Status& error) {
  *environment.err << "sluice: " << error.message() << std::endl;
  return ExitCodeOf(error);
}

}  // namespace sluice::cli
