// An optimizer with more slots than are allowed.
#include "include/sluice/optimizer_plugin.h"

namespace {

class TooManySlots final : public sluice::plugin::Optimizer {
 public:
  explicit TooManySlots(sluice::plugin::Parameters&) {}
  std::vector<sluice::plugin::Slot> slots() const override {
    return {{"a", 0}, {"b", 0}, {"c", 0}, {"d", 0}};
  }
  void Step(const sluice::plugin::Arguments&, const sluice::plugin::Range<float>&) const override {}
  void Step(const sluice::plugin::Arguments&, const sluice::plugin::Range<double>&) const override {
  }
};

}  // namespace

SLUICE_OPTIMIZER_PLUGIN(TooManySlots)
