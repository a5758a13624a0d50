// Logistic regression: in -> 1 logit of class 1 against class 0. Dimension: in (the data's).
#include <ATen/ops/linear.h>

#include "services/common/status_macros.h"
#include "services/worker/models/architecture.h"

namespace sluice {
namespace {

class Logistic final : public Architecture {
 public:
  explicit Logistic(int64_t in) : in_(in) {}

  std::vector<Parameter> Parameters() const override {
    return {{"weight", {1, in_}, UniformBound(in_)}, {"bias", {1}, UniformBound(in_)}};
  }

  std::vector<int64_t> InputShape() const override { return {in_}; }

  LossKind OwnLoss() const override { return LossKind::kBinaryCrossEntropyWithLogits; }

  at::Tensor Forward(absl::Span<const at::Tensor> p, const at::Tensor& input,
                     bool /*training*/) const override {
    return at::linear(input, p[0], p[1]);
  }

 private:
  const int64_t in_;
};

}  // namespace

ArchitectureOr MakeLogistic(Dimensions& dimensions, const DataShape& data) {
  ASSIGN_OR_RETURN(const auto in, dimensions.Take("in", data.inputs));
  return std::make_unique<Logistic>(in);
}

}  // namespace sluice
