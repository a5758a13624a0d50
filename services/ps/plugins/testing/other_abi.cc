// A library for another version of the interface.
#include "include/sluice/optimizer_plugin.h"

extern "C" __attribute__((visibility("default")))
const SluiceOptimizerPlugin sluice_optimizer_plugin = {
    SLUICE_OPTIMIZER_ABI + 1, nullptr, nullptr, nullptr, nullptr, nullptr};
