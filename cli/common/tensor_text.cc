#include "cli/common/tensor_text.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "services/common/arithmetic/half.h"
#include "services/protocol/elements.h"

namespace sluice::cli {
namespace {

template <typename T, typename Convert>
std::vector<double> Converted(const std::string& bytes, const Convert& convert) {
  std::vector<double> values(bytes.size() / sizeof(T));
  for (size_t i = 0; i < values.size(); ++i) {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
    values[i] = convert(value);
  }
  return values;
}

}  // namespace

std::vector<double> ElementsOf(const SafetensorsArray& array) {
  const std::string bytes(array.bytes);
  const auto number = [](auto value) { return static_cast<double>(value); };
  const auto half = [](auto value) { return static_cast<double>(ToFloat(value)); };

  switch (array.dtype) {
    case v1::FLOAT32:
      return Converted<float>(bytes, number);
    case v1::FLOAT64:
      return Converted<double>(bytes, number);
    case v1::INT64:
      return Converted<int64_t>(bytes, number);
    case v1::BFLOAT16:
      return Converted<BFloat16>(bytes, half);
    case v1::FLOAT16:
      return Converted<Float16>(bytes, half);
    default:
      return {};
  }
}

TensorStats StatsOf(const SafetensorsArray& array) {
  const std::vector<double> values = ElementsOf(array);
  TensorStats stats;
  stats.elements = values.size();

  double sum = 0;
  bool any = false;
  for (const double value : values) {
    if (!std::isfinite(value)) {
      ++stats.not_finite;
      continue;
    }
    stats.min = any ? std::min(stats.min, value) : value;
    stats.max = any ? std::max(stats.max, value) : value;
    any = true;
    sum += value;
  }

  const double finite = static_cast<double>(stats.elements - stats.not_finite);
  if (finite == 0) return stats;
  stats.mean = sum / finite;

  double squares = 0;
  for (const double value : values) {
    if (std::isfinite(value)) squares += (value - stats.mean) * (value - stats.mean);
  }
  stats.deviation = std::sqrt(squares / finite);
  return stats;
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

std::string TypeText(v1::DataType dtype) { return absl::AsciiStrToLower(v1::DataType_Name(dtype)); }

std::vector<std::string> TensorTableLines(const std::vector<SafetensorsArray>& tensors, bool stats,
                                          const std::map<std::string, std::string>& owners) {
  size_t name_width = 4;
  size_t shape_width = 5;
  size_t owner_width = 5;

  const auto owner_of = [&](const std::string& tensor) {
    const auto owner = owners.find(tensor);
    return owner == owners.end() ? std::string() : owner->second;
  };

  for (const SafetensorsArray& tensor : tensors) {
    name_width = std::max(name_width, tensor.name.size());
    shape_width = std::max(shape_width, ShapeText(tensor.shape).size());
    owner_width = std::max(owner_width, owner_of(tensor.name).size());
  }

  const auto line = [&](const std::string& name, const std::string& shape, const std::string& type,
                        const std::string& owner, const std::string& rest) {
    std::string text =
        absl::StrFormat("%-*s  %-*s  %-8s", name_width, name, shape_width, shape, type);
    if (!owners.empty()) absl::StrAppendFormat(&text, "  %-*s", owner_width, owner);
    return absl::StrCat(text, rest);
  };

  std::vector<std::string> lines;
  lines.push_back(line("NAME", "SHAPE", "TYPE", "OWNER",
                       stats ? absl::StrFormat("  %12s  %12s  %12s  %12s  %s", "MIN", "MAX", "MEAN",
                                               "DEVIATION", "NOT FINITE")
                             : ""));
  for (const SafetensorsArray& tensor : tensors) {
    std::string rest;
    if (stats) {
      const TensorStats of = StatsOf(tensor);
      rest = absl::StrFormat("  %12.5g  %12.5g  %12.5g  %12.5g  %d", of.min, of.max, of.mean,
                             of.deviation, of.not_finite);
    }
    lines.push_back(line(tensor.name, ShapeText(tensor.shape),
                         tensor.other_type.empty() ? TypeText(tensor.dtype) : tensor.other_type,
                         owner_of(tensor.name), rest));
  }
  return lines;
}

std::vector<std::string> ValueLines(const SafetensorsArray& array, size_t count) {
  constexpr size_t kPerLine = 8;
  const std::vector<double> values = ElementsOf(array);

  std::vector<std::string> lines;
  const size_t shown = std::min(count, values.size());
  for (size_t i = 0; i < shown; i += kPerLine) {
    std::string line;
    for (size_t j = i; j < std::min(i + kPerLine, shown); ++j) {
      absl::StrAppendFormat(&line, "  %11.6g", values[j]);
    }
    lines.push_back(std::move(line));
  }
  if (shown < values.size()) {
    lines.push_back(absl::StrCat("  and ", values.size() - shown, " more"));
  }
  return lines;
}

std::string WatchText(const std::vector<SafetensorsArray>& tensors, size_t count) {
  if (tensors.size() == 1) {
    const std::vector<double> values = ElementsOf(tensors[0]);
    const size_t shown = std::min(count, values.size());
    std::string text = tensors[0].name;
    for (size_t i = 0; i < shown; ++i) absl::StrAppendFormat(&text, " %.6g", values[i]);
    if (shown < values.size()) absl::StrAppend(&text, " and ", values.size() - shown, " more");
    return text;
  }

  uint64_t elements = 0, not_finite = 0;
  double sum = 0, squares = 0;
  for (const SafetensorsArray& tensor : tensors) {
    const TensorStats stats = StatsOf(tensor);
    const double finite = static_cast<double>(stats.elements - stats.not_finite);
    elements += stats.elements;
    not_finite += stats.not_finite;
    sum += stats.mean * finite;
    squares += (stats.deviation * stats.deviation + stats.mean * stats.mean) * finite;
  }

  const double finite = std::max<double>(1, static_cast<double>(elements - not_finite));
  const double mean = sum / finite;
  const double variance = std::max(0.0, squares / finite - mean * mean);

  std::string text =
      absl::StrFormat("%d tensor%s, %d values, mean %.4g, deviation %.4g", tensors.size(),
                      tensors.size() == 1 ? "" : "s", elements, mean, std::sqrt(variance));
  if (not_finite > 0) absl::StrAppend(&text, ", ", not_finite, " not finite");
  return text;
}

}  // namespace sluice::cli
