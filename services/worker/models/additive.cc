// Does not learn: w <- w + (1e-3 * w + 1) for one vector w, to measure and to check the parameter
// server. Takes no data; for the optimizer Add. Its "gradient" is AdditiveUpdate. Element i starts
// as (i mod 1024) / 1024, so that a misplaced block shows. Dimensions: dim; ramp, instead of the
// 1024 in the modulus: with 1 all elements start as 0.
#include "services/worker/models/additive.h"

#include "services/common/status_macros.h"
#include "services/worker/models/architecture.h"

namespace sluice {
namespace {

class Additive final : public Architecture {
 public:
  Additive(int64_t dim, int64_t ramp) : dim_(dim), ramp_(ramp) {}

  std::vector<Parameter> Parameters() const override { return {{"w", {dim_}, 0}}; }

  std::vector<int64_t> InputShape() const override { return {}; }

  LossKind OwnLoss() const override { return LossKind::kNone; }

  at::Tensor Forward(absl::Span<const at::Tensor> /*parameters*/, const at::Tensor& /*input*/,
                     bool /*training*/) const override {
    return at::Tensor();
  }

  void FillInitial(const Parameter& /*parameter*/, uint64_t /*seed*/, uint64_t offset,
                   absl::Span<double> out) const override {
    const auto period = static_cast<uint64_t>(ramp_);
    for (double& value : out) value = static_cast<double>(offset++ % period) / 1024;
  }

 private:
  const int64_t dim_;
  const int64_t ramp_;
};

}  // namespace

ArchitectureOr MakeAdditive(Dimensions& dimensions, const DataShape& /*data*/) {
  ASSIGN_OR_RETURN(const auto dim, dimensions.Take("dim", 0));
  ASSIGN_OR_RETURN(const auto ramp, dimensions.Take("ramp", 1024));
  return std::make_unique<Additive>(dim, ramp);
}

}  // namespace sluice
