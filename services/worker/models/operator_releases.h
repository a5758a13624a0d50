// The first PyTorch release of each operator that a TorchScript file may call.
#ifndef SLUICE_SERVICES_WORKER_MODELS_OPERATOR_RELEASES_H_
#define SLUICE_SERVICES_WORKER_MODELS_OPERATOR_RELEASES_H_

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace sluice {

struct OperatorRelease {
  absl::string_view op;       // "aten::rms_norm"
  absl::string_view release;  // "2.4"; empty: not known
  // How the user can save a file without the operator; empty: only by leaving it out.
  absl::string_view remedy;
};

// Operators that PyTorch added after 1.13, each with the first release that has it, by name. Found
// by searching the libraries of the releases from 2.0 to 2.14 for their names; only operators that
// the TorchScript compiler leaves in files, not those that kernels call internally.
absl::Span<const OperatorRelease> OperatorReleases();

// An operator of this list; one that is not in it has no release and no remedy.
OperatorRelease ReleaseOf(absl::string_view op);

}  // namespace sluice

#endif  // SLUICE_SERVICES_WORKER_MODELS_OPERATOR_RELEASES_H_
