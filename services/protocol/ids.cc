#include "services/protocol/ids.h"

#include <vector>

#include "absl/strings/str_split.h"

namespace sluice {

std::string ProcessName(v1::Role role, uint32_t index) {
  switch (role) {
    case v1::COORDINATOR:
      return "coordinator";
    case v1::SHARD:
      return "ps-" + std::to_string(index);
    case v1::WORKER:
      return "worker-" + std::to_string(index);
    case v1::READER:
      return "reader";
    case v1::OPERATOR:
      return "operator";
    default:
      return "unknown-" + std::to_string(index);
  }
}

std::string ShortJobName(absl::string_view job) {
  const std::vector<absl::string_view> parts = absl::StrSplit(job, '/');
  return std::string(parts.size() == 3 ? parts[1] : job);
}

}  // namespace sluice
