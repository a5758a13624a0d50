#include "operator/policy/last_words.h"

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace sluice::policy {

std::string LastWords(const std::vector<std::string>& lines) {
  if (lines.empty()) return "";
  // logfmt, as services/common/logging.h writes it.
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
    constexpr char kMessage[] = "msg=\"";
    const size_t begin = line->find(kMessage);
    if (!absl::StrContains(*line, "level=error") || begin == std::string::npos) continue;
    std::string message;
    for (size_t i = begin + sizeof(kMessage) - 1; i < line->size() && (*line)[i] != '"'; ++i) {
      if ((*line)[i] == '\\' && i + 1 < line->size()) ++i;
      message += (*line)[i];
    }
    return message;
  }
  // A program that cannot begin says "sluice-worker: why".
  absl::string_view last = lines.back();
  if (absl::ConsumePrefix(&last, "sluice-")) {
    const size_t colon = last.find(": ");
    if (colon != absl::string_view::npos) last.remove_prefix(colon + 2);
    return std::string(last);
  }
  // Other lines of the log are no reasons.
  return absl::StartsWith(last, "time=") ? "" : lines.back();
}

}  // namespace sluice::policy
