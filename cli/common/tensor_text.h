// Prints tensors as text.
#ifndef SLUICE_CLI_COMMON_TENSOR_TEXT_H_
#define SLUICE_CLI_COMMON_TENSOR_TEXT_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "services/checkpoint/safetensors.h"

namespace sluice::cli {

// Every element as a double. `bytes` must be a whole number of elements of the array's type.
std::vector<double> ElementsOf(const SafetensorsArray& array);

// Statistics of the finite elements.
struct TensorStats {
  uint64_t elements = 0;
  uint64_t not_finite = 0;
  double min = 0;
  double max = 0;
  double mean = 0;
  double deviation = 0;  // standard deviation
};
TensorStats StatsOf(const SafetensorsArray& array);

// "[128, 9216]"
std::string ShapeText(const std::vector<int64_t>& shape);
// "float32"
std::string TypeText(v1::DataType dtype);

// A table with a header row: name, shape and type; the owner, if owners (by tensor) are given; with
// `stats`, their columns.
std::vector<std::string> TensorTableLines(const std::vector<SafetensorsArray>& tensors, bool stats,
                                          const std::map<std::string, std::string>& owners);

// The first values, in rows of eight.
std::vector<std::string> ValueLines(const SafetensorsArray& array, size_t count);

// One line: for one tensor its name and first values ("w 3.003 3.003 and 98 more"), for several
// tensors their number and the statistics of their elements.
std::string WatchText(const std::vector<SafetensorsArray>& tensors, size_t count);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_COMMON_TENSOR_TEXT_H_
