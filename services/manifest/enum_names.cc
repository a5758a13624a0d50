#include "services/manifest/enum_names.h"

#include "absl/strings/ascii.h"
#include "services/manifest/field_table.h"

namespace sluice::api {
namespace {

using google::protobuf::EnumDescriptor;
using google::protobuf::EnumValueDescriptor;

std::string Letters(absl::string_view name) {
  std::string letters;
  for (const char c : name) {
    if (c != '_' && c != '-') letters += absl::ascii_tolower(c);
  }
  return letters;
}

}  // namespace

const EnumValueDescriptor* FindEnumValue(const EnumDescriptor& type, absl::string_view name) {
  const std::string wanted = Letters(name);
  const std::string prefixed = Letters(type.name()) + wanted;
  for (int i = 0; i < type.value_count(); ++i) {
    const std::string letters = Letters(type.value(i)->name());
    if (letters == wanted || letters == prefixed) return type.value(i);
  }
  return name == "None" ? type.FindValueByNumber(0) : nullptr;
}

std::string EnumName(const std::vector<std::string>& names, const EnumDescriptor& type, int value) {
  for (const std::string& name : names) {
    const EnumValueDescriptor* const found = FindEnumValue(type, name);
    if (found != nullptr && found->number() == value) return name;
  }
  return "";
}

std::string EnumName(absl::string_view path, const EnumDescriptor& type, int value) {
  const SchemaNode* const node = FindSchema(path);
  return node == nullptr ? "" : EnumName(node->field->values, type, value);
}

}  // namespace sluice::api
