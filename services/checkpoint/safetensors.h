// The file format safetensors (https://github.com/huggingface/safetensors): a JSON header and plain
// arrays, little endian. Partition files and exported models use it.
#ifndef SLUICE_SERVICES_CHECKPOINT_SAFETENSORS_H_
#define SLUICE_SERVICES_CHECKPOINT_SAFETENSORS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"
#include "proto/common.pb.h"

namespace sluice {

// One array of a file. `bytes` shares the file's memory where it was read, and keeps it alive.
struct SafetensorsArray {
  std::string name;
  v1::DataType dtype = v1::FLOAT32;
  std::vector<int64_t> shape;
  absl::Cord bytes;  // row-major
  // The format's name of a type that Sluice does not train, such as "BOOL" or "F8_E4M3"; `dtype` is
  // DATA_TYPE_UNSPECIFIED then.
  std::string other_type = "";
};

// "F32", "BF16", ...; empty for a type that the format does not have.
absl::string_view SafetensorsTypeName(v1::DataType dtype);

// Writes the arrays in the given order, and `metadata` in the header.
absl::Cord WriteSafetensors(const std::vector<SafetensorsArray>& arrays,
                            const std::map<std::string, std::string>& metadata);

// Returns the arrays in the order of their bytes; they refer to the memory of `file`. `metadata`,
// if not null, receives the header's texts. Accepts what the format's reference reader (safetensors
// 0.8.0) accepts; INVALID_ARGUMENT says what is wrong with any other file.
absl::StatusOr<std::vector<SafetensorsArray>> ReadSafetensors(
    const absl::Cord& file, std::map<std::string, std::string>* metadata = nullptr);

}  // namespace sluice

#endif  // SLUICE_SERVICES_CHECKPOINT_SAFETENSORS_H_
