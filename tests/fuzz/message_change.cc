#include "tests/fuzz/message_change.h"

#include <google/protobuf/descriptor.h>

#include <limits>
#include <string>

namespace sluice::fuzz {
namespace {

using ::google::protobuf::Descriptor;
using ::google::protobuf::FieldDescriptor;
using ::google::protobuf::Message;
using ::google::protobuf::OneofDescriptor;
using ::google::protobuf::Reflection;

// The most elements of a repeated field, so that an input's cost is in proportion to its size.
constexpr int kMaxRepeated = 64;

uint64_t AnyNumber(ByteSource* bytes) {
  constexpr uint64_t kBorders[] = {
      std::numeric_limits<uint64_t>::max(),
      std::numeric_limits<uint64_t>::max() - 1,
      uint64_t{1} << 63,
      static_cast<uint64_t>(std::numeric_limits<int64_t>::max()),
      std::numeric_limits<uint32_t>::max(),
      uint64_t{1} << 32,
      uint64_t{1} << 31,
      uint64_t{1} << 40,
      uint64_t{1} << 20,
      4096,
      1000,
      999,
      100,
      5000,
      5001,
  };
  const uint8_t choice = bytes->Byte();
  if (choice < 0xc0) return choice % 12;
  if (choice < 0xf0) return kBorders[choice % (sizeof kBorders / sizeof *kBorders)];
  return bytes->Number(8);
}

double AnyReal(ByteSource* bytes) {
  constexpr double kReals[] = {0,
                               1,
                               -1,
                               0.5,
                               1e300,
                               -1e300,
                               1e-300,
                               std::numeric_limits<double>::quiet_NaN(),
                               std::numeric_limits<double>::infinity(),
                               -std::numeric_limits<double>::infinity(),
                               4,
                               100};
  return kReals[bytes->Below(sizeof kReals / sizeof *kReals)];
}

std::string AnyText(ByteSource* bytes) {
  switch (bytes->Below(6)) {
    case 0:
      return "";
    case 1:
      return "w";
    case 2:
      return "default/test/1";
    case 3:
      return "127.0.0.1:1";
    case 4:
      return std::string(bytes->Number(2), 'a');
    default:
      return std::string(bytes->Take(bytes->Below(16)));
  }
}

void SetScalar(ByteSource* bytes, const FieldDescriptor* field, Message* message) {
  const Reflection* reflection = message->GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return reflection->SetInt32(message, field, static_cast<int32_t>(AnyNumber(bytes)));
    case FieldDescriptor::CPPTYPE_INT64:
      return reflection->SetInt64(message, field, static_cast<int64_t>(AnyNumber(bytes)));
    case FieldDescriptor::CPPTYPE_UINT32:
      return reflection->SetUInt32(message, field, static_cast<uint32_t>(AnyNumber(bytes)));
    case FieldDescriptor::CPPTYPE_UINT64:
      return reflection->SetUInt64(message, field, AnyNumber(bytes));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return reflection->SetDouble(message, field, AnyReal(bytes));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return reflection->SetFloat(message, field, static_cast<float>(AnyReal(bytes)));
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection->SetBool(message, field, bytes->Byte() % 2 == 1);
    case FieldDescriptor::CPPTYPE_ENUM:
      // Enums are open in proto3: unknown values are sent, too.
      return reflection->SetEnumValue(message, field, static_cast<int>(bytes->Below(10)));
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection->SetString(message, field, AnyText(bytes));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return ChangeOneField(bytes, reflection->MutableMessage(message, field));
  }
}

void AddScalar(ByteSource* bytes, const FieldDescriptor* field, Message* message) {
  const Reflection* reflection = message->GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return reflection->AddInt32(message, field, static_cast<int32_t>(AnyNumber(bytes)));
    case FieldDescriptor::CPPTYPE_INT64:
      return reflection->AddInt64(message, field, static_cast<int64_t>(AnyNumber(bytes)));
    case FieldDescriptor::CPPTYPE_UINT32:
      return reflection->AddUInt32(message, field, static_cast<uint32_t>(AnyNumber(bytes)));
    case FieldDescriptor::CPPTYPE_UINT64:
      return reflection->AddUInt64(message, field, AnyNumber(bytes));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return reflection->AddDouble(message, field, AnyReal(bytes));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return reflection->AddFloat(message, field, static_cast<float>(AnyReal(bytes)));
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection->AddBool(message, field, bytes->Byte() % 2 == 1);
    case FieldDescriptor::CPPTYPE_ENUM:
      return reflection->AddEnumValue(message, field, static_cast<int>(bytes->Below(10)));
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection->AddString(message, field, AnyText(bytes));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return ChangeOneField(bytes, reflection->AddMessage(message, field));
  }
}

void ChangeRepeated(ByteSource* bytes, const FieldDescriptor* field, Message* message) {
  const Reflection* reflection = message->GetReflection();
  const int size = reflection->FieldSize(*message, field);
  switch (bytes->Below(4)) {
    case 0:
      return reflection->ClearField(message, field);
    case 1:
      if (size > 0) return reflection->RemoveLast(message, field);
      break;
    case 2:
      if (size > 0 && field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
        const int at = static_cast<int>(bytes->Below(256)) % size;
        // Repeats an element, or changes one.
        if (bytes->Byte() % 2 == 1 && size < kMaxRepeated) {
          const Message& original = reflection->GetRepeatedMessage(*message, field, at);
          Message* const copy = original.New();
          copy->CopyFrom(original);
          return reflection->AddAllocatedMessage(message, field, copy);
        }
        return ChangeOneField(bytes, reflection->MutableRepeatedMessage(message, field, at));
      }
      break;
    default:
      break;
  }
  if (size < kMaxRepeated) AddScalar(bytes, field, message);
}

}  // namespace

void ChangeOneField(ByteSource* bytes, Message* message) {
  const Descriptor* descriptor = message->GetDescriptor();
  if (descriptor->field_count() == 0) return;
  const FieldDescriptor* field =
      descriptor->field(static_cast<int>(bytes->Below(256)) % descriptor->field_count());
  if (field->is_repeated()) return ChangeRepeated(bytes, field, message);
  // Descends more often than it removes.
  if (bytes->Byte() % 8 == 7) return message->GetReflection()->ClearField(message, field);
  SetScalar(bytes, field, message);
}

void ChangeFields(ByteSource* bytes, Message* message) {
  const uint8_t choice = bytes->Byte();
  const int changes = choice < 96 ? 0 : choice < 192 ? 1 : choice < 232 ? 2 : 3;
  for (int i = 0; i < changes; ++i) ChangeOneField(bytes, message);
}

void ChooseBody(ByteSource* bytes, Message* message) {
  const OneofDescriptor* body = message->GetDescriptor()->FindOneofByName("body");
  if (body == nullptr) return;
  const FieldDescriptor* field =
      body->field(static_cast<int>(bytes->Below(256)) % body->field_count());
  message->GetReflection()->MutableMessage(message, field);
}

}  // namespace sluice::fuzz
