#ifndef SLUICE_OPERATOR_POLICY_LAST_WORDS_H_
#define SLUICE_OPERATOR_POLICY_LAST_WORDS_H_

#include <string>
#include <vector>

namespace sluice::policy {

// Why a process ended, if the last lines of its log say so: the message of the last error, or a
// last line that is not of the log (what programs print that cannot begin). Else empty.
// UTF-8, whatever the log is.
std::string LastWords(const std::vector<std::string>& lines);

}  // namespace sluice::policy

#endif  // SLUICE_OPERATOR_POLICY_LAST_WORDS_H_
