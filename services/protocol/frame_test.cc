#include "services/protocol/frame.h"

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

TEST(FrameTest, TheMessageIsTheWireEncoding) {
  for (size_t size : {size_t{0}, size_t{64}, size_t{4096}, size_t{4097}, size_t{1} << 20}) {
    const absl::Cord payload(std::string(size, 'p'));
    const grpc::ByteBuffer message = EncodeFrame(DataHeader(size), payload);
    EXPECT_EQ(BytesOf(message), std::string(EncodeFrameToCord(DataHeader(size), payload)));
    EXPECT_EQ(message.Length(), BytesOf(message).size());
  }
}

TEST(FrameTest, ALargePayloadIsSentFromWhereItLiesAndHeldUntilThen) {
  auto* memory = new std::string(1 << 20, 'x');
  bool released = false;
  absl::Cord payload = absl::MakeCordFromExternal(*memory, [&released, memory] {
    released = true;
    delete memory;
  });
  grpc::ByteBuffer message = EncodeFrame(DataHeader(memory->size()), payload);
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

TEST(FrameTest, AReceivedPayloadIsTheReceivedSlicesThemselves) {
  const std::string large(100000, 'l');
  const std::string prefix = EncodeFramePrefix(DataHeader(large.size() + 10), large.size() + 10);
  const std::vector<grpc::Slice> slices = {grpc::Slice(prefix), grpc::Slice("0123456789"),
                                           grpc::Slice(large)};
  const void* large_at = slices[2].begin();
  const auto frame = DecodeFrame(grpc::ByteBuffer(slices.data(), slices.size()));
  ASSERT_TRUE(frame.ok()) << frame.status();
  EXPECT_EQ(frame->payload, "0123456789" + large);
  bool found = false;
  for (const absl::string_view chunk : frame->payload.Chunks()) found |= chunk.data() == large_at;
  EXPECT_TRUE(found);
}

TEST(FrameTest, APayloadOutlivesTheMessageItCameIn) {
  absl::Cord payload;
  const std::string content(50000, 'c');
  {
    const std::string wire(EncodeFrameToCord(DataHeader(content.size()), absl::Cord(content)));
    const grpc::Slice slice(wire);
    auto frame = DecodeFrame(grpc::ByteBuffer(&slice, 1));
    ASSERT_TRUE(frame.ok()) << frame.status();
    payload = std::move(frame->payload);
  }
  EXPECT_EQ(payload, content);
}

TEST(FrameTest, AHeaderMayBeSplitOverSlicesAnywhere) {
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
    const auto frame = DecodeFrame(grpc::ByteBuffer(slices.data(), slices.size()));
    ASSERT_TRUE(frame.ok()) << frame.status();
    EXPECT_EQ(frame->payload, content);
    EXPECT_EQ(frame->header.data().version(), 5u);
  }
}

TEST(FrameTest, AMessageThatIsNoFrameIsRefused) {
  const grpc::Slice garbage("\xff\xff garbage");
  EXPECT_EQ(DecodeFrame(grpc::ByteBuffer(&garbage, 1)).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(DecodeFrame(grpc::ByteBuffer()).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace sluice
