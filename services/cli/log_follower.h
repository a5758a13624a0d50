// Reads what is appended to a job's log files, line by line.
#ifndef SLUICE_SERVICES_CLI_LOG_FOLLOWER_H_
#define SLUICE_SERVICES_CLI_LOG_FOLLOWER_H_

#include <cstddef>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace sluice::cli {

// Files appear, grow and disappear meanwhile. Not thread-safe.
class LogFollower {
 public:
  // Process name ("worker-0") and one line.
  using OnLine = std::function<void(absl::string_view process, absl::string_view line)>;

  static constexpr size_t kAll = std::numeric_limits<size_t>::max();

  // Follows <folder>/*.log, or only <folder>/<process>.log. Of what is there already only the last
  // `lines_before` lines of each file are told.
  LogFollower(std::string folder, std::string process, size_t lines_before);

  // Tells all whole lines since the last call.
  void Poll(const OnLine& on_line);

  // Whether any file was ever there.
  bool found() const { return !files_.empty(); }

 private:
  struct File {
    size_t offset = 0;
    std::string partial;
  };

  void PollFile(const std::string& path, File* file, const OnLine& on_line);

  const std::string folder_;
  const std::string process_;
  size_t lines_before_;
  bool first_ = true;
  std::map<std::string, File> files_;  // by process
};

// Of the last lines of a process's log those that a user wants beside the reason of its failure:
// not what is of level info or debug, and not the reason itself.
std::vector<std::string> ContextOf(absl::string_view reason, const std::vector<std::string>& lines);

// "worker-0     | text": what `sluice logs` and `sluice run -v` print.
std::string PrefixedLine(absl::string_view process, absl::string_view line, bool color);

}  // namespace sluice::cli

#endif  // SLUICE_SERVICES_CLI_LOG_FOLLOWER_H_
