// An optimizer that writes each of its arguments to a different array.
#include "include/sluice/optimizer_plugin.h"

namespace {

class ThreeSlots final : public sluice::plugin::Optimizer {
 public:
  explicit ThreeSlots(sluice::plugin::Parameters&) {}
  std::vector<sluice::plugin::Slot> slots() const override {
    return {{"a", 1}, {"b", 2}, {"c", 3}};
  }
  void Step(const sluice::plugin::Arguments& arguments,
            const sluice::plugin::Range<float>& range) const override {
    Run(arguments, range);
  }
  void Step(const sluice::plugin::Arguments& arguments,
            const sluice::plugin::Range<double>& range) const override {
    Run(arguments, range);
  }

 private:
  template <typename Range>
  static void Run(const sluice::plugin::Arguments& arguments, const Range& range) {
    for (size_t i = 0; i < range.count; ++i) {
      range.parameters_out[i] = range.parameters[i] + range.gradient[i];
      range.slots_out[0][i] = range.slots[0][i] + arguments.learning_rate;
      range.slots_out[1][i] = range.slots[1][i] + static_cast<double>(arguments.count);
      range.slots_out[2][i] = range.slots[2][i] + arguments.gradient_scale;
    }
  }
};

}  // namespace

SLUICE_OPTIMIZER_PLUGIN(ThreeSlots)
