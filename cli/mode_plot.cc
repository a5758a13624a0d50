#include "cli/mode_plot.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace sluice::cli {
namespace {

// Sizes of the drawing, in pixels.
constexpr double kWidth = 900, kHeight = 330;
constexpr double kPanelWidth = 370, kPanelHeight = 220;
constexpr double kLeft = 60, kTop = 40, kGap = 80;
constexpr int kMarks = 6;
// Distinguishable with colour blindness (Okabe and Ito).
constexpr const char* kColors[] = {"#0072b2", "#e69f00", "#009e73"};

struct Axis {
  std::vector<double> marks;
  double begin, length;  // in the drawing; a negative length goes up
  double At(double value) const {
    return begin + length * (value - marks.front()) / (marks.back() - marks.front());
  }
};

std::string Text(double x, double y, const char* anchor, const std::string& text) {
  return absl::StrFormat("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n", x, y, anchor,
                         text);
}

std::string Line(double x1, double y1, double x2, double y2, const char* color) {
  return absl::StrFormat("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\"/>\n",
                         x1, y1, x2, y2, color);
}

std::string MarkText(double value) {
  if (std::abs(value) >= 1e6) return absl::StrFormat("%gM", value / 1e6);
  if (std::abs(value) >= 1e4) return absl::StrFormat("%gk", value / 1e3);
  return absl::StrFormat("%g", value);
}

std::string Grid(const Axis& x, const Axis& y, const std::string& x_name) {
  std::string svg;
  for (double mark : x.marks) {
    absl::StrAppend(&svg, Line(x.At(mark), kTop, x.At(mark), kTop + kPanelHeight, "#dddddd"),
                    Text(x.At(mark), kTop + kPanelHeight + 16, "middle", MarkText(mark)));
  }
  for (double mark : y.marks) {
    absl::StrAppend(&svg, Line(x.begin, y.At(mark), x.begin + kPanelWidth, y.At(mark), "#dddddd"),
                    Text(x.begin - 6, y.At(mark) + 4, "end", MarkText(mark)));
  }
  absl::StrAppend(&svg,
                  Text(x.begin + kPanelWidth / 2, kTop + kPanelHeight + 36, "middle", x_name));
  return svg;
}

std::string Panel(const std::vector<ModeRun>& runs, double left, double ModePoint::*position,
                  const std::string& x_name) {
  double x_high = 0, y_low = INFINITY, y_high = -INFINITY;
  for (const ModeRun& run : runs) {
    for (const ModePoint& point : run.points) {
      if (!std::isfinite(point.value)) continue;
      x_high = std::max(x_high, point.*position);
      y_low = std::min(y_low, point.value);
      y_high = std::max(y_high, point.value);
    }
  }
  if (!std::isfinite(y_low)) return "";
  const Axis x = {AxisMarks(0, x_high, kMarks), left, kPanelWidth};
  const Axis y = {AxisMarks(y_low, y_high, kMarks), kTop + kPanelHeight, -kPanelHeight};
  std::string svg = Grid(x, y, x_name);
  for (size_t i = 0; i < runs.size(); ++i) {
    const char* color = kColors[i % std::size(kColors)];
    std::string points;
    for (const ModePoint& point : runs[i].points) {
      if (!std::isfinite(point.value)) continue;
      absl::StrAppendFormat(&points, "%.1f,%.1f ", x.At(point.*position), y.At(point.value));
    }
    if (points.empty()) continue;
    absl::StrAppendFormat(
        &svg, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"1.5\" points=\"%s\"/>\n", color,
        points);
  }
  return svg;
}

std::string Legend(const std::vector<ModeRun>& runs) {
  std::string svg;
  double x = kLeft;
  for (size_t i = 0; i < runs.size(); ++i) {
    absl::StrAppend(
        &svg, Line(x, 18, x + 20, 18, kColors[i % std::size(kColors)]),
        Text(x + 26, 22, "start",
             absl::StrFormat("%s: %.0f samples/s", runs[i].mode, runs[i].samples_per_second())));
    x += 260;
  }
  return svg;
}

}  // namespace

std::vector<double> AxisMarks(double low, double high, int most) {
  if (high - low <= std::abs(low) * 1e-9) {
    const double around = low == 0 ? 1 : std::abs(low) / 2;
    low -= low == 0 ? 0 : around;
    high += around;
  }
  double apart = std::pow(10, std::floor(std::log10((high - low) / most)));
  for (int i = 0; std::ceil(high / apart) - std::floor(low / apart) > most; ++i) {
    apart *= i % 3 == 1 ? 2.5 : 2;
  }
  std::vector<double> marks;
  const double first = std::floor(low / apart);
  const int count = static_cast<int>(std::ceil(high / apart) - first) + 1;
  for (int i = 0; i < count; ++i) marks.push_back((first + i) * apart);
  return marks;
}

std::string PlotModes(const std::vector<ModeRun>& runs) {
  const std::string metric = runs.empty() ? std::string() : runs.front().metric;
  const std::string unit = metric == "accuracy" ? "accuracy, %" : metric;
  return absl::StrCat(
      absl::StrFormat("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
                      "font-family=\"sans-serif\" font-size=\"12\">\n",
                      kWidth, kHeight),
      "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n", Legend(runs),
      Panel(runs, kLeft, &ModePoint::seconds, unit + ", by seconds of training"),
      Panel(runs, kLeft + kPanelWidth + kGap, &ModePoint::samples,
            unit + ", by samples trained on"),
      "</svg>\n");
}

}  // namespace sluice::cli
