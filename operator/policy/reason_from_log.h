#ifndef SLUICE_OPERATOR_POLICY_REASON_FROM_LOG_H_
#define SLUICE_OPERATOR_POLICY_REASON_FROM_LOG_H_

#include <string>
#include <vector>

namespace sluice::policy {

// Why a process ended, from the last lines of its output: the message of the last error in the log,
// else a last line that is not a log line (a program that cannot start prints one), else empty.
// Always valid UTF-8.
std::string ReasonFromLog(const std::vector<std::string>& lines);

}  // namespace sluice::policy

#endif  // SLUICE_OPERATOR_POLICY_REASON_FROM_LOG_H_
