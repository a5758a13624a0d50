#include "services/transport/frames/frame_wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/escaping.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

v1::Header PushHeader(const std::vector<size_t>& block_bytes) {
  v1::Header header;
  header.mutable_view()->set_attempt(3);
  header.mutable_push()->set_step(7);
  for (size_t i = 0; i < block_bytes.size(); ++i) {
    v1::BlockHeader* block = header.mutable_push()->add_blocks();
    block->set_block(static_cast<uint32_t>(i));
    block->set_payload_bytes(block_bytes[i]);
  }
  return header;
}

std::string RandomBytes(size_t size, std::mt19937* random) {
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>((*random)());
  return bytes;
}

// The same bytes in chunks of random sizes.
absl::Cord Shatter(absl::string_view bytes, size_t max_chunk, std::mt19937* random) {
  absl::Cord cord;
  while (!bytes.empty()) {
    const size_t size = std::min(bytes.size(), 1 + (*random)() % max_chunk);
    auto* chunk = new std::string(bytes.substr(0, size));
    cord.Append(absl::MakeCordFromExternal(*chunk, [chunk] { delete chunk; }));
    bytes.remove_prefix(size);
  }
  return cord;
}

std::string ReasonOf(absl::string_view wire, const FrameLimits& limits = {}) {
  const auto frame = DecodeFrame(absl::Cord(wire), limits);
  EXPECT_EQ(frame.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(frame.status().message());
}

TEST(FrameWireTest, EncodesToKnownBytes) {
  v1::Header header;
  header.mutable_view()->set_attempt(1);
  header.mutable_data()->add_blocks()->set_payload_bytes(3);
  const std::string wire(EncodeFrameToCord(header, absl::Cord("abc")));
  // header = 1: {view = 1: {attempt = 1: 1}, data = 22: {blocks = 3: {payload_bytes = 2: 3}}},
  // payload = 2: "abc"
  EXPECT_EQ(absl::BytesToHexString(wire), "0a0b0a020801b201041a0210031203616263");
}

TEST(FrameWireTest, OmitsEmptyPayload) {
  v1::Header header;
  header.mutable_credit()->set_bytes(1);
  EXPECT_EQ(absl::BytesToHexString(EncodeFramePrefix(header, 0)), "0a05aa01020801");
}

TEST(FrameWireTest, GeneratedCodeReadsItsEncoding) {
  std::mt19937 random(1);
  for (size_t size : {size_t{0}, size_t{1}, size_t{127}, size_t{128}, size_t{100000}}) {
    const v1::Header header = PushHeader({size});
    const std::string payload = RandomBytes(size, &random);
    v1::Frame frame;
    ASSERT_TRUE(frame.ParseFromString(
        std::string(EncodeFrameToCord(header, Shatter(payload, 1000, &random)))));
    EXPECT_EQ(frame.header().SerializeAsString(), header.SerializeAsString());
    EXPECT_EQ(frame.payload(), payload);
  }
}

TEST(FrameWireTest, ReadsEncodingOfGeneratedCodeInAnyChunks) {
  std::mt19937 random(2);
  for (int round = 0; round < 200; ++round) {
    const size_t size = random() % 5000;
    v1::Frame frame;
    *frame.mutable_header() = PushHeader({size / 2, size - size / 2});
    frame.set_payload(RandomBytes(size, &random));
    const auto decoded =
        DecodeFrame(Shatter(frame.SerializeAsString(), round < 20 ? 1 : 700, &random));
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(decoded->header.SerializeAsString(), frame.header().SerializeAsString());
    EXPECT_EQ(decoded->payload, frame.payload());
  }
}

TEST(FrameWireTest, DoesNotCopyPayload) {
  const std::string memory(100000, 'x');
  const absl::Cord payload = absl::MakeCordFromExternal(memory, [] {});
  const absl::Cord wire = EncodeFrameToCord(PushHeader({memory.size()}), payload);
  const auto frame = DecodeFrame(wire);
  ASSERT_TRUE(frame.ok()) << frame.status();
  ASSERT_TRUE(frame->payload.TryFlat().has_value());
  EXPECT_EQ(static_cast<const void*>(frame->payload.TryFlat()->data()), memory.data());
}

TEST(FrameWireTest, AcceptsFieldsInAnyOrderAndSkipsUnknownFields) {
  v1::Frame frame;
  *frame.mutable_header() = PushHeader({3});
  const std::string whole = frame.SerializeAsString();
  const std::string later_fields =  // varint 7, fixed64 8, bytes 5, fixed32 6
      absl::HexStringToBytes(
          "389601"
          "413132333435363738"
          "2a027a7a"
          "3531323334");
  const auto decoded = DecodeFrame(absl::Cord(later_fields +
                                              "\x12\x03"
                                              "abc" +
                                              later_fields + whole));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->payload, "abc");
  EXPECT_EQ(decoded->header.push().step(), 7u);
}

TEST(FrameWireTest, NoBytesAreAnEmptyFrame) {
  const auto frame = DecodeFrame(absl::Cord());
  ASSERT_TRUE(frame.ok()) << frame.status();
  EXPECT_EQ(frame->header.body_case(), v1::Header::BODY_NOT_SET);
}

TEST(FrameWireTest, RejectsInvalidFrameWithItsPosition) {
  EXPECT_THAT(ReasonOf("\x0a"), HasSubstr("within a number at byte 1"));
  EXPECT_THAT(ReasonOf("\x0a\x05xx"), HasSubstr("5 bytes, of which 2 are there"));
  EXPECT_THAT(ReasonOf("\x0a\x02\xff\xff"), HasSubstr("an invalid header"));
  EXPECT_THAT(ReasonOf("\x12\x02"), HasSubstr("2 bytes, of which 0 are there"));
  EXPECT_THAT(ReasonOf(absl::string_view("\x00", 1)), HasSubstr("impossible tag 0"));
  EXPECT_THAT(ReasonOf("\x08\x01"), HasSubstr("field 1 of wire type 0"));
  EXPECT_THAT(ReasonOf("\x1b"), HasSubstr("wire type 3"));
  EXPECT_THAT(ReasonOf(std::string(11, '\xff')), HasSubstr("a number has more than"));
  EXPECT_THAT(ReasonOf("\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
              HasSubstr("over the limit"));
  EXPECT_THAT(ReasonOf(absl::string_view("\x0a\x00\x0a\x00", 4)), HasSubstr("a second header"));
}

TEST(FrameWireTest, RejectsFieldsOverTheirLimits) {
  v1::Header header;
  header.mutable_refused()->set_reason(std::string(200, 'x'));
  const std::string wire(EncodeFrameToCord(header, {}));
  EXPECT_TRUE(DecodeFrame(absl::Cord(wire)).ok());
  EXPECT_THAT(ReasonOf(wire, {.max_header_bytes = 100, .max_payload_bytes = 100}),
              HasSubstr("over the limit of 100"));
  const std::string with_payload(
      EncodeFrameToCord(PushHeader({101}), absl::Cord(std::string(101, 'x'))));
  EXPECT_THAT(ReasonOf(with_payload, {.max_header_bytes = 100, .max_payload_bytes = 100}),
              HasSubstr("a payload of 101 bytes, over the limit of 100"));
}

TEST(FrameWireTest, RejectsPayloadThatDoesNotFitItsBlocks) {
  const auto refusal = [](const std::vector<size_t>& blocks, size_t bytes) {
    return std::string(CheckPayloadSize(PushHeader(blocks), bytes).message());
  };
  EXPECT_EQ(refusal({1, 2}, 3), "");
  EXPECT_THAT(refusal({1, 3}, 3),
              HasSubstr("block 1 (number 1 of the frame) has 3 bytes, of which 2"));
  EXPECT_THAT(refusal({1, 1}, 3), HasSubstr("of which 2 belong to the header's 2 blocks"));
  EXPECT_THAT(refusal({}, 1), HasSubstr("of which 0"));
  EXPECT_THAT(refusal({SIZE_MAX, 4}, 3), HasSubstr("number 0"));  // no overflow
  v1::Header sum;
  sum.mutable_step_sum();
  EXPECT_TRUE(CheckPayloadSize(sum, 24).ok()) << "numbers, not blocks";
  sum.mutable_step_sum_answer();
  EXPECT_TRUE(CheckPayloadSize(sum, 24).ok());
  v1::Header pull;
  pull.mutable_pull();
  EXPECT_FALSE(CheckPayloadSize(pull, 1).ok());
}

TEST(FrameWireTest, PayloadsOfCopiesAreBlocksOrPartOfAFile) {
  v1::Header entry;
  entry.mutable_copy_entry()->mutable_gradients()->add_blocks()->set_payload_bytes(2);
  EXPECT_TRUE(CheckPayloadSize(entry, 2).ok());
  EXPECT_FALSE(CheckPayloadSize(entry, 3).ok());
  v1::Header state;
  state.mutable_copy_state();
  EXPECT_TRUE(CheckPayloadSize(state, 3).ok());
}

TEST(FrameWireTest, PayloadOfPullIsTheNumbersOfItsRows) {
  const auto refusal = [](uint64_t count, size_t bytes) {
    v1::Header header;
    header.mutable_pull()->add_rows()->set_count(1);
    header.mutable_pull()->add_rows()->set_count(count);
    return std::string(CheckPayloadSize(header, bytes).message());
  };
  EXPECT_EQ(refusal(2, 24), "");
  EXPECT_EQ(refusal(0, 8), "");
  EXPECT_THAT(refusal(2, 23),
              HasSubstr("2 rows of tensor 0 are requested, but the payload has 15"));
  EXPECT_THAT(refusal(~uint64_t{0}, 24), HasSubstr("rows of tensor 0 are requested"));
  EXPECT_THAT(refusal(1, 24), HasSubstr("of which 16 belong"));
}

// A batch as generated code writes it.
std::string Batch(size_t frames) {
  v1::Frame batch;
  for (size_t i = 0; i < frames; ++i) {
    v1::Frame& frame = *batch.add_batch();
    *frame.mutable_header() = PushHeader({i});
    frame.set_payload(std::string(i, 'x'));
  }
  return batch.SerializeAsString();
}

std::string ReasonOfMessage(absl::string_view wire, const FrameLimits& limits = {}) {
  const auto frames = DecodeFrames(absl::Cord(wire), limits);
  EXPECT_EQ(frames.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(frames.status().message());
}

TEST(FrameWireTest, ReadsFramesOfBatchInOrderInAnyChunks) {
  std::mt19937 random(4);
  for (const size_t chunk : {1, 30, 5000}) {
    const auto frames = DecodeFrames(Shatter(Batch(20), chunk, &random));
    ASSERT_TRUE(frames.ok()) << frames.status();
    ASSERT_EQ(frames->size(), 20u);
    for (size_t i = 0; i < 20; ++i) EXPECT_EQ((*frames)[i].payload, std::string(i, 'x'));
  }
}

TEST(FrameWireTest, MessageThatIsNotABatchIsOneFrame) {
  const auto frames = DecodeFrames(EncodeFrameToCord(PushHeader({3}), absl::Cord("abc")));
  ASSERT_TRUE(frames.ok()) << frames.status();
  ASSERT_EQ(frames->size(), 1u);
  EXPECT_EQ(frames->front().payload, "abc");
}

TEST(FrameWireTest, RejectsBatchOverFrameLimit) {
  EXPECT_TRUE(DecodeFrames(absl::Cord(Batch(kMaxBatchFrames))).ok());
  EXPECT_THAT(ReasonOfMessage(Batch(kMaxBatchFrames + 1)), HasSubstr("more than 256 frames"));
  // The smallest frames there are: the limit counts frames, not bytes.
  std::string empty_frames;
  for (size_t i = 0; i <= kMaxBatchFrames; ++i) empty_frames += std::string("\x1a\x00", 2);
  EXPECT_THAT(ReasonOfMessage(empty_frames), HasSubstr("more than 256 frames"));
}

TEST(FrameWireTest, RejectsWholeBatchForOneBadFrameAndNamesIt) {
  v1::Frame batch;
  *batch.add_batch()->mutable_header() = PushHeader({});
  batch.add_batch()->set_payload("no block's");
  EXPECT_THAT(ReasonOfMessage(batch.SerializeAsString()),
              HasSubstr("frame 1 of a batch: malformed frame: a payload of 10 bytes"));
  EXPECT_THAT(ReasonOfMessage(Batch(3), {.max_payload_bytes = 1}), HasSubstr("frame 2 of a batch"));
}

TEST(FrameWireTest, RejectsBatchWithinBatchOrBesideFrame) {
  v1::Frame nested;
  nested.add_batch()->add_batch();
  EXPECT_THAT(ReasonOfMessage(nested.SerializeAsString()),
              HasSubstr("a batch in place of one frame"));
  EXPECT_THAT(ReasonOf(Batch(2)), HasSubstr("a batch in place of one frame"));
  for (const char* beside : {"\x0a", "\x12"}) {
    const std::string wire = Batch(2) + beside + std::string(1, '\0');
    EXPECT_THAT(ReasonOfMessage(wire), HasSubstr("beside a header or payload"));
  }
}

// Knows one place.
class OnePlace final : public SharedPayloads {
 public:
  explicit OnePlace(std::string* bytes) : bytes_(bytes) {}

  absl::StatusOr<absl::Cord> Take(const v1::SharedPayload& place) override {
    if (place.offset() != 4096) return absl::InvalidArgumentError("no such place");
    return absl::MakeCordFromExternal(absl::string_view(*bytes_).substr(0, place.bytes()), [] {});
  }

 private:
  std::string* const bytes_;
};

v1::SharedPayload PlaceOf(uint64_t bytes, uint64_t offset = 4096) {
  v1::SharedPayload place;
  place.set_offset(offset);
  place.set_bytes(bytes);
  return place;
}

TEST(FrameWireTest, PayloadMayBeInSharedMemory) {
  const v1::Header header = PushHeader({3, 2});
  const std::string wire = EncodeSharedFrame(header, PlaceOf(5));
  v1::Frame generated;
  ASSERT_TRUE(generated.ParseFromString(wire));
  EXPECT_EQ(generated.header().SerializeAsString(), header.SerializeAsString());
  EXPECT_EQ(generated.shared_payload().offset(), 4096u);
  EXPECT_EQ(generated.shared_payload().bytes(), 5u);
  std::string bytes = "12345678";
  OnePlace memory(&bytes);
  const auto frame = DecodeFrame(absl::Cord(generated.SerializeAsString()), {}, &memory);
  ASSERT_TRUE(frame.ok()) << frame.status();
  EXPECT_EQ(frame->payload, "12345");
  bytes[0] = 'x';  // numbers are read in place
  EXPECT_EQ(frame->payload, "x2345");
}

TEST(FrameWireTest, CopiesAllButNumbersFromSharedMemory) {
  v1::Header header = PushHeader({3, 2});
  header.mutable_push()->mutable_blocks(1)->set_codec(v1::CODEC_TOP_K);
  std::string bytes = "12345678";
  OnePlace memory(&bytes);
  const auto frame = DecodeFrame(absl::Cord(EncodeSharedFrame(header, PlaceOf(5))), {}, &memory);
  ASSERT_TRUE(frame.ok()) << frame.status();
  bytes[0] = 'x';
  EXPECT_EQ(frame->payload, "12345");
}

TEST(FrameWireTest, RejectsInvalidPlace) {
  std::string bytes = "12345678";
  OnePlace memory(&bytes);
  const auto reason = [&](const std::string& wire, SharedPayloads* shared) {
    const auto frame = DecodeFrame(absl::Cord(wire), {}, shared);
    EXPECT_EQ(frame.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(frame.status().message());
  };
  const v1::Header header = PushHeader({5});
  EXPECT_THAT(reason(EncodeSharedFrame(header, PlaceOf(5)), nullptr), HasSubstr("agreed on"));
  EXPECT_THAT(reason(EncodeSharedFrame(header, PlaceOf(5, 0)), &memory), HasSubstr("no such"));
  EXPECT_THAT(reason(EncodeSharedFrame(header, PlaceOf(6)), &memory), HasSubstr("belong to"));
  EXPECT_THAT(reason(EncodeSharedFrame(header, PlaceOf(kMaxPayloadBytes + 1)), &memory),
              HasSubstr("over the limit"));

  v1::Frame both;
  *both.mutable_header() = header;
  both.set_payload("12345");
  *both.mutable_shared_payload() = PlaceOf(5);
  EXPECT_THAT(reason(both.SerializeAsString(), &memory), HasSubstr("second payload"));

  v1::Frame batch;
  *batch.add_batch()->mutable_header() = header;
  *batch.mutable_shared_payload() = PlaceOf(5);
  EXPECT_THAT(reason(batch.SerializeAsString(), &memory), HasSubstr("beside"));
  // The tag of a place, then a length that exceeds the remaining bytes.
  EXPECT_THAT(reason("\x22\x05\x08", &memory), HasSubstr("of which 1 are there"));
}

// Random changed, missing and inserted bytes: decoding never crashes, and content that it accepts
// is the same as generated code's.
TEST(FrameWireTest, RejectsDamagedFramesOrReadsThemLikeGeneratedCode) {
  std::mt19937 random(3);
  int accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string wire(EncodeFrameToCord(PushHeader({40}), absl::Cord(std::string(40, 'p'))));
    for (uint32_t changes = 1 + random() % 3; changes > 0; --changes) {
      const size_t at = random() % wire.size();
      switch (random() % 3) {
        case 0:
          wire[at] = static_cast<char>(random());
          break;
        case 1:
          wire.resize(at + 1);
          break;
        case 2:
          wire.insert(at, 1, static_cast<char>(random()));
          break;
      }
    }
    const auto decoded = DecodeFrame(Shatter(wire, 16, &random));
    if (!decoded.ok()) continue;
    ++accepted;
    v1::Frame frame;
    ASSERT_TRUE(frame.ParseFromString(wire)) << absl::CHexEscape(wire);
    EXPECT_EQ(frame.payload(), decoded->payload);
    EXPECT_EQ(frame.header().SerializeAsString(), decoded->header.SerializeAsString());
  }
  EXPECT_GT(accepted, 100);
}

}  // namespace
}  // namespace sluice
