#include "services/worker/models/operator_releases.h"

namespace sluice {
namespace {

constexpr OperatorRelease kReleases[] = {
    {"aten::_upsample_lanczos2d_aa", "",
     "save the model with torch.jit.trace: torch.jit.script keeps all modes of Upsample and "
     "interpolate, also those that the model does not use"},
    {"aten::broadcast_shapes", "2.6",
     "save the model with torch.jit.trace, or use binary_cross_entropy_with_logits in place of "
     "BCELoss, whose script calls it for weights that the model does not have"},
    {"aten::empty_permuted", "2.1", ""},
    {"aten::get_autocast_dtype", "2.4",
     "use torch.cpu.amp.autocast in place of torch.autocast, or save the model with "
     "torch.jit.trace"},
    {"aten::hash_tensor", "2.9", ""},
    {"aten::linalg__powsum", "2.11", ""},
    {"aten::linalg_matrix_sqrth", "2.14", ""},
    {"aten::linalg_polar", "2.14", ""},
    {"aten::nonzero_static", "2.1", ""},
    {"aten::quantized_max_pool3d", "2.1", ""},
    {"aten::rms_norm", "2.4",
     "compute it in forward in place of RMSNorm: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) "
     "+ eps) * self.weight"},
    {"aten::rrelu_with_noise_functional", "2.6", ""},
    {"aten::scaled_dot_product_attention", "2.0",
     "compute attention in forward with matmul and softmax, or save MultiheadAttention with "
     "torch.jit.trace and need_weights=True"},
    {"aten::slice_inverse", "2.3", ""},
};

}  // namespace

absl::Span<const OperatorRelease> OperatorReleases() { return kReleases; }

OperatorRelease ReleaseOf(absl::string_view op) {
  for (const OperatorRelease& known : kReleases) {
    if (known.op == op) return known;
  }
  return {op, "", ""};
}

}  // namespace sluice
