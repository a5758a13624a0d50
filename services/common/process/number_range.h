#ifndef SLUICE_SERVICES_COMMON_PROCESS_NUMBER_RANGE_H_
#define SLUICE_SERVICES_COMMON_PROCESS_NUMBER_RANGE_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <type_traits>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace sluice {

// The most shards, or workers, that a manifest may request.
inline constexpr uint32_t kMaxReplicas = 1024;

// For a command-line option: refuses a value that is not a number from `least` to `most`; the error
// states the range. (CLI::Range accepts "nan". Without CLI::Range, the error for a value that its
// type cannot hold does not state the range.)
template <typename T>
CLI::Validator NumberBetween(T least, T most) {
  const std::string range = absl::StrCat(least, " to ", most);
  CLI::Validator validator;
  validator.description(absl::StrCat("[", range, "]"));
  validator.operation([least, most, range](std::string& text) {
    T value{};
    bool is_number = false;
    if constexpr (std::is_floating_point_v<T>) {
      is_number = absl::SimpleAtod(text, &value);
    } else {
      is_number = absl::SimpleAtoi(text, &value);
    }
    if (is_number && value >= least && value <= most) return std::string();
    return absl::StrCat("'", text, "' is not a ",
                        std::is_floating_point_v<T> ? "number" : "whole number", " from ", range);
  });
  return validator;
}

}  // namespace sluice

#endif  // SLUICE_SERVICES_COMMON_PROCESS_NUMBER_RANGE_H_
