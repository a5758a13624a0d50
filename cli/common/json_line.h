#ifndef SLUICE_CLI_COMMON_JSON_LINE_H_
#define SLUICE_CLI_COMMON_JSON_LINE_H_

#include <nlohmann/json.hpp>

#include "cli/common/environment.h"

namespace sluice::cli {

// Prints an object of `--output json` on a line of its own, with the time. Flushes, so that a
// reader of a pipe gets each object at once.
void WriteJsonLine(const Environment& environment, nlohmann::json json);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_COMMON_JSON_LINE_H_
