#include "services/common/process/processors.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <thread>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace sluice {
namespace {

constexpr size_t kMaxBytes = 1 << 20;
constexpr int kMaxProcessors = 1 << 20;

// 0: there is no quota.
int Processors(double quota, double period) {
  if (!(quota > 0) || !(period > 0)) return 0;
  return static_cast<int>(std::min<double>(std::ceil(quota / period), kMaxProcessors));
}

int Smaller(int a, int b) { return a == 0 || b == 0 ? std::max(a, b) : std::min(a, b); }

// Numbers of a file, up to the first that is none ("max"); empty if it cannot be read.
std::vector<double> NumbersIn(FileSystem* files, const std::string& path) {
  std::vector<double> numbers;
  const absl::StatusOr<std::string> text = files->Read(path, kMaxBytes);
  if (!text.ok()) return numbers;
  for (const absl::string_view word : absl::StrSplit(*text, absl::ByAnyChar(" \n"))) {
    double number;
    if (!absl::SimpleAtod(word, &number)) break;
    numbers.push_back(number);
  }
  return numbers;
}

int QuotaOf(FileSystem* files, const std::string& group) {
  const std::vector<double> both = NumbersIn(files, JoinPath(group, "cpu.max"));
  if (both.size() == 2) return Processors(both[0], both[1]);
  const std::vector<double> quota = NumbersIn(files, JoinPath(group, "cpu.cfs_quota_us"));
  const std::vector<double> period = NumbersIn(files, JoinPath(group, "cpu.cfs_period_us"));
  return quota.empty() || period.empty() ? 0 : Processors(quota[0], period[0]);
}

}  // namespace

int ProcessorQuota(FileSystem* files, const std::string& membership, const std::string& root) {
  int quota = 0;
  for (const absl::string_view line : absl::StrSplit(membership, '\n')) {
    // "4:cpu,cpuacct:/group", or "0::/group" (v2).
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    const std::vector<absl::string_view> controllers = absl::StrSplit(parts[1], ',');
    if (!parts[1].empty() && !absl::c_linear_search(controllers, "cpu")) continue;

    const std::string mount = parts[1].empty() ? root : JoinPath(root, parts[1]);
    // In a container, the path may be the host's, and the group is the mount itself.
    std::string group = JoinPath(mount, absl::StripPrefix(parts[2], "/"));
    while (group.size() > mount.size()) {
      quota = Smaller(quota, QuotaOf(files, group));
      group = DirectoryOf(group);
    }
    quota = Smaller(quota, QuotaOf(files, mount));
  }
  return quota;
}

int AvailableProcessors() {
  const int processors = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const std::unique_ptr<FileSystem> files = MakeRealFileSystem();
  const absl::StatusOr<std::string> membership = files->Read("/proc/self/cgroup", kMaxBytes);
  if (!membership.ok()) return processors;
  const int quota = ProcessorQuota(files.get(), *membership, "/sys/fs/cgroup");
  return quota == 0 ? processors : std::min(processors, quota);
}

}  // namespace sluice
