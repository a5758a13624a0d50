#include "operator/policy/reason_from_log.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "services/common/text/utf8.h"

namespace sluice::policy {

namespace {

// The message of a log line at level error, as services/common/process/logging.h writes it.
std::optional<std::string> ErrorOfJson(const std::string& line) {
  const nlohmann::json entry = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!entry.is_object()) return std::nullopt;
  const auto level = entry.find("level");
  const auto message = entry.find("msg");
  if (level == entry.end() || *level != "error") return std::nullopt;
  if (message == entry.end() || !message->is_string()) return std::nullopt;
  return message->get<std::string>();
}

std::optional<std::string> ErrorOfLogfmt(const std::string& line) {
  constexpr char kMessage[] = "msg=";
  size_t begin = line.find(kMessage);
  if (!absl::StrContains(line, "level=error") || begin == std::string::npos) return std::nullopt;
  begin += sizeof(kMessage) - 1;

  if (begin == line.size() || line[begin] != '"') {
    return line.substr(begin, line.find(' ', begin) - begin);
  }

  size_t end = begin + 1;
  while (end < line.size() && line[end] != '"') end += line[end] == '\\' ? 2 : 1;

  const nlohmann::json message = nlohmann::json::parse(line.substr(begin, end + 1 - begin), nullptr,
                                                       /*allow_exceptions=*/false);
  if (!message.is_string()) return std::nullopt;
  return message.get<std::string>();
}

// Limit of a reason; longer text is ordinary output.
constexpr size_t kMaxBytes = 4096;

constexpr char kJsonLine[] = R"({"time":)";

std::string BytesOfReason(const std::vector<std::string>& lines) {
  if (lines.empty()) return "";

  for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
    const bool json = absl::StartsWith(*line, kJsonLine);
    std::optional<std::string> message = json ? ErrorOfJson(*line) : ErrorOfLogfmt(*line);
    if (message.has_value()) return *std::move(message);
  }

  // A program that cannot start prints "sluice-worker: reason".
  absl::string_view last = lines.back();
  if (absl::ConsumePrefix(&last, "sluice-")) {
    const size_t colon = last.find(": ");
    if (colon != absl::string_view::npos) last.remove_prefix(colon + 2);
    return std::string(last);
  }

  // Other log lines are not reasons.
  const bool of_the_log = absl::StartsWith(last, "time=") || absl::StartsWith(last, kJsonLine);
  return of_the_log ? "" : lines.back();
}

}  // namespace

std::string ReasonFromLog(const std::vector<std::string>& lines) {
  return CleanUtf8(BytesOfReason(lines), kMaxBytes);
}

}  // namespace sluice::policy
