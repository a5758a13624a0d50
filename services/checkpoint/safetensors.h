// The file format safetensors (https://github.com/huggingface/safetensors): a JSON header and plain
// arrays, little endian. Partition files have it, and exported models.
#ifndef SLUICE_SERVICES_CHECKPOINT_SAFETENSORS_H_
#define SLUICE_SERVICES_CHECKPOINT_SAFETENSORS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"
#include "proto/frame.pb.h"

namespace sluice {

struct SafetensorsArray {
  std::string name;
  v1::DataType dtype = v1::FLOAT32;
  std::vector<int64_t> shape;
  absl::Cord bytes;  // row-major
  // A type that Sluice does not train: "BOOL", "U8", "I8", "I16", "I32" or "C64". `dtype` is
  // DATA_TYPE_UNSPECIFIED then; otherwise this is empty.
  std::string other_type = "";
};

// "F32", "BF16", ...; empty for what the format does not have.
absl::string_view SafetensorsTypeName(v1::DataType dtype);

// In the order in which they are given. `metadata` is stored in the header.
absl::Cord WriteSafetensors(const std::vector<SafetensorsArray>& arrays,
                            const std::map<std::string, std::string>& metadata);

// The arrays in the order of their bytes, over the memory of `file`; `metadata`, if not null, gets
// the header's texts. INVALID_ARGUMENT says what is wrong with the file: anything that is not
// whole, or an array of a type that is not known here.
absl::StatusOr<std::vector<SafetensorsArray>> ReadSafetensors(
    const absl::Cord& file, std::map<std::string, std::string>* metadata = nullptr);

}  // namespace sluice

#endif  // SLUICE_SERVICES_CHECKPOINT_SAFETENSORS_H_
