#ifndef SLUICE_OPERATOR_KUBE_WRITE_GATE_H_
#define SLUICE_OPERATOR_KUBE_WRITE_GATE_H_

#include "absl/status/status.h"

namespace sluice::kube {

// Checked right before each write is sent, including retries. Any thread; must not block. The
// leader's gate (LeaderElector) keeps a replica that has lost the lease from writing.
class WriteGate {
 public:
  virtual ~WriteGate() = default;
  // If not OK, the write is not sent, and its caller gets this status.
  virtual absl::Status Check() = 0;
};

}  // namespace sluice::kube

#endif  // SLUICE_OPERATOR_KUBE_WRITE_GATE_H_
