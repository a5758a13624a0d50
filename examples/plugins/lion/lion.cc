// Lion (X. Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023, algorithm 2):
//
//   g = gradient
//   w = w - learning_rate * (sign(beta1 m + (1 - beta1) g) + weight_decay w)
//   m = beta2 m + (1 - beta2) g                                                  from 0

#include <sluice/optimizer_plugin.h>

#include <stdexcept>
#include <vector>

namespace {

using sluice::plugin::Arguments;
using sluice::plugin::Parameters;
using sluice::plugin::Range;
using sluice::plugin::Slot;

class Lion final : public sluice::plugin::Optimizer {
 public:
  explicit Lion(Parameters& parameters)
      : beta1_(parameters.Get("beta1", 0.9)),
        beta2_(parameters.Get("beta2", 0.99)),
        weight_decay_(parameters.Get("weight_decay", 0)) {
    for (double beta : {beta1_, beta2_}) {
      if (beta < 0 || beta >= 1) throw std::invalid_argument("a beta must be in [0, 1)");
    }
  }

  std::vector<Slot> slots() const override { return {{"exp_avg", 0.0}}; }

  void Step(const Arguments& arguments, const Range<float>& range) const override {
    Run<float>(arguments, range);
  }
  void Step(const Arguments& arguments, const Range<double>& range) const override {
    Run<double>(arguments, range);
  }

 private:
  template <typename T>
  void Run(const Arguments& arguments, const Range<T>& range) const {
    const T scale = static_cast<T>(arguments.gradient_scale);
    const T rate = static_cast<T>(arguments.learning_rate);
    const T beta1 = static_cast<T>(beta1_), beta2 = static_cast<T>(beta2_);
    const T decay = static_cast<T>(weight_decay_);
    for (size_t i = 0; i < range.count; ++i) {
      const T w = range.parameters[i];
      const T g = range.gradient[i] * scale;
      const T m = range.slots[0][i];
      const T direction = beta1 * m + (1 - beta1) * g;
      const T sign = static_cast<T>((direction > 0) - (direction < 0));
      range.parameters_out[i] = w - rate * (sign + decay * w);
      range.slots_out[0][i] = beta2 * m + (1 - beta2) * g;
    }
  }

  const double beta1_;
  const double beta2_;
  const double weight_decay_;
};

}  // namespace

SLUICE_OPTIMIZER_PLUGIN(Lion)
