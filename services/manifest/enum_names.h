// The names of enumeration values in a manifest. A name there has the letters and digits of the
// value's name in the proto, in any case and without the enumeration's prefix: `TorchScript` is
// TORCH_SCRIPT, `Int8` is CODEC_INT8. If no value has the name `None`, it is the value 0.
#ifndef SLUICE_SERVICES_MANIFEST_ENUM_NAMES_H_
#define SLUICE_SERVICES_MANIFEST_ENUM_NAMES_H_

#include <google/protobuf/descriptor.h>
#include <google/protobuf/generated_enum_reflection.h>

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace sluice::api {

// Null if there is no such value.
const google::protobuf::EnumValueDescriptor* FindEnumValue(
    const google::protobuf::EnumDescriptor& type, absl::string_view name);

// The one of `names` (Field::values) that the value has; "" if it has none of them.
std::string EnumName(const std::vector<std::string>& names,
                     const google::protobuf::EnumDescriptor& type, int value);

// The name in the field `path` ("spec.training.mode"); "" if the value has none there.
std::string EnumName(absl::string_view path, const google::protobuf::EnumDescriptor& type,
                     int value);
template <typename Enum>
std::string EnumName(absl::string_view path, Enum value) {
  return EnumName(path, *google::protobuf::GetEnumDescriptor<Enum>(), value);
}

}  // namespace sluice::api

#endif  // SLUICE_SERVICES_MANIFEST_ENUM_NAMES_H_
