#include "services/manifest/codec.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/strip.h"
#include "services/common/check.h"
#include "services/manifest/enum_names.h"
#include "services/manifest/field_table.h"
#include "services/protocol/samples/job_length.h"

namespace sluice::api {
namespace {

using Json = nlohmann::json;
using google::protobuf::Descriptor;
using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// ---------------------------------------------------------------- rows and fields of a job

// Where the value of a row is.
struct JobPlace {
  bool here = false;   // an object without a field of its own: its fields are those of the message
  bool outer = false;  // the fields are those of the message around it
  std::vector<const FieldDescriptor*> fields;  // more than one: for one item of a list each

  bool nowhere() const { return !here && fields.empty(); }
};

std::vector<const FieldDescriptor*> FieldsOf(const SchemaNode& row, const Descriptor* type) {
  std::vector<const FieldDescriptor*> fields;
  for (const std::string& name : row.field->proto) fields.push_back(type->FindFieldByName(name));
  if (row.field->proto.empty()) {
    const FieldDescriptor* field = type->FindFieldByCamelcaseName(row.name);
    const std::string shorter(absl::StripSuffix(row.name, "Seconds"));
    fields.push_back(field != nullptr ? field : type->FindFieldByCamelcaseName(shorter));
  }
  if (absl::c_linear_search(fields, nullptr)) fields.clear();
  return fields;
}

// `type`: the message of the object that contains the row; `outer`: the one around it, or null.
JobPlace PlaceOf(const SchemaNode& row, const Descriptor* type, const Descriptor* outer) {
  JobPlace place;
  if (row.field->cluster_only) return place;
  place.fields = FieldsOf(row, type);
  if (!place.fields.empty()) return place;
  place.here = row.field->type == FieldType::kObject;
  if (!row.field->proto.empty()) {
    SLUICE_CHECK(outer != nullptr, "a row of the table names a field of the job");
    place.fields = FieldsOf(row, outer);
    place.outer = true;
    SLUICE_CHECK(!place.fields.empty(), "a row of the table names a field of the job");
  }
  return place;
}

// An object that every job has.
bool IsAlways(const Field& field) { return field.required || !field.default_json.empty(); }

// ---------------------------------------------------------------- from JSON

uint64_t ToCount(const Json& value) {
  return value.is_number_integer() ? value.get<uint64_t>()
                                   : static_cast<uint64_t>(value.get<double>());
}

// Whether a value may be that of its row.
bool Fits(const Json& value, const Field& field) {
  if (!HasType(value, field.type)) return false;
  if (field.type == FieldType::kList) {
    return field.min_size != field.max_size || value.size() == field.min_size;
  }
  return field.values.empty() ||
         absl::c_linear_search(field.values, value.get_ref<const std::string&>());
}

// Removes values of other types than the table's, and fills in all defaults.
void Complete(const SchemaNode& schema, Json* object) {
  for (const SchemaNode* child : schema.children) {
    const Field& field = *child->field;
    if (field.cluster_only) continue;
    const auto found = object->find(child->name);
    if (found != object->end() && !Fits(*found, field)) object->erase(found);
    if (field.type == FieldType::kList && child->item->field->type == FieldType::kObject &&
        object->contains(child->name)) {
      for (Json& item : (*object)[child->name]) {
        if (item.is_object()) Complete(*child->item, &item);
      }
    }
    if (field.type != FieldType::kObject) continue;
    if (IsAlways(field) && !object->contains(child->name)) (*object)[child->name] = Json::object();
    if (object->contains(child->name)) Complete(*child, &(*object)[child->name]);
  }
  ApplyDefaults(schema, object);
  for (const SchemaNode* child : schema.children) {
    if (object->contains(child->name)) continue;
    Json value = DependentDefault(*child->field, *object);
    if (value.is_null()) continue;
    (*object)[child->name] = std::move(value);
    if (!IsAllowed(*child, *object)) object->erase(child->name);
  }
}

// A group with an optimizer of its own has the defaults of that optimizer.
void CompleteGroups(Json* optimizer) {
  const auto groups = optimizer->find("groups");
  if (groups == optimizer->end()) return;
  for (Json& group : *groups) {
    if (group.is_object() && group.contains("name")) {
      Complete(*FindSchema("spec.optimizer"), &group);
    }
  }
}

// The whole object, in place.
void CompleteJob(Json* object) {
  Complete(Schema(), object);
  Json& spec = (*object)["spec"];
  CompleteGroups(&spec["optimizer"]);

  Json& data = spec["data"];
  if (!data.contains("format")) data["format"] = "Synthetic";
  for (const char* format : {"Text", "Synthetic"}) {
    const std::string name = absl::AsciiStrToLower(format);
    if (data["format"] != format || data.contains(name)) continue;
    data[name] = Json::object();
    ApplyDefaults(*FindSchema("spec.data." + name), &data[name]);
  }
}

// Sets a field, or adds an item to a repeated one; `field` is the value's row. A value of another
// type is left out.
void Store(const Json& value, const Field& field, const FieldDescriptor* to, Message* message) {
  if (!Fits(value, field)) return;
  const Reflection& set = *message->GetReflection();
  const bool add = to->is_repeated();
  switch (to->cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      return add ? set.AddString(message, to, value.get<std::string>())
                 : set.SetString(message, to, value.get<std::string>());
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return add ? set.AddDouble(message, to, value.get<double>())
                 : set.SetDouble(message, to, value.get<double>());
    case FieldDescriptor::CPPTYPE_INT64: {
      const auto count = static_cast<int64_t>(ToCount(value));
      return add ? set.AddInt64(message, to, count) : set.SetInt64(message, to, count);
    }
    case FieldDescriptor::CPPTYPE_UINT64:
      if (!HasType(value, FieldType::kInteger)) return;  // a number in a list of numbers
      return add ? set.AddUInt64(message, to, ToCount(value))
                 : set.SetUInt64(message, to, ToCount(value));
    case FieldDescriptor::CPPTYPE_UINT32:
      return set.SetUInt32(message, to, static_cast<uint32_t>(ToCount(value)));
    case FieldDescriptor::CPPTYPE_BOOL:
      // The last name of `determinism` means true.
      return set.SetBool(
          message, to,
          value.is_boolean() ? value.get<bool>() != field.inverted : value == field.values.back());
    case FieldDescriptor::CPPTYPE_ENUM:
      if (const EnumValueDescriptor* found =
              FindEnumValue(*to->enum_type(), value.get_ref<const std::string&>())) {
        set.SetEnum(message, to, found);
      }
      return;
    default:
      return;
  }
}

void Read(const SchemaNode& schema, const Json& object, Message* message, Message* outer = nullptr);

void ReadRow(const SchemaNode& row, const JobPlace& place, const Json& value, Message* message) {
  const Reflection& reflection = *message->GetReflection();
  const FieldDescriptor* const field = place.fields[0];
  if (row.field->type == FieldType::kObject) {
    Read(row, value, reflection.MutableMessage(message, field), message);
  } else if (row.field->type == FieldType::kMap) {
    for (const auto& [key, entry] : value.items()) {
      if (!Fits(entry, *row.item->field)) continue;
      Message* const added = reflection.AddMessage(message, field);
      const Descriptor* const type = field->message_type();
      added->GetReflection()->SetString(added, type->map_key(), key);
      Store(entry, *row.item->field, type->map_value(), added);
    }
  } else if (row.field->type == FieldType::kList && place.fields.size() > 1) {
    for (size_t i = 0; i < place.fields.size() && i < value.size(); ++i) {
      Store(value[i], *row.item->field, place.fields[i], message);
    }
  } else if (row.field->type == FieldType::kList) {
    for (const Json& item : value) {
      if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
        Store(item, *row.item->field, field, message);
      } else if (row.item->field->type == FieldType::kList) {
        if (!Fits(item, *row.item->field)) continue;
        ReadRow(*row.item, PlaceOf(*row.item, field->message_type(), nullptr), item,
                reflection.AddMessage(message, field));
      } else {
        Read(*row.item, item, reflection.AddMessage(message, field));
      }
    }
  } else {
    Store(value, *row.field, field, message);
  }
}

const Descriptor* TypeOf(const Message* message) {
  return message == nullptr ? nullptr : message->GetDescriptor();
}

// Reads the fields of an object whose types are the table's.
void Read(const SchemaNode& schema, const Json& object, Message* message, Message* outer) {
  for (const SchemaNode* row : schema.children) {
    const JobPlace place = PlaceOf(*row, message->GetDescriptor(), TypeOf(outer));
    const auto value = object.find(row->name);  // the end, unless it is an object
    if (place.nowhere() || value == object.end() || !Fits(*value, *row->field)) continue;
    if (place.here) {
      Read(*row, *value, message, outer);
    } else {
      ReadRow(*row, place, *value, place.outer ? outer : message);
    }
  }
}

// Values that the table does not describe.
void ApplyComputedDefaults(const Json& spec, v1::JobSpec* job) {
  v1::TrainingSpec& training = *job->mutable_training();
  v1::OptimizerSpec& optimizer = *job->mutable_optimizer();
  // Add has no learning rate: it adds the updates unchanged.
  if (optimizer.name() == v1::OptimizerSpec::ADD && !spec["optimizer"].contains("learningRate")) {
    optimizer.set_learning_rate(1);
  }
  if (training.microbatch_size() == 0) {
    training.set_microbatch_size((training.global_batch_size() + kDefaultMicrobatches - 1) /
                                 kDefaultMicrobatches);
  }
  if (training.max_batch_size() > 0 && training.min_batch_size() == 0) {
    training.set_min_batch_size(1);
  }
  training.mutable_staleness();  // in every job
  if (job->parameter_server().copies() == 0) {
    // With one shard there is one copy; the second one is made when a shard is added.
    job->mutable_parameter_server()->set_copies(MovesPartitions(*job) ? 2 : 1);
  }
  if (job->data().text().state() == v1::DataSpec::Text::CARRIED) {
    // In this state, each batch has one sample of each stream.
    job->mutable_data()->mutable_text()->set_streams(
        static_cast<uint32_t>(training.global_batch_size()));
  }
}

std::map<std::string, std::string> ReadMap(const Json& object, const char* name) {
  std::map<std::string, std::string> result;
  const auto found = object.find(name);
  if (found == object.end()) return result;
  for (const auto& [key, value] : found->items()) {
    if (value.is_string()) result[key] = value.get<std::string>();
  }
  return result;
}

// The cluster-only fields of `object`; null if there are none.
Json ClusterPart(const SchemaNode& schema, const Json& object) {
  Json part;
  for (const SchemaNode* child : schema.children) {
    const auto found = object.find(child->name);
    if (found == object.end()) continue;
    Json value = child->field->cluster_only ? *found
                 : found->is_object()       ? ClusterPart(*child, *found)
                                            : Json();
    if (!value.is_null()) part[child->name] = std::move(value);
  }
  return part;
}

// ---------------------------------------------------------------- to JSON

// Adds to `paths` the fields that `part` sets to a value other than the default.
void AppendSet(const SchemaNode& schema, const Json& part, std::vector<std::string>* paths) {
  for (const SchemaNode* child : schema.children) {
    const auto found = part.find(child->name);
    if (found == part.end()) continue;
    const Field& field = *child->field;
    const bool structured = found->is_object() && !child->children.empty();
    if (structured && (!field.cluster_only || !field.default_json.empty())) {
      AppendSet(*child, *found, paths);
    } else if (field.default_json.empty() || *found != Json::parse(field.default_json)) {
      paths->push_back(field.path);
    }
  }
}

Json Write(const SchemaNode& schema, const Message& message, const Message* outer = nullptr);

// The value of a field, or of an item of a repeated one; null if a manifest has no name for it.
Json Load(const Field& field, const FieldDescriptor* from, const Message& message, int item = -1) {
  const Reflection& get = *message.GetReflection();
  switch (from->cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      return item < 0 ? get.GetString(message, from) : get.GetRepeatedString(message, from, item);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return item < 0 ? get.GetDouble(message, from) : get.GetRepeatedDouble(message, from, item);
    case FieldDescriptor::CPPTYPE_INT64:
      return item < 0 ? get.GetInt64(message, from) : get.GetRepeatedInt64(message, from, item);
    case FieldDescriptor::CPPTYPE_UINT64:
      return item < 0 ? get.GetUInt64(message, from) : get.GetRepeatedUInt64(message, from, item);
    case FieldDescriptor::CPPTYPE_UINT32:
      return get.GetUInt32(message, from);
    case FieldDescriptor::CPPTYPE_BOOL: {
      const bool value = get.GetBool(message, from);
      if (field.type == FieldType::kBoolean) return value != field.inverted;
      return value ? field.values.back() : field.values.front();
    }
    case FieldDescriptor::CPPTYPE_ENUM: {
      const std::string name =
          EnumName(field.values, *from->enum_type(), get.GetEnumValue(message, from));
      return name.empty() ? Json() : Json(name);
    }
    default:
      return nullptr;
  }
}

// Null if the list or map is empty.
Json WriteItems(const SchemaNode& row, const JobPlace& place, const Message& message) {
  const Reflection& get = *message.GetReflection();
  const FieldDescriptor* const field = place.fields[0];
  Json items;
  if (place.fields.size() > 1) {
    if (field->has_presence() && !get.HasField(message, field)) return items;
    for (const FieldDescriptor* one : place.fields) {
      items.push_back(Load(*row.item->field, one, message));
    }
    return items;
  }
  for (int i = 0; i < get.FieldSize(message, field); ++i) {
    if (field->is_map()) {
      const Message& entry = get.GetRepeatedMessage(message, field, i);
      const Descriptor* const type = field->message_type();
      items[entry.GetReflection()->GetString(entry, type->map_key())] =
          Load(*row.item->field, type->map_value(), entry);
    } else if (row.item->field->type == FieldType::kList) {
      items.push_back(WriteItems(*row.item, PlaceOf(*row.item, field->message_type(), nullptr),
                                 get.GetRepeatedMessage(message, field, i)));
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      items.push_back(Write(*row.item, get.GetRepeatedMessage(message, field, i)));
    } else {
      items.push_back(Load(*row.item->field, field, message, i));
    }
  }
  return items;
}

// Null if the manifest leaves it out.
Json WriteRow(const SchemaNode& row, const JobPlace& place, const Message& message) {
  const Reflection& get = *message.GetReflection();
  const Field& field = *row.field;
  const FieldDescriptor* const from = place.fields[0];
  if (field.type == FieldType::kObject) {
    return IsAlways(field) || get.HasField(message, from)
               ? Write(row, get.GetMessage(message, from), &message)
               : Json();
  }
  if (field.type == FieldType::kList || field.type == FieldType::kMap) {
    return WriteItems(row, place, message);
  }
  if (from->has_presence() && !get.HasField(message, from)) return nullptr;
  Json value = Load(field, from, message);
  if (from->has_presence() || field.required) return value;
  if (value.is_string() && value.get_ref<const std::string&>().empty()) return nullptr;
  // Zero is a value where the manifest has a default, unless it forbids zero.
  const bool meant =
      !field.default_json.empty() || (!field.default_cases.empty() && !field.exclusive_minimum);
  return value == 0 && !meant ? Json() : value;
}

Json Write(const SchemaNode& schema, const Message& message, const Message* outer) {
  Json object = Json::object();
  std::vector<const SchemaNode*> dependent;  // rows that other fields forbid
  for (const SchemaNode* row : schema.children) {
    const JobPlace place = PlaceOf(*row, message.GetDescriptor(), TypeOf(outer));
    if (place.nowhere()) continue;
    Json value = place.here ? Write(*row, message, outer)
                            : WriteRow(*row, place, place.outer ? *outer : message);
    if (!value.is_null()) object[row->name] = std::move(value);
    const bool optional_here = place.here && !IsAlways(*row->field);
    if (optional_here || !row->field->default_cases.empty()) dependent.push_back(row);
  }
  // Drops fields that the job always has, but that a manifest may have only with certain other
  // values.
  for (const SchemaNode* row : dependent) {
    if (object.contains(row->name) && !IsAllowed(*row, object)) object.erase(row->name);
  }
  return object;
}

}  // namespace

TrainingJob FromJson(Json object) {
  if (!object.is_object()) object = Json::object();
  TrainingJob job;
  if (object.contains("spec") && object["spec"].is_object()) {
    Json part = ClusterPart(*FindSchema("spec"), object["spec"]);
    if (part.is_object()) job.cluster = std::move(part);
  }
  CompleteJob(&object);
  const Json& metadata = object["metadata"];
  const Json& spec = object["spec"];

  Read(*FindSchema("spec"), spec, &job.spec);
  ApplyComputedDefaults(spec, &job.spec);
  job.spec.set_name(metadata.value("name", ""));
  job.spec.set_namespace_(metadata.value("namespace", ""));
  if (metadata.contains("uid") && metadata["uid"].is_string())
    job.spec.set_uid(metadata["uid"].get<std::string>());
  job.labels = ReadMap(metadata, "labels");
  job.annotations = ReadMap(metadata, "annotations");
  if (spec.contains("image") && spec["image"].is_string())
    job.image = spec["image"].get<std::string>();
  job.suspend = spec["suspend"].get<bool>();
  if (spec.contains("activeDeadlineSeconds")) {
    job.active_deadline_seconds = static_cast<int64_t>(ToCount(spec["activeDeadlineSeconds"]));
  }
  return job;
}

Json ToJson(const TrainingJob& job) {
  Json object = {{"apiVersion", kApiVersion},
                 {"kind", kKind},
                 {"metadata", {{"name", job.spec.name()}}},
                 {"spec", Write(*FindSchema("spec"), job.spec)}};
  Json& metadata = object["metadata"];
  if (!job.spec.namespace_().empty()) metadata["namespace"] = job.spec.namespace_();
  if (!job.spec.uid().empty()) metadata["uid"] = job.spec.uid();
  if (!job.labels.empty()) metadata["labels"] = job.labels;
  if (!job.annotations.empty()) metadata["annotations"] = job.annotations;
  Json& spec = object["spec"];
  spec["suspend"] = job.suspend;
  if (!job.image.empty()) spec["image"] = job.image;
  if (job.active_deadline_seconds.has_value()) {
    spec["activeDeadlineSeconds"] = *job.active_deadline_seconds;
  }
  if (job.spec.training().staleness().rule() == v1::TrainingSpec::Staleness::NONE) {
    spec["training"].erase("stalenessRule");
  }
  // This is the default of a job with fewer shards than copies; it takes effect when shards are
  // added.
  if (job.spec.parameter_server().copies() > job.spec.parameter_server().replicas()) {
    spec["parameterServer"].erase("copies");
  }
  spec.merge_patch(job.cluster);
  Json& storage = spec["checkpoint"]["storage"];
  storage["type"] = storage.contains("claimName") ? "PersistentVolumeClaim" : "Local";
  return object;
}

std::vector<std::string> ClusterFields(const TrainingJob& job) {
  std::vector<std::string> paths;
  if (job.cluster.is_object()) AppendSet(*FindSchema("spec"), job.cluster, &paths);
  return paths;
}

}  // namespace sluice::api
