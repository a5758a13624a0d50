#include "tests/simulation/random_message.h"

#include <limits>
#include <string>

#include "absl/strings/str_cat.h"

namespace sluice::simulation {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr int kMaxDepth = 4;

}  // namespace

void RandomMessage::Learn(const Message& message) {
  std::vector<const FieldDescriptor*> fields;
  const Reflection& reflection = *message.GetReflection();
  reflection.ListFields(message, &fields);
  const auto learn = [this](uint64_t number) {
    if (numbers_.size() < kMaxNumbers) numbers_.push_back(0);
    numbers_[next_++ % kMaxNumbers] = number;
  };

  for (const FieldDescriptor* field : fields) {
    const bool repeated = field->is_repeated();
    const int size = repeated ? reflection.FieldSize(message, field) : 1;
    for (int i = 0; i < size && i < 8; ++i) {
      switch (field->cpp_type()) {
        case FieldDescriptor::CPPTYPE_UINT32:
          learn(repeated ? reflection.GetRepeatedUInt32(message, field, i)
                         : reflection.GetUInt32(message, field));
          break;
        case FieldDescriptor::CPPTYPE_UINT64:
          learn(repeated ? reflection.GetRepeatedUInt64(message, field, i)
                         : reflection.GetUInt64(message, field));
          break;
        case FieldDescriptor::CPPTYPE_MESSAGE:
          Learn(repeated ? reflection.GetRepeatedMessage(message, field, i)
                         : reflection.GetMessage(message, field));
          break;
        default:
          break;
      }
    }
  }
}

uint64_t RandomMessage::Number() {
  const uint64_t edges[] = {0,
                            1,
                            2,
                            uint64_t{1} << 31,
                            (uint64_t{1} << 32) - 1,
                            uint64_t{1} << 63,
                            std::numeric_limits<uint64_t>::max() - 1,
                            std::numeric_limits<uint64_t>::max()};
  const uint64_t kind = random_.Below(8);
  if (kind == 0) return random_.Next();
  if (kind == 1) return edges[random_.Below(sizeof(edges) / sizeof(edges[0]))];
  if (kind <= 3 || numbers_.empty()) return random_.Below(40);
  const uint64_t seen = numbers_[random_.Below(numbers_.size())];
  return kind <= 5 ? seen : seen + random_.Below(5) - 2;
}

double RandomMessage::Real() {
  const double reals[] = {0,
                          -1,
                          1e-31,  // around the limits of weights
                          1e30,
                          1e300,
                          -1e300,
                          std::numeric_limits<double>::infinity(),
                          std::numeric_limits<double>::quiet_NaN()};
  if (random_.OneIn(2)) return reals[random_.Below(sizeof(reals) / sizeof(reals[0]))];
  return static_cast<double>(random_.Below(1000)) / 10;
}

void RandomMessage::Set(Message* message, const FieldDescriptor* field, int depth) {
  const Reflection& reflection = *message->GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_UINT32:
      return reflection.SetUInt32(message, field, static_cast<uint32_t>(Number()));
    case FieldDescriptor::CPPTYPE_UINT64:
      return reflection.SetUInt64(message, field, Number());
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.SetBool(message, field, random_.OneIn(2));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return reflection.SetDouble(message, field, Real());
    case FieldDescriptor::CPPTYPE_FLOAT:
      return reflection.SetFloat(message, field, static_cast<float>(Real()));
    case FieldDescriptor::CPPTYPE_ENUM:
      return reflection.SetEnumValue(message, field, static_cast<int>(random_.Below(8)));
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection.SetString(message, field, absl::StrCat("ps-", random_.Below(5)));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return Invent(reflection.MutableMessage(message, field), depth + 1);
    default:
      return;
  }
}

void RandomMessage::Add(Message* message, const FieldDescriptor* field, int depth) {
  const Reflection& reflection = *message->GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_UINT32:
      return reflection.AddUInt32(message, field, static_cast<uint32_t>(Number()));
    case FieldDescriptor::CPPTYPE_UINT64:
      return reflection.AddUInt64(message, field, Number());
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return Invent(reflection.AddMessage(message, field), depth + 1);
    default:
      return;
  }
}

void RandomMessage::Invent(Message* message, int depth) {
  if (depth > kMaxDepth) return;
  const google::protobuf::Descriptor& type = *message->GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor* const field = type.field(i);
    if (field->real_containing_oneof() != nullptr) continue;
    if (!field->is_repeated()) {
      if (!random_.OneIn(6)) Set(message, field, depth);
      continue;
    }
    // Sometimes very many elements.
    const uint64_t count = random_.OneIn(40) && depth < 2 ? 400 : random_.Below(4);
    for (uint64_t j = 0; j < count; ++j) Add(message, field, depth);
  }
  for (int i = 0; i < type.real_oneof_decl_count(); ++i) {
    const google::protobuf::OneofDescriptor& oneof = *type.oneof_decl(i);
    Set(message, oneof.field(static_cast<int>(random_.Below(oneof.field_count()))), depth);
  }
}

void RandomMessage::Change(Message* message) {
  std::vector<const FieldDescriptor*> fields;
  const Reflection& reflection = *message->GetReflection();
  reflection.ListFields(*message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->real_containing_oneof() != nullptr) {
      Change(reflection.MutableMessage(message, field));
      continue;
    }
    if (field->is_repeated()) {
      if (random_.OneIn(6)) Add(message, field, 0);
      if (random_.OneIn(10)) reflection.RemoveLast(message, field);
      continue;
    }
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && random_.OneIn(3)) {
      Change(reflection.MutableMessage(message, field));
    } else if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE && random_.OneIn(4)) {
      Set(message, field, 0);
    }
  }

  // Sometimes sets one field that was not set.
  const google::protobuf::Descriptor& type = *message->GetDescriptor();
  if (type.field_count() == 0 || !random_.OneIn(8)) return;
  const FieldDescriptor* const field =
      type.field(static_cast<int>(random_.Below(type.field_count())));
  if (field->real_containing_oneof() != nullptr) return;
  if (field->is_repeated()) {
    Add(message, field, 0);
  } else {
    Set(message, field, 0);
  }
}

}  // namespace sluice::simulation
