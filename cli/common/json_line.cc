#include "cli/common/json_line.h"

#include "absl/time/time.h"

namespace sluice::cli {

void WriteJsonLine(const Environment& environment, nlohmann::json json) {
  json["time"] =
      absl::FormatTime(absl::RFC3339_full, environment.clock->Now(), absl::UTCTimeZone());
  // Logs may contain any bytes; JSON must be UTF-8.
  *environment.out << json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
  environment.out->flush();
}

}  // namespace sluice::cli
