#include "services/coordinator/job_file.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/util/json_util.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "services/common/json_text.h"
#include "services/common/status_macros.h"

namespace sluice::coordinator {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using Json = nlohmann::json;

const FieldDescriptor* FindField(const Descriptor& type, const std::string& name) {
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor* field = type.field(i);
    if (field->json_name() == name || field->name() == name) return field;
  }
  return nullptr;
}

bool IsKnown(const EnumDescriptor& type, const Json& value) {
  if (value.is_string()) return type.FindValueByName(value.get<std::string>()) != nullptr;
  // The parser refuses all other values.
  return !value.is_number_integer() || type.FindValueByNumber(value.get<int>()) != nullptr;
}

// Takes unknown fields out of a message, and notes the first unknown value.
class Reader {
 public:
  void Read(const Descriptor& type, const std::string& path, Json* object) {
    if (!object->is_object()) return;
    for (auto it = object->begin(); it != object->end();) {
      const std::string name = absl::StrCat(path, path.empty() ? "" : ".", it.key());
      const FieldDescriptor* field = FindField(type, it.key());
      if (field == nullptr) {
        unknown_fields.push_back(name);
        it = object->erase(it);
        continue;
      }
      if (it->is_array()) {
        for (size_t i = 0; i < it->size(); ++i) {
          ReadValue(*field, absl::StrCat(name, "[", i, "]"), &(*it)[i]);
        }
      } else {
        ReadValue(*field, name, &*it);
      }
      ++it;
    }
  }

  std::vector<std::string> unknown_fields;
  std::string unknown_value;

 private:
  void ReadValue(const FieldDescriptor& field, const std::string& path, Json* value) {
    // A job's maps have plain values.
    if (field.is_map()) return;
    if (field.message_type() != nullptr) return Read(*field.message_type(), path, value);
    if (field.enum_type() != nullptr && unknown_value.empty() &&
        !IsKnown(*field.enum_type(), *value)) {
      unknown_value = absl::StrCat(path, ": ", value->dump());
    }
  }
};

}  // namespace

absl::StatusOr<JobFile> ParseJobFile(absl::string_view text) {
  // A file that nests deeper than a job's messages is not a job.
  constexpr size_t kMaxDepth = 64;
  RETURN_IF_ERROR(CheckJsonText(text, kMaxDepth));
  Json object = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  Reader reader;
  reader.Read(*v1::JobSpec::descriptor(), "", &object);
  if (!reader.unknown_value.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(reader.unknown_value, " is not a value that this release knows"));
  }
  JobFile file;
  file.unknown_fields = std::move(reader.unknown_fields);
  const std::string known = file.unknown_fields.empty() ? std::string(text) : object.dump();
  const auto status = google::protobuf::util::JsonStringToMessage(known, &file.job);
  if (!status.ok()) return absl::InvalidArgumentError(status.ToString());
  return file;
}

}  // namespace sluice::coordinator
