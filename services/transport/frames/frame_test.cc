#include "services/transport/frames/frame.h"

#include <grpcpp/support/proto_buffer_reader.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

namespace sluice {
namespace {

v1::Header DataHeader(size_t bytes) {
  v1::Header header;
  header.mutable_data()->set_version(5);
  header.mutable_data()->add_blocks()->set_payload_bytes(bytes);
  return header;
}

std::vector<grpc::Slice> SlicesOf(const grpc::ByteBuffer& message) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(message.Dump(&slices).ok());
  return slices;
}

std::string BytesOf(const grpc::ByteBuffer& message) {
  std::string bytes;
  for (const grpc::Slice& slice : SlicesOf(message)) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

TEST(FrameTest, MessageIsTheWireEncoding) {
  for (size_t size :
       {size_t{0}, size_t{3}, size_t{64}, size_t{4096}, size_t{4097}, size_t{1} << 20}) {
    const absl::Cord payload(std::string(size, 'p'));
    const grpc::ByteBuffer message = OutgoingFrames(DataHeader(size), payload).Message();
    EXPECT_EQ(BytesOf(message), std::string(EncodeFrameToCord(DataHeader(size), payload)));
    EXPECT_EQ(message.Length(), BytesOf(message).size());
  }
}

TEST(FrameTest, SendsLargePayloadInPlaceAndKeepsItUntilSent) {
  auto* memory = new std::string(1 << 20, 'x');
  bool released = false;
  absl::Cord payload = absl::MakeCordFromExternal(*memory, [&released, memory] {
    released = true;
    delete memory;
  });
  grpc::ByteBuffer message = OutgoingFrames(DataHeader(memory->size()), payload).Message();
  payload.Clear();
  EXPECT_FALSE(released);

  {
    const std::vector<grpc::Slice> slices = SlicesOf(message);
    ASSERT_EQ(slices.size(), 2u);
    EXPECT_EQ(static_cast<const void*>(slices[1].begin()), memory->data());
  }
  message.Clear();
  EXPECT_TRUE(released);
}

TEST(FrameTest, SeveralFramesAreEncodedLikeGeneratedBatch) {
  v1::Frame batch;
  OutgoingFrames outgoing;
  size_t bytes = 0;
  for (size_t size : {size_t{0}, size_t{64}, size_t{5000}, size_t{100000}}) {
    const absl::Cord payload(std::string(size, 'p'));
    v1::Frame& frame = *batch.add_batch();
    *frame.mutable_header() = DataHeader(size);
    frame.set_payload(std::string(payload));
    OutgoingFrames next(DataHeader(size), payload);
    bytes += next.bytes();
    outgoing.Append(std::move(next));
  }
  EXPECT_EQ(outgoing.count(), 4u);
  EXPECT_EQ(outgoing.bytes(), bytes);
  EXPECT_EQ(BytesOf(outgoing.Message()), batch.SerializeAsString());
}

TEST(FrameTest, FramesOfBatchReferToReceivedSlices) {
  const std::string large(100000, 'l');
  OutgoingFrames outgoing(DataHeader(large.size()), absl::Cord(large));
  outgoing.Append(OutgoingFrames(DataHeader(3), absl::Cord("abc")));
  const std::string wire = BytesOf(outgoing.Message());
  const grpc::Slice slice(wire);
  const auto frames = DecodeFrames(grpc::ByteBuffer(&slice, 1));
  ASSERT_TRUE(frames.ok()) << frames.status();
  ASSERT_EQ(frames->size(), 2u);
  EXPECT_EQ((*frames)[0].payload, large);
  EXPECT_EQ((*frames)[1].payload, "abc");
  const absl::string_view chunk = *(*frames)[0].payload.Chunks().begin();
  const auto* begin = reinterpret_cast<const char*>(slice.begin());
  EXPECT_TRUE(chunk.data() > begin && chunk.data() < begin + slice.size());
}

TEST(FrameTest, ReceivedPayloadRefersToReceivedSlices) {
  const std::string large(100000, 'l');
  const std::string prefix = EncodeFramePrefix(DataHeader(large.size() + 10), large.size() + 10);
  const std::vector<grpc::Slice> slices = {grpc::Slice(prefix), grpc::Slice("0123456789"),
                                           grpc::Slice(large)};
  const void* large_at = slices[2].begin();
  const auto frames = DecodeFrames(grpc::ByteBuffer(slices.data(), slices.size()));
  ASSERT_TRUE(frames.ok()) << frames.status();
  const absl::Cord& payload = frames->front().payload;
  EXPECT_EQ(payload, "0123456789" + large);
  bool found = false;
  for (const absl::string_view chunk : payload.Chunks()) found |= chunk.data() == large_at;
  EXPECT_TRUE(found);
}

TEST(FrameTest, PayloadOutlivesItsMessage) {
  absl::Cord payload;
  const std::string content(50000, 'c');
  {
    const std::string wire(EncodeFrameToCord(DataHeader(content.size()), absl::Cord(content)));
    const grpc::Slice slice(wire);
    auto frames = DecodeFrames(grpc::ByteBuffer(&slice, 1));
    ASSERT_TRUE(frames.ok()) << frames.status();
    payload = std::move(frames->front().payload);
  }
  EXPECT_EQ(payload, content);
}

TEST(FrameTest, HeaderMayBeSplitAnywhereOverSlices) {
  std::mt19937 random(4);
  const std::string content(9000, 'c');
  const std::string wire(EncodeFrameToCord(DataHeader(content.size()), absl::Cord(content)));
  for (int round = 0; round < 100; ++round) {
    std::vector<grpc::Slice> slices;
    for (size_t at = 0; at < wire.size();) {
      const size_t most = at < 40 ? 5 : 6000;
      const size_t size = std::min(wire.size() - at, 1 + random() % most);
      slices.emplace_back(wire.data() + at, size);
      at += size;
    }
    const auto frames = DecodeFrames(grpc::ByteBuffer(slices.data(), slices.size()));
    ASSERT_TRUE(frames.ok()) << frames.status();
    EXPECT_EQ(frames->front().payload, content);
    EXPECT_EQ(frames->front().header.data().version(), 5u);
  }
}

TEST(FrameTest, RejectsMessageThatIsNotAFrame) {
  const grpc::Slice garbage("\xff\xff garbage");
  EXPECT_EQ(DecodeFrames(grpc::ByteBuffer(&garbage, 1)).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(DecodeFrames(grpc::ByteBuffer()).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace sluice
