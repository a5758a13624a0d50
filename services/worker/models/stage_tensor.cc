#include "services/worker/models/stage_tensor.h"

#include <ATen/ops/empty.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/protocol/elements.h"
#include "services/worker/models/model.h"

namespace sluice {

absl::StatusOr<at::Tensor> TensorOf(const v1::StageTensor& value) {
  const at::ScalarType type = ScalarTypeOf(value.dtype());
  if (type == at::ScalarType::Undefined) {
    return absl::InvalidArgumentError("a tensor of an unknown data type");
  }

  uint64_t bytes = ElementBytes(value.dtype());
  for (int64_t extent : value.shape()) {
    if (extent < 0 || (extent > 0 && bytes > (uint64_t{1} << 40) / static_cast<uint64_t>(extent))) {
      return absl::InvalidArgumentError("a tensor with an impossible shape");
    }
    bytes *= static_cast<uint64_t>(extent);
  }

  if (bytes != value.data().size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a tensor of ", value.data().size(), " bytes; its shape needs ", bytes));
  }

  const std::vector<int64_t> shape(value.shape().begin(), value.shape().end());
  at::Tensor tensor = at::empty(shape, type);
  if (bytes > 0) std::memcpy(tensor.data_ptr(), value.data().data(), bytes);
  return tensor;
}

v1::StageTensor StageTensorOf(const at::Tensor& tensor) {
  const at::Tensor host = tensor.detach().to(at::kCPU).contiguous();
  v1::StageTensor value;
  for (int64_t extent : host.sizes()) value.add_shape(extent);
  value.set_dtype(DataTypeOfTensor(host));
  value.set_data(host.data_ptr(), host.nbytes());
  return value;
}

}  // namespace sluice
