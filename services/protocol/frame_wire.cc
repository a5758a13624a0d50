#include "services/protocol/frame_wire.h"

#include <google/protobuf/io/coded_stream.h>

#include <limits>

#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

using ::google::protobuf::io::CodedOutputStream;

constexpr int kHeaderField = 1;
constexpr int kPayloadField = 2;

enum WireType { kVarint = 0, kFixed64 = 1, kLengthDelimited = 2, kFixed32 = 5 };

constexpr uint32_t Tag(int field, WireType type) {
  return static_cast<uint32_t>(field) << 3 | type;
}

// Reads a message's fields from a Cord without flattening it.
class Reader {
 public:
  explicit Reader(const absl::Cord& wire) : next_(wire.char_begin()), size_(wire.size()) {}

  size_t position() const { return position_; }
  size_t remaining() const { return size_ - position_; }

  absl::Status Error(absl::string_view what) const {
    return absl::InvalidArgumentError(
        absl::StrCat("malformed frame: ", what, " at byte ", position_));
  }

  absl::StatusOr<uint64_t> ReadVarint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (remaining() == 0) return Error("it ends within a number");
      const auto byte = static_cast<uint8_t>(*next_);
      ++next_;
      ++position_;
      const uint64_t bits = byte & 0x7f;
      if (shift == 63 && bits > 1) return Error("a number has more than 64 bits");
      value |= bits << shift;
      if ((byte & 0x80) == 0) return value;
    }
    return Error("a number has more than 10 bytes");
  }

  absl::StatusOr<absl::Cord> ReadBytes(uint64_t count) {
    if (count > remaining()) {
      return Error(
          absl::StrCat("a field of ", count, " bytes, of which ", remaining(), " are there,"));
    }
    position_ += count;
    return absl::Cord::AdvanceAndRead(&next_, count);
  }

  // The field is not one of ours: a later version's.
  absl::Status Skip(uint32_t wire_type) {
    uint64_t bytes = 0;
    switch (wire_type) {
      case kVarint:
        return ReadVarint().status();
      case kFixed64:
        bytes = 8;
        break;
      case kFixed32:
        bytes = 4;
        break;
      case kLengthDelimited: {
        const absl::StatusOr<uint64_t> length = ReadVarint();
        if (!length.ok()) return length.status();
        bytes = *length;
        break;
      }
      default:
        return Error(absl::StrCat("a field of wire type ", wire_type));
    }
    return ReadBytes(bytes).status();
  }

 private:
  absl::Cord::CharIterator next_;
  const size_t size_;
  size_t position_ = 0;
};

// The field's content, whose tag has been read.
absl::StatusOr<absl::Cord> ReadBounded(Reader* reader, absl::string_view name, size_t limit,
                                       bool* seen) {
  if (*seen) return reader->Error(absl::StrCat("a second ", name));
  *seen = true;
  const absl::StatusOr<uint64_t> length = reader->ReadVarint();
  if (!length.ok()) return length.status();
  if (*length > limit) {
    return reader->Error(
        absl::StrCat("a ", name, " of ", *length, " bytes, over the limit of ", limit, ","));
  }
  return reader->ReadBytes(*length);
}

absl::Status ReadField(Reader* reader, const FrameLimits& limits, bool* header_seen,
                       bool* payload_seen, DecodedFrame* frame) {
  const absl::StatusOr<uint64_t> tag = reader->ReadVarint();
  if (!tag.ok()) return tag.status();
  if (*tag > std::numeric_limits<uint32_t>::max() || *tag >> 3 == 0) {
    return reader->Error(absl::StrCat("the impossible tag ", *tag));
  }
  if (*tag == Tag(kHeaderField, kLengthDelimited)) {
    absl::StatusOr<absl::Cord> bytes =
        ReadBounded(reader, "header", limits.max_header_bytes, header_seen);
    if (!bytes.ok()) return bytes.status();
    const absl::string_view flat = bytes->Flatten();
    if (!frame->header.ParseFromArray(flat.data(), static_cast<int>(flat.size()))) {
      return reader->Error("a header that is not one, ending");
    }
    return absl::OkStatus();
  }
  if (*tag == Tag(kPayloadField, kLengthDelimited)) {
    absl::StatusOr<absl::Cord> bytes =
        ReadBounded(reader, "payload", limits.max_payload_bytes, payload_seen);
    if (!bytes.ok()) return bytes.status();
    frame->payload = *std::move(bytes);
    return absl::OkStatus();
  }
  if (*tag >> 3 == kHeaderField || *tag >> 3 == kPayloadField) {
    return reader->Error(absl::StrCat("field ", *tag >> 3, " of wire type ", *tag & 7));
  }
  return reader->Skip(*tag & 7);
}

}  // namespace

std::string EncodeFramePrefix(const v1::Header& header, size_t payload_bytes) {
  const size_t header_bytes = header.ByteSizeLong();
  size_t size = 1 + CodedOutputStream::VarintSize64(header_bytes) + header_bytes;
  if (payload_bytes > 0) size += 1 + CodedOutputStream::VarintSize64(payload_bytes);

  std::string prefix(size, '\0');
  auto* out = reinterpret_cast<uint8_t*>(prefix.data());
  out = CodedOutputStream::WriteTagToArray(Tag(kHeaderField, kLengthDelimited), out);
  out = CodedOutputStream::WriteVarint64ToArray(header_bytes, out);
  out = header.SerializeWithCachedSizesToArray(out);
  if (payload_bytes > 0) {
    out = CodedOutputStream::WriteTagToArray(Tag(kPayloadField, kLengthDelimited), out);
    CodedOutputStream::WriteVarint64ToArray(payload_bytes, out);
  }
  return prefix;
}

absl::Cord EncodeFrameToCord(const v1::Header& header, const absl::Cord& payload) {
  absl::Cord wire(EncodeFramePrefix(header, payload.size()));
  wire.Append(payload);
  return wire;
}

absl::StatusOr<DecodedFrame> DecodeFrame(const absl::Cord& wire, const FrameLimits& limits) {
  DecodedFrame frame;
  Reader reader(wire);
  bool header_seen = false;
  bool payload_seen = false;
  while (reader.remaining() > 0) {
    absl::Status read = ReadField(&reader, limits, &header_seen, &payload_seen, &frame);
    if (!read.ok()) return read;
  }
  absl::Status size = CheckPayloadSize(frame.header, frame.payload.size());
  if (!size.ok()) return size;
  return frame;
}

const google::protobuf::RepeatedPtrField<v1::BlockHeader>* BlocksOf(const v1::Header& header) {
  switch (header.body_case()) {
    case v1::Header::kPush:
      return &header.push().blocks();
    case v1::Header::kBirthPush:
      return &header.birth_push().blocks();
    case v1::Header::kData:
      return &header.data().blocks();
    default:
      return nullptr;
  }
}

absl::Status CheckPayloadSize(const v1::Header& header, uint64_t payload_bytes) {
  uint64_t rest = payload_bytes;
  int count = 0;
  if (const auto* blocks = BlocksOf(header)) {
    for (const v1::BlockHeader& block : *blocks) {
      if (block.payload_bytes() > rest) {
        return absl::InvalidArgumentError(absl::StrCat(
            "malformed frame: block ", block.block(), " (number ", count, " of the frame) has ",
            block.payload_bytes(), " bytes, of which ", rest, " are in the payload"));
      }
      rest -= block.payload_bytes();
      ++count;
    }
  }
  if (rest == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("malformed frame: a payload of ", payload_bytes,
                                                 " bytes, of which ", payload_bytes - rest,
                                                 " belong to the header's ", count, " blocks"));
}

}  // namespace sluice
