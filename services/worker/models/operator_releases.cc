#include "services/worker/models/operator_releases.h"

namespace sluice {
namespace {

constexpr OperatorRelease kReleases[] = {
    {"aten::broadcast_shapes", "2.13"},
    {"aten::empty_permuted", "2.1"},
    {"aten::get_autocast_dtype", "2.4"},
    {"aten::hash_tensor", "2.9"},
    {"aten::linalg__powsum", "2.11"},
    {"aten::linalg_matrix_sqrth", "2.14"},
    {"aten::linalg_polar", "2.14"},
    {"aten::nonzero_static", "2.1"},
    {"aten::quantized_max_pool3d", "2.1"},
    {"aten::rms_norm", "2.4"},
    {"aten::rrelu_with_noise_functional", "2.6"},
    {"aten::scaled_dot_product_attention", "2.0"},
    {"aten::slice_inverse", "2.3"},
};

}  // namespace

absl::Span<const OperatorRelease> OperatorReleases() { return kReleases; }

absl::string_view FirstReleaseWith(absl::string_view op) {
  for (const OperatorRelease& known : kReleases) {
    if (known.op == op) return known.release;
  }
  return "";
}

}  // namespace sluice
