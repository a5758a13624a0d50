// Linear regression: in -> out, with a mean squared error. Dimensions: in (the data's), out (the
// data's, or 1).
#include <ATen/ops/linear.h>

#include "services/common/status_macros.h"
#include "services/worker/models/architecture.h"

namespace sluice {
namespace {

class Linear final : public Architecture {
 public:
  Linear(int64_t in, int64_t out) : in_(in), out_(out) {}

  std::vector<Parameter> Parameters() const override {
    return {{"weight", {out_, in_}, UniformBound(in_)}, {"bias", {out_}, UniformBound(in_)}};
  }

  std::vector<int64_t> InputShape() const override { return {in_}; }

  LossKind OwnLoss() const override { return LossKind::kMse; }

  at::Tensor Forward(absl::Span<const at::Tensor> p, const at::Tensor& input,
                     bool /*training*/) const override {
    return at::linear(input, p[0], p[1]);
  }

 private:
  const int64_t in_;
  const int64_t out_;
};

}  // namespace

ArchitectureOr MakeLinear(Dimensions& dimensions, const DataShape& data) {
  ASSIGN_OR_RETURN(const auto in, dimensions.Take("in", data.inputs));
  ASSIGN_OR_RETURN(const auto out, dimensions.Take("out", data.outputs > 0 ? data.outputs : 1));
  return std::make_unique<Linear>(in, out);
}

}  // namespace sluice
