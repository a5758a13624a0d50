#include "services/manifest/job_file.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "services/common/status_macros.h"
#include "services/common/text/json_text.h"
#include "services/manifest/codec.h"
#include "services/manifest/field_table.h"
#include "services/manifest/training_job.h"

namespace sluice::api {
namespace {

using Json = nlohmann::json;

// A field that only clusters use, so that ToJson does not write it and FromJson does not read it:
// the operator decides on TLS.
constexpr char kTls[] = "tls";
constexpr char kTlsEnabled[] = "Enabled";

// Takes unknown fields out of an object, and notes the first unknown value.
class Reader {
 public:
  void Read(const SchemaNode& schema, const std::string& path, Json* object) {
    for (auto it = object->begin(); it != object->end();) {
      const std::string name = absl::StrCat(path, path.empty() ? "" : ".", it.key());
      const SchemaNode* const row = schema.Child(it.key());
      if (row == nullptr && name != "metadata.uid") {
        unknown_fields.push_back(name);
        it = object->erase(it);
        continue;
      }
      if (row != nullptr) ReadValue(*row, name, &*it);
      ++it;
    }
  }

  std::vector<std::string> unknown_fields;
  std::string unknown_value;
  std::string wrong_value;

 private:
  void ReadValue(const SchemaNode& row, const std::string& path, Json* value) {
    const Field& field = *row.field;
    if (!HasType(*value, field.type)) {
      NoteWrong(absl::StrCat(path, " must be of type ", FieldTypeName(field.type)));
      return;
    }
    // Larger numbers are not those of a job.
    if (field.type == FieldType::kInteger && field.maximum.has_value() && *value > *field.maximum) {
      NoteWrong(absl::StrCat(path, " must be at most ", *field.maximum));
    } else if (!field.values.empty() && !absl::c_linear_search(field.values, *value)) {
      if (unknown_value.empty()) unknown_value = absl::StrCat(path, ": ", value->dump());
    } else if (field.type == FieldType::kObject && !field.open) {
      Read(row, path, value);
    } else if (field.type == FieldType::kList) {
      for (size_t i = 0; i < value->size(); ++i) {
        ReadValue(*row.item, absl::StrCat(path, "[", i, "]"), &(*value)[i]);
      }
    } else if (field.type == FieldType::kMap) {
      for (auto& [key, entry] : value->items()) {
        ReadValue(*row.item, absl::StrCat(path, ".", key), &entry);
      }
    }
  }

  void NoteWrong(std::string problem) {
    if (wrong_value.empty()) wrong_value = std::move(problem);
  }
};

}  // namespace

std::string JobFileText(const v1::JobSpec& job, int indent) {
  TrainingJob described;
  described.spec = job;
  Json object = ToJson(described);
  if (job.tls() == v1::JobSpec::TLS_ENABLED) object["spec"][kTls] = kTlsEnabled;
  // Paths may be in any encoding.
  return object.dump(indent, ' ', false, Json::error_handler_t::replace);
}

absl::StatusOr<JobFile> ParseJobFile(absl::string_view text) {
  // A file that nests deeper than a manifest is not a job.
  constexpr size_t kMaxDepth = 64;
  RETURN_IF_ERROR(CheckJsonText(text, kMaxDepth));
  Json object = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!object.is_object() || !object.contains("spec")) {
    return absl::InvalidArgumentError(
        "it is not a TrainingJob as JSON, with `metadata` and `spec`; `sluice render` writes one");
  }

  Reader reader;
  reader.Read(Schema(), "", &object);
  if (!reader.wrong_value.empty()) return absl::InvalidArgumentError(reader.wrong_value);
  if (!reader.unknown_value.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(reader.unknown_value, " is not a value that this release knows"));
  }

  JobFile file;
  file.unknown_fields = std::move(reader.unknown_fields);
  const bool tls = object["spec"].value(kTls, "") == kTlsEnabled;
  file.job = FromJson(std::move(object)).spec;
  if (tls) file.job.set_tls(v1::JobSpec::TLS_ENABLED);
  return file;
}

}  // namespace sluice::api
