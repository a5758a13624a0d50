#include "services/worker/models/buffer_change.h"

#include <ATen/ops/isfinite.h>
#include <c10/core/ScalarType.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace sluice {

absl::StatusOr<at::Tensor> BufferChange(const std::string& name, const at::Tensor& before,
                                        const at::Tensor& after) {
  if (after.sizes() != before.sizes() || after.scalar_type() != before.scalar_type()) {
    const auto text = [](const at::Tensor& value) {
      return absl::StrCat(c10::toString(value.scalar_type()), " [",
                          absl::StrJoin(value.sizes(), ", "), "]");
    };
    return absl::FailedPreconditionError(absl::StrCat(
        "buffer '", name, "' is ", text(before), ", and forward makes it ", text(after),
        ": a buffer should keep its shape and type; register it in the "
        "size that it needs, or compute it in forward without storing it"));
  }

  const at::Tensor old = before.contiguous();
  const at::Tensor now = after.contiguous();
  if (std::memcmp(old.data_ptr(), now.data_ptr(), old.nbytes()) == 0) return at::Tensor();

  at::Tensor change = now.sub(old);
  const at::Tensor unlimited = at::isfinite(old).logical_not();
  if (!unlimited.any().item<bool>()) return change;
  const at::Tensor same = old.eq(now).logical_or(old.ne(old).logical_and(now.ne(now)));
  if (unlimited.logical_and(same.logical_not()).any().item<bool>()) {
    return absl::FailedPreconditionError(
        absl::StrCat("buffer '", name,
                     "' has infinity or NaN, and forward makes it another number: changes are "
                     "added, which needs finite numbers; begin with a finite one, such as the "
                     "largest float in place of infinity"));
  }
  return change.masked_fill_(same, 0);
}

}  // namespace sluice
