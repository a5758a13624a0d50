// The arithmetic of the built-in model `additive`, without LibTorch.
#ifndef SLUICE_SERVICES_WORKER_MODELS_ADDITIVE_H_
#define SLUICE_SERVICES_WORKER_MODELS_ADDITIVE_H_

#include <cstddef>

#include "absl/types/span.h"

namespace sluice {

// out[i] = (1e-3 * w[i] + 1) * scale, each operation rounded to T. `scale` is the count that the
// gradient sums over.
template <typename T>
void AdditiveUpdate(absl::Span<const T> w, T scale, T* out) {
  for (size_t i = 0; i < w.size(); ++i) out[i] = (T(1e-3) * w[i] + T(1)) * scale;
}

}  // namespace sluice

#endif  // SLUICE_SERVICES_WORKER_MODELS_ADDITIVE_H_
