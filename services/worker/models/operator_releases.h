// Since when PyTorch has the operators that a TorchScript file may call.
#ifndef SLUICE_SERVICES_WORKER_MODELS_OPERATOR_RELEASES_H_
#define SLUICE_SERVICES_WORKER_MODELS_OPERATOR_RELEASES_H_

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace sluice {

struct OperatorRelease {
  absl::string_view op;       // "aten::rms_norm"
  absl::string_view release;  // "2.4"
};

// Operators that came after PyTorch 1.13, each with the first release that has it, by name. Found
// by looking for their names in the libraries of the releases from 2.0 to 2.14; of those that the
// compiler of TorchScript leaves in files, not of what kernels call among each other.
absl::Span<const OperatorRelease> OperatorReleases();

// The first release with `op`; empty where it is none of these.
absl::string_view FirstReleaseWith(absl::string_view op);

}  // namespace sluice

#endif  // SLUICE_SERVICES_WORKER_MODELS_OPERATOR_RELEASES_H_
