#include "services/common/process/logging.h"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/null_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace sluice {
namespace {

using Level = spdlog::level::level_enum;

bool ParseLevel(absl::string_view name, Level* level) {
  static constexpr std::pair<absl::string_view, Level> kLevels[] = {
      {"debug", Level::debug}, {"info", Level::info}, {"warning", Level::warn},
      {"error", Level::err},   {"off", Level::off},
  };
  for (const auto& [known, value] : kLevels) {
    if (name != known) continue;
    *level = value;
    return true;
  }
  return false;
}

// A JSON string; bytes that are not UTF-8 become U+FFFD.
std::string JsonString(absl::string_view text) {
  return nlohmann::json(std::string(text))
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Unquoted where possible, else quoted as in JSON.
std::string LogfmtValue(const std::string& text) {
  const bool plain = !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return c > ' ' && c < 0x7f && c != '"' && c != '=' && c != '\\';
  });
  return plain ? text : JsonString(text);
}

// JSON has no infinities and no NaN.
bool IsJsonLiteral(const std::string& value) {
  return value == "true" || value == "false" || value.find_first_of("nN") == std::string::npos;
}

void AppendField(const LogField& field, bool json, std::string* line) {
  if (json) {
    absl::StrAppend(
        line, ",", JsonString(field.name), ":",
        field.quoted || !IsJsonLiteral(field.value) ? JsonString(field.value) : field.value);
  } else {
    absl::StrAppend(line, " ", field.name, "=",
                    field.quoted ? LogfmtValue(field.value) : field.value);
  }
}

}  // namespace

Logger::Logger()
    : sink_(std::make_shared<spdlog::logger>("", std::make_shared<spdlog::sinks::null_sink_mt>())) {
  sink_->set_level(Level::off);
}

absl::StatusOr<Logger> Logger::Create(const Options& options) {
  Logger logger;
  Level level = Level::info;
  if (!ParseLevel(options.level, &level)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "log level \"", options.level, "\" is not one of debug, info, warning, error, off"));
  }
  if (options.format != "logfmt" && options.format != "json") {
    return absl::InvalidArgumentError(
        absl::StrCat("log format \"", options.format, "\" is not one of logfmt, json"));
  }

  logger.json_ = options.format == "json";
  spdlog::sink_ptr sink;
  if (options.file.empty()) {
    sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  } else {
    try {  // spdlog reports errors only by exceptions
      sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(options.file);
    } catch (const spdlog::spdlog_ex& error) {
      return absl::UnavailableError(
          absl::StrCat("cannot write the log file ", options.file, ": ", error.what()));
    }
  }

  logger.sink_ = std::make_shared<spdlog::logger>("", std::move(sink));
  logger.sink_->set_level(level);
  logger.sink_->flush_on(Level::trace);  // a line is out when the call returns
  logger.sink_->set_pattern(
      logger.json_ ? R"({"time":"%Y-%m-%dT%H:%M:%S.%fZ",%v})" : "time=%Y-%m-%dT%H:%M:%S.%fZ %v",
      spdlog::pattern_time_type::utc);
  return logger;
}

Logger Logger::With(std::initializer_list<LogField> fields) const {
  Logger logger = *this;
  for (const LogField& field : fields) {
    const auto same = std::find_if(logger.fields_.begin(), logger.fields_.end(),
                                   [&](const LogField& f) { return f.name == field.name; });
    if (same == logger.fields_.end()) {
      logger.fields_.push_back(field);
    } else {
      *same = field;
    }
  }
  return logger;
}

void Logger::Debug(absl::string_view message, std::initializer_list<LogField> fields) const {
  Log(Level::debug, message, fields);
}
void Logger::Info(absl::string_view message, std::initializer_list<LogField> fields) const {
  Log(Level::info, message, fields);
}
void Logger::Warning(absl::string_view message, std::initializer_list<LogField> fields) const {
  Log(Level::warn, message, fields);
}
void Logger::Error(absl::string_view message, std::initializer_list<LogField> fields) const {
  Log(Level::err, message, fields);
}

bool Logger::debug_enabled() const { return sink_->should_log(Level::debug); }

void Logger::Log(int level, absl::string_view message,
                 std::initializer_list<LogField> fields) const {
  const auto spd_level = static_cast<Level>(level);
  if (!sink_->should_log(spd_level)) return;
  static constexpr const char* kNames[] = {"trace", "debug", "info", "warning", "error"};
  std::string line =
      json_ ? absl::StrCat(R"("level":")", kNames[level], R"(","msg":)", JsonString(message))
            : absl::StrCat("level=", kNames[level], " msg=", JsonString(message));
  for (const LogField& field : fields_) AppendField(field, json_, &line);
  for (const LogField& field : fields) AppendField(field, json_, &line);
  sink_->log(spd_level, spdlog::string_view_t(line));
}

}  // namespace sluice
