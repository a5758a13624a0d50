// Reads lines that are appended to a job's log files.
#ifndef SLUICE_CLI_COMMON_LOG_FOLLOWER_H_
#define SLUICE_CLI_COMMON_LOG_FOLLOWER_H_

#include <cstddef>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace sluice::cli {

// Files may appear, grow and disappear between calls. Not thread-safe.
class LogFollower {
 public:
  // Process name ("worker-0") and one line.
  using OnLine = std::function<void(absl::string_view process, absl::string_view line)>;

  static constexpr size_t kAll = std::numeric_limits<size_t>::max();

  // Follows <directory>/*.log, or only <directory>/<process>.log. Of lines that exist at the start,
  // only the last `lines_before` of each file are reported.
  LogFollower(std::string directory, std::string process, size_t lines_before);

  // Reports all complete lines since the last call.
  void Poll(const OnLine& on_line);

  // Whether any file was ever found.
  bool found() const { return !files_.empty(); }

 private:
  // The place up to which a file was read, and its last line, as far as it is incomplete.
  struct File {
    size_t offset = 0;
    std::string partial;
  };

  // Reports the complete lines that were added to one file. A file that became shorter is read from
  // its beginning.
  void PollFile(const std::string& path, File* file, const OnLine& on_line);

  const std::string directory_;
  const std::string process_;
  size_t lines_before_;
  bool first_ = true;
  std::map<std::string, File> files_;  // by process
};

// Selects from the last lines of a process's log those that help to explain its failure: it drops
// levels info and debug, and lines that repeat the reason.
std::vector<std::string> ContextOf(absl::string_view reason, const std::vector<std::string>& lines);

// "worker-0     | text": what `sluice logs` and `sluice run -v` print.
std::string PrefixedLine(absl::string_view process, absl::string_view line, bool color);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_COMMON_LOG_FOLLOWER_H_
