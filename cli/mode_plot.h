#ifndef SLUICE_CLI_MODE_PLOT_H_
#define SLUICE_CLI_MODE_PLOT_H_

#include <string>
#include <vector>

#include "cli/mode_comparison.h"

namespace sluice::cli {

// Returns an SVG with one line per mode: the metric over the training time, and over the samples
// trained on. Runs without evaluations are left out.
std::string PlotModes(const std::vector<ModeRun>& runs);

// The marks of an axis from `low` to `high`: 1, 2 or 5 times a power of ten apart, at most `most` +
// 1 of them, from the last one at or below `low` to the first at or above `high`.
std::vector<double> AxisMarks(double low, double high, int most);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_MODE_PLOT_H_
