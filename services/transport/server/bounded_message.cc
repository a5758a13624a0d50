#include "services/transport/server/bounded_message.h"

#include <google/protobuf/io/coded_stream.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <cstdint>

#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

using ::google::protobuf::Descriptor;
using ::google::protobuf::FieldDescriptor;
using ::google::protobuf::io::CodedInputStream;

// An element of a list, or an unknown field; and what a nested message or group takes beyond that.
constexpr size_t kFieldBytes = 64;
constexpr size_t kMessageBytes = 96;
constexpr size_t kNumberBytes = 8;
// The depth limit of protobuf's parser.
constexpr int kMaxDepth = 100;

class Meter {
 public:
  Meter(CodedInputStream* wire, size_t max_bytes) : wire_(*wire), left_(max_bytes) {}

  // False: it does not fit.
  bool Fits(const Descriptor& type, int depth) {
    while (const uint32_t tag = wire_.ReadTag()) {
      if (!Take(kFieldBytes)) return false;
      uint64_t number = 0;
      bool whole = true;
      switch (tag & 7) {
        case 0:
          whole = wire_.ReadVarint64(&number);
          break;
        case 1:
          whole = wire_.Skip(8);
          break;
        case 2:
          if (!FieldFits(type.FindFieldByNumber(static_cast<int>(tag >> 3)), depth, &whole)) {
            return false;
          }
          break;
        case 5:
          whole = wire_.Skip(4);
          break;
        default:  // the begin or end of a group: Protobuf keeps it as an unknown field
          if (!Take(kMessageBytes)) return false;
      }

      if (!whole) return true;
    }
    return true;
  }

 private:
  bool FieldFits(const FieldDescriptor* field, int depth, bool* whole) {
    uint32_t length = 0;
    *whole = wire_.ReadVarint32(&length);
    if (!*whole) return true;

    const bool nested = field != nullptr && field->type() == FieldDescriptor::TYPE_MESSAGE;
    if (!nested) {
      const bool numbers = field != nullptr && field->is_packable();
      if (!Take(numbers ? size_t{length} * kNumberBytes : length)) return false;
      *whole = wire_.Skip(static_cast<int>(length));
      return true;
    }

    if (depth == 0 || !Take(kMessageBytes)) return false;
    const CodedInputStream::Limit before = wire_.PushLimit(static_cast<int>(length));
    const bool fits = Fits(*field->message_type(), depth - 1);
    if (fits) *whole = wire_.Skip(wire_.BytesUntilLimit());
    wire_.PopLimit(before);
    return fits;
  }

  bool Take(size_t bytes) {
    if (bytes > left_) return false;
    left_ -= bytes;
    return true;
  }

  CodedInputStream& wire_;
  size_t left_;
};

}  // namespace

absl::Status CheckParsedSize(const Descriptor& type, const grpc::ByteBuffer& wire,
                             size_t max_bytes) {
  grpc::ByteBuffer shared = wire;  // refers to the same slices
  grpc::ProtoBufferReader reader(&shared);
  CodedInputStream stream(&reader);
  if (Meter(&stream, max_bytes).Fits(type, kMaxDepth)) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("a message of ", wire.Length(),
                                                   " bytes takes more than ", max_bytes,
                                                   " in memory (kMaxParsedBytes)"));
}

}  // namespace sluice
