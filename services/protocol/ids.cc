#include "services/protocol/ids.h"

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

}  // namespace sluice
