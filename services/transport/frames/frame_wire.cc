#include "services/transport/frames/frame_wire.h"

#include <google/protobuf/io/coded_stream.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/common/status_macros.h"

namespace sluice {
namespace {

using ::google::protobuf::io::CodedOutputStream;

constexpr int kHeaderField = 1;
constexpr int kPayloadField = 2;
constexpr int kBatchField = 3;
constexpr int kSharedPayloadField = 4;
// Limit of an encoded SharedPayload, with room for fields of a later version.
constexpr size_t kMaxPlaceBytes = 128;

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

  // Skips an unknown field, which a later version has added.
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
        ASSIGN_OR_RETURN(bytes, ReadVarint());
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

// Reads a field's content; its tag has been read.
absl::StatusOr<absl::Cord> ReadBounded(Reader* reader, absl::string_view name, size_t limit,
                                       bool* seen) {
  if (*seen) return reader->Error(absl::StrCat("a second ", name));
  *seen = true;

  ASSIGN_OR_RETURN(const uint64_t length, reader->ReadVarint());
  if (length > limit) {
    return reader->Error(
        absl::StrCat("a ", name, " of ", length, " bytes, over the limit of ", limit, ","));
  }
  return reader->ReadBytes(length);
}

// Decodes one message, field by field.
class Decoder {
 public:
  Decoder(const FrameLimits& limits, SharedPayloads* shared) : limits_(limits), shared_(shared) {}

  absl::Status Decode(const absl::Cord& wire) {
    Reader reader(wire);
    while (reader.remaining() > 0) {
      RETURN_IF_ERROR(ReadField(&reader));
    }

    if (!batch_.empty()) {
      if (!header_seen_ && !payload_seen_ && !place_seen_) return absl::OkStatus();
      return reader.Error("a batch beside a header or payload");
    }

    if (place_seen_) {
      if (payload_seen_) return reader.Error("a second payload");
      RETURN_IF_ERROR(TakeShared());
    }
    return CheckPayloadSize(frame_.header, frame_.payload.size());
  }

  // After Decode: the frames of a batch, not decoded yet; empty if there is none.
  const std::vector<absl::Cord>& batch() const { return batch_; }
  DecodedFrame TakeFrame() { return std::move(frame_); }

 private:
  absl::Status ReadField(Reader* reader) {
    ASSIGN_OR_RETURN(const uint64_t tag, reader->ReadVarint());
    if (tag > std::numeric_limits<uint32_t>::max() || tag >> 3 == 0) {
      return reader->Error(absl::StrCat("the impossible tag ", tag));
    }

    switch (tag) {
      case Tag(kHeaderField, kLengthDelimited):
        return ReadHeader(reader);
      case Tag(kPayloadField, kLengthDelimited):
        return ReadPayload(reader);
      case Tag(kBatchField, kLengthDelimited):
        return ReadBatched(reader);
      case Tag(kSharedPayloadField, kLengthDelimited):
        return ReadPlace(reader);
    }

    if (tag >> 3 <= kSharedPayloadField) {
      return reader->Error(absl::StrCat("field ", tag >> 3, " of wire type ", tag & 7));
    }
    return reader->Skip(tag & 7);
  }

  absl::Status ReadHeader(Reader* reader) {
    ASSIGN_OR_RETURN(absl::Cord bytes,
                     ReadBounded(reader, "header", limits_.max_header_bytes, &header_seen_));
    const absl::string_view flat = bytes.Flatten();
    if (!frame_.header.ParseFromArray(flat.data(), static_cast<int>(flat.size()))) {
      return reader->Error("an invalid header, ending");
    }
    return absl::OkStatus();
  }

  absl::Status ReadPayload(Reader* reader) {
    ASSIGN_OR_RETURN(frame_.payload,
                     ReadBounded(reader, "payload", limits_.max_payload_bytes, &payload_seen_));
    return absl::OkStatus();
  }

  absl::Status ReadPlace(Reader* reader) {
    ASSIGN_OR_RETURN(absl::Cord bytes,
                     ReadBounded(reader, "place of a payload", kMaxPlaceBytes, &place_seen_));

    const absl::string_view flat = bytes.Flatten();
    if (!place_.ParseFromArray(flat.data(), static_cast<int>(flat.size()))) {
      return reader->Error("an invalid place of a payload, ending");
    }

    if (place_.bytes() > limits_.max_payload_bytes) {
      return reader->Error(absl::StrCat("a payload of ", place_.bytes(),
                                        " bytes, over the limit of ", limits_.max_payload_bytes,
                                        ","));
    }
    return absl::OkStatus();
  }

  absl::Status TakeShared() {
    if (shared_ == nullptr) {
      return absl::InvalidArgumentError(
          "malformed frame: a payload in shared memory, but none was agreed on");
    }

    ASSIGN_OR_RETURN(frame_.payload, shared_->Take(place_),
                     absl::InvalidArgumentError(absl::StrCat("malformed frame: ", _.message())));
    const auto* blocks = BlocksOf(frame_.header);
    const bool numbers_only =
        blocks != nullptr &&
        std::all_of(blocks->begin(), blocks->end(),
                    [](const v1::BlockHeader& block) { return block.codec() == v1::CODEC_RAW; });
    if (!numbers_only) frame_.payload = absl::Cord(std::string(frame_.payload));
    return absl::OkStatus();
  }

  absl::Status ReadBatched(Reader* reader) {
    if (batch_.size() == limits_.max_batch_frames) {
      return reader->Error(absl::StrCat("more than ", limits_.max_batch_frames, " frames"));
    }
    ASSIGN_OR_RETURN(const uint64_t length, reader->ReadVarint());
    ASSIGN_OR_RETURN(absl::Cord frame, reader->ReadBytes(length));
    batch_.push_back(std::move(frame));
    return absl::OkStatus();
  }

  const FrameLimits& limits_;
  SharedPayloads* const shared_;
  bool header_seen_ = false;
  bool payload_seen_ = false;
  bool place_seen_ = false;
  v1::SharedPayload place_;
  DecodedFrame frame_;
  std::vector<absl::Cord> batch_;
};

}  // namespace

size_t FramePrefixBytes(const v1::Header& header, size_t payload_bytes) {
  const size_t header_bytes = header.ByteSizeLong();
  size_t size = 1 + CodedOutputStream::VarintSize64(header_bytes) + header_bytes;
  if (payload_bytes > 0) size += 1 + CodedOutputStream::VarintSize64(payload_bytes);
  return size;
}

void WriteFramePrefix(const v1::Header& header, size_t payload_bytes, uint8_t* to) {
  to = CodedOutputStream::WriteTagToArray(Tag(kHeaderField, kLengthDelimited), to);
  to = CodedOutputStream::WriteVarint32ToArray(static_cast<uint32_t>(header.GetCachedSize()), to);
  to = header.SerializeWithCachedSizesToArray(to);
  if (payload_bytes == 0) return;
  to = CodedOutputStream::WriteTagToArray(Tag(kPayloadField, kLengthDelimited), to);
  CodedOutputStream::WriteVarint64ToArray(payload_bytes, to);
}

std::string EncodeFramePrefix(const v1::Header& header, size_t payload_bytes) {
  std::string prefix(FramePrefixBytes(header, payload_bytes), '\0');
  WriteFramePrefix(header, payload_bytes, reinterpret_cast<uint8_t*>(prefix.data()));
  return prefix;
}

std::string EncodeSharedFrame(const v1::Header& header, const v1::SharedPayload& place) {
  const size_t prefix_bytes = FramePrefixBytes(header, 0);
  const size_t place_bytes = place.ByteSizeLong();
  std::string frame(prefix_bytes + 1 + CodedOutputStream::VarintSize64(place_bytes) + place_bytes,
                    '\0');
  auto* to = reinterpret_cast<uint8_t*>(frame.data());

  WriteFramePrefix(header, 0, to);
  to = CodedOutputStream::WriteTagToArray(Tag(kSharedPayloadField, kLengthDelimited),
                                          to + prefix_bytes);
  to = CodedOutputStream::WriteVarint64ToArray(place_bytes, to);
  place.SerializeWithCachedSizesToArray(to);
  return frame;
}

std::string EncodeBatchPrefix(size_t frame_bytes) {
  std::string prefix(1 + CodedOutputStream::VarintSize64(frame_bytes), '\0');
  auto* out = reinterpret_cast<uint8_t*>(prefix.data());
  out = CodedOutputStream::WriteTagToArray(Tag(kBatchField, kLengthDelimited), out);
  CodedOutputStream::WriteVarint64ToArray(frame_bytes, out);
  return prefix;
}

absl::Cord EncodeFrameToCord(const v1::Header& header, const absl::Cord& payload) {
  absl::Cord wire(EncodeFramePrefix(header, payload.size()));
  wire.Append(payload);
  return wire;
}

absl::StatusOr<DecodedFrame> DecodeFrame(const absl::Cord& wire, const FrameLimits& limits,
                                         SharedPayloads* shared) {
  Decoder decoder(limits, shared);
  RETURN_IF_ERROR(decoder.Decode(wire));
  if (!decoder.batch().empty()) {
    return absl::InvalidArgumentError("malformed frame: a batch in place of one frame");
  }
  return decoder.TakeFrame();
}

absl::StatusOr<std::vector<DecodedFrame>> DecodeFrames(const absl::Cord& wire,
                                                       const FrameLimits& limits,
                                                       SharedPayloads* shared) {
  Decoder decoder(limits, shared);
  RETURN_IF_ERROR(decoder.Decode(wire));

  std::vector<DecodedFrame> frames;
  if (decoder.batch().empty()) {
    frames.push_back(decoder.TakeFrame());
    return frames;
  }

  frames.reserve(decoder.batch().size());
  for (const absl::Cord& encoded : decoder.batch()) {
    ASSIGN_OR_RETURN(DecodedFrame frame, DecodeFrame(encoded, limits, shared),
                     absl::InvalidArgumentError(
                         absl::StrCat("frame ", frames.size(), " of a batch: ", _.message())));
    frames.push_back(std::move(frame));
  }
  return frames;
}

const google::protobuf::RepeatedPtrField<v1::BlockHeader>* BlocksOf(const v1::Header& header) {
  switch (header.body_case()) {
    case v1::Header::kPush:
      return &header.push().blocks();
    case v1::Header::kInitPush:
      return &header.init_push().blocks();
    case v1::Header::kData:
      return &header.data().blocks();
    case v1::Header::kCopyEntry:
      return &header.copy_entry().gradients().blocks();
    default:
      return nullptr;
  }
}

absl::Status CheckPayloadSize(const v1::Header& header, uint64_t payload_bytes) {
  if (header.has_copy_state()) return absl::OkStatus();  // a part of a file

  // Numbers, which the receiver counts.
  if (header.has_step_sum() || header.has_step_sum_answer()) return absl::OkStatus();

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

  for (const v1::RowSelection& rows : header.pull().rows()) {
    constexpr uint64_t kRowBytes = sizeof(uint64_t);
    if (rows.count() > rest / kRowBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("malformed frame: ", rows.count(), " rows of tensor ", rows.tensor(),
                       " are requested, but the payload has ", rest, " bytes for their numbers"));
    }
    rest -= rows.count() * kRowBytes;
  }

  if (rest == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("malformed frame: a payload of ", payload_bytes,
                                                 " bytes, of which ", payload_bytes - rest,
                                                 " belong to the header's ", count, " blocks"));
}

}  // namespace sluice
