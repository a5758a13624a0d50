#ifndef SLUICE_SERVICES_COMMON_PROCESS_LOGGING_H_
#define SLUICE_SERVICES_COMMON_PROCESS_LOGGING_H_

#include <initializer_list>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace spdlog {
class logger;
}

namespace sluice {

// A named value of a log line. Numbers and booleans are not quoted in JSON.
struct LogField {
  LogField(absl::string_view name, absl::string_view value) : name(name), value(value) {}
  LogField(absl::string_view name, const char* value) : name(name), value(value) {}
  LogField(absl::string_view name, const std::string& value) : name(name), value(value) {}
  LogField(absl::string_view name, bool value)
      : name(name), value(value ? "true" : "false"), quoted(false) {}
  template <typename T, typename = std::enable_if_t<std::is_arithmetic_v<T>>>
  LogField(absl::string_view name, T value)
      : name(name), value(absl::StrCat(value)), quoted(false) {}

  std::string name;
  std::string value;
  bool quoted = true;
};

// Structured logging: each line has a time, a level, a message and fields.
//
//   Logger logger = *Logger::Create({.level = "info"});
//   logger = logger.With({{"job", job}, {"role", "shard"}, {"index", 0}});
//   logger.Info("View installed", {{"view", "1.2.3"}, {"step", 17}});
//
// In logfmt, on one line:
//   time=2026-01-31T12:00:00.000123Z level=info msg="View installed" job=demo role=shard index=0
//   view=1.2.3 step=17
// In JSON, on one line:
//   {"time":"…","level":"info","msg":"View installed","job":"demo","role":"shard","index":0,
//   "view":"1.2.3","step":17}
//
// A Logger is a cheap value: copies share the sink. Every call may come from any thread; a line is
// written whole, at once.
class Logger {
 public:
  struct Options {
    std::string level = "info";     // debug, info, warning, error, off
    std::string format = "logfmt";  // logfmt, json
    // Appended to; empty: standard error. Opened once: after a rename, lines go to the renamed
    // file.
    std::string file;
  };

  // Drops everything: for tests.
  Logger();

  // INVALID_ARGUMENT (level, format) or the file's error.
  static absl::StatusOr<Logger> Create(const Options& options);

  // The same logger with these fields on every line. They replace existing fields of the same name.
  [[nodiscard]] Logger With(std::initializer_list<LogField> fields) const;

  // Each writes one line, if the level allows it. May block for the file or pipe.
  void Debug(absl::string_view message, std::initializer_list<LogField> fields = {}) const;
  void Info(absl::string_view message, std::initializer_list<LogField> fields = {}) const;
  void Warning(absl::string_view message, std::initializer_list<LogField> fields = {}) const;
  void Error(absl::string_view message, std::initializer_list<LogField> fields = {}) const;

  // Whether Debug writes, for callers whose fields are expensive.
  bool debug_enabled() const;

 private:
  void Log(int level, absl::string_view message, std::initializer_list<LogField> fields) const;

  std::shared_ptr<spdlog::logger> sink_;
  bool json_ = false;
  std::vector<LogField> fields_;
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_COMMON_PROCESS_LOGGING_H_
