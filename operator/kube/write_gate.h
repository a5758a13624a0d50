#ifndef SLUICE_OPERATOR_KUBE_WRITE_GATE_H_
#define SLUICE_OPERATOR_KUBE_WRITE_GATE_H_

#include "absl/status/status.h"

namespace sluice::kube {

// Asked right before each write is sent, a retry of a write included. Any thread; must not block.
class WriteGate {
 public:
  virtual ~WriteGate() = default;
  // Not OK: the write is not sent, and this is what its caller gets.
  virtual absl::Status Check() = 0;
};

}  // namespace sluice::kube

#endif  // SLUICE_OPERATOR_KUBE_WRITE_GATE_H_
