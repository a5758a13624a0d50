#include "cli/common/log_follower.h"

#include <algorithm>
#include <deque>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace sluice::cli {
namespace {

constexpr char kExtension[] = ".log";
// Longer lines are cut into pieces.
constexpr size_t kMaxLine = 64 << 10;

// The offset at which the last `lines` lines of a file begin.
size_t OffsetOfLast(const std::string& path, size_t lines) {
  std::ifstream file(path, std::ios::binary);
  std::deque<size_t> begins;
  std::string line;
  size_t offset = 0;
  while (std::getline(file, line)) {
    begins.push_back(offset);
    if (begins.size() > lines) begins.pop_front();
    offset += line.size() + 1;
  }
  return begins.empty() ? offset : begins.front();
}

std::vector<std::string> ProcessesIn(const std::string& directory) {
  std::vector<std::string> processes;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    if (entry.path().extension() == kExtension) processes.push_back(entry.path().stem().string());
  }
  std::sort(processes.begin(), processes.end());
  return processes;
}

}  // namespace

LogFollower::LogFollower(std::string directory, std::string process, size_t lines_before)
    : directory_(std::move(directory)), process_(std::move(process)), lines_before_(lines_before) {}

void LogFollower::Poll(const OnLine& on_line) {
  for (const std::string& process : ProcessesIn(directory_)) {
    if (!process_.empty() && process != process_) continue;
    const std::string path = (std::filesystem::path(directory_) / (process + kExtension)).string();
    const auto [file, is_new] = files_.try_emplace(process);
    if (is_new && first_ && lines_before_ != kAll) {
      file->second.offset = OffsetOfLast(path, lines_before_);
    }
    PollFile(path, &file->second,
             [&](absl::string_view, absl::string_view line) { on_line(process, line); });
  }
  first_ = false;
}

void LogFollower::PollFile(const std::string& path, File* file, const OnLine& on_line) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  if (error) return;
  if (size < file->offset) *file = File();  // the file was truncated

  std::ifstream stream(path, std::ios::binary);
  stream.seekg(static_cast<std::streamoff>(file->offset));
  std::vector<char> buffer(64 << 10);

  while (stream) {
    stream.read(buffer.data(), static_cast<std::streamsize>(buffer.size()));
    const size_t got = static_cast<size_t>(stream.gcount());
    if (got == 0) break;

    file->offset += got;
    for (size_t i = 0; i < got; ++i) {
      const bool end = buffer[i] == '\n';
      if (!end) file->partial += buffer[i];
      if (!end && file->partial.size() < kMaxLine) continue;
      on_line("", file->partial);
      file->partial.clear();
    }
  }
}

std::vector<std::string> ContextOf(absl::string_view reason,
                                   const std::vector<std::string>& lines) {
  std::vector<std::string> context;
  for (const std::string& line : lines) {
    if (absl::StrContains(line, " level=info ") || absl::StrContains(line, " level=debug ")) {
      continue;
    }
    // "sluice-worker: what was wrong", or a log line with msg="what was wrong".
    absl::string_view said = line;
    if (const size_t begin = said.find(" msg=\""); begin != absl::string_view::npos) {
      said.remove_prefix(begin + 6);
      said = said.substr(0, said.find('"'));
    } else if (absl::StartsWith(said, "sluice-")) {
      said.remove_prefix(std::min(said.size(), said.find(": ") + 2));
    }

    if (said.empty() || !absl::StrContains(reason, said)) context.push_back(line);
  }
  return context;
}

std::string PrefixedLine(absl::string_view process, absl::string_view line, bool color) {
  if (!color) return absl::StrFormat("%-11s | %s", process, line);
  // The colour depends on the process's name.
  size_t hash = 0;
  for (const char c : process) hash = hash * 31 + static_cast<unsigned char>(c);
  return absl::StrFormat("\x1b[%dm%-11s |\x1b[0m %s", 31 + static_cast<int>(hash % 6), process,
                         line);
}

}  // namespace sluice::cli
