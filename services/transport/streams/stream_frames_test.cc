// How StreamServer and StreamClient carry frames: batches of frames in one message, and payloads in
// shared memory.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "proto/frame.grpc.pb.h"
#include "services/transport/frames/frame_wire.h"
#include "services/transport/streams/stream_client.h"
#include "services/transport/streams/stream_server.h"
#include "services/transport/testing/stream_peers.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

v1::Header HelloOf(uint32_t max_batch_frames) {
  v1::Header header;
  header.mutable_hello()->set_max_batch_frames(max_batch_frames);
  return header;
}

// Answers a Hello with frames. All but the first have to wait, because the stream's own thread,
// which would write them, is busy here.
TestServer::OnFrameFunction AnswerWith(uint64_t frames, size_t payload_bytes) {
  return [=](StreamServer* streams, StreamId stream, const DecodedFrame& frame) {
    if (!frame.header.has_hello()) return;
    const absl::Cord payload(std::string(payload_bytes, 'p'));
    for (uint64_t i = 0; i < frames; ++i) {
      streams->Send(stream, DataHeader(i, payload_bytes), payload);
    }
  };
}

// The same with Queue.
TestServer::OnFrameFunction AnswerTogetherWith(uint64_t frames, size_t payload_bytes) {
  return [=](StreamServer* streams, StreamId stream, const DecodedFrame& frame) {
    if (!frame.header.has_hello()) return;
    const absl::Cord payload(std::string(payload_bytes, 'p'));
    for (uint64_t i = 0; i < frames; ++i) {
      streams->Queue(stream, DataHeader(i, payload_bytes), payload);
    }
    streams->Flush(stream);
  };
}

// The frames of each message that a generated client gets in answer to its Hello.
std::vector<size_t> BatchesOf(const TestServer::OnFrameFunction& answer, const v1::Header& hello,
                              uint64_t frames, size_t payload_bytes) {
  TestServer server(answer);
  auto stub = GeneratedStub(server.address());
  grpc::ClientContext context;
  auto stream = stub->Exchange(&context);
  v1::Frame sent;
  *sent.mutable_header() = hello;
  EXPECT_TRUE(stream->Write(sent));
  std::vector<size_t> batches;
  for (uint64_t next = 0; next < frames;) {
    v1::Frame received;
    if (!stream->Read(&received)) {
      ADD_FAILURE() << "the stream ended after " << next << " frames";
      break;
    }
    batches.push_back(std::max(received.batch_size(), 1));
    for (int i = 0; i < received.batch_size(); ++i) {
      EXPECT_EQ(received.batch(i).header().data().version(), next++);
      EXPECT_EQ(received.batch(i).payload().size(), payload_bytes);
    }
    if (received.batch_size() == 0) {
      EXPECT_EQ(received.header().data().version(), next++);
    }
  }
  context.TryCancel();
  stream->Finish();
  return batches;
}

std::vector<size_t> BatchesFor(const v1::Header& hello, uint64_t frames, size_t payload_bytes) {
  return BatchesOf(AnswerWith(frames, payload_bytes), hello, frames, payload_bytes);
}

TEST(StreamTest, FlushSendsQueuedFramesTogether) {
  EXPECT_THAT(BatchesOf(AnswerTogetherWith(100, 64), HelloOf(256), 100, 64), ElementsAre(100));
  EXPECT_THAT(BatchesOf(AnswerTogetherWith(3, 64), HelloOf(0), 3, 64), ElementsAre(1, 1, 1));
}

TEST(StreamTest, SendsWaitingFramesTogetherReadableByGeneratedCode) {
  EXPECT_THAT(BatchesFor(HelloOf(256), 100, 64), ElementsAre(1, 99));
}

TEST(StreamTest, BatchHasNoMoreFramesThanPeerTakes) {
  EXPECT_THAT(BatchesFor(HelloOf(40), 100, 64), ElementsAre(1, 40, 40, 19));
  EXPECT_THAT(BatchesFor(HelloOf(0), 5, 64), ElementsAre(1, 1, 1, 1, 1));
}

TEST(StreamTest, BatchEndsAtByteBoundAndLargeFramesGoAlone) {
  EXPECT_THAT(BatchesFor(HelloOf(256), 9, 60 << 10), ElementsAre(1, 4, 4));
  EXPECT_THAT(BatchesFor(HelloOf(256), 3, 200 << 10), ElementsAre(1, 1, 1));
}

TEST(StreamTest, ClientAndServerAgreeOnBatches) {
  TestServer server([](StreamServer* streams, StreamId stream, const DecodedFrame& frame) {
    v1::Header reply;
    reply.mutable_hello_reply();
    if (frame.header.has_hello()) streams->Send(stream, reply);
  });
  TestClient client(server.address(), {}, [&client](const DecodedFrame& frame) {
    if (!frame.header.has_hello_reply()) return;
    for (uint64_t i = 0; i < 100; ++i) client->Send(PullHeader(i));  // all but the first wait
  });
  v1::Header hello;
  hello.mutable_hello();
  client->Send(hello);
  const StreamId stream = server.WaitForStream();
  const ServerEvents events = server.events().WaitFor([=](const ServerEvents& e) {
    const auto found = e.frames.find(stream);
    return found != e.frames.end() && found->second.size() == 101;
  });
  EXPECT_LE(events.batches.size(), 3u);
  EXPECT_EQ(events.frames.at(stream)[0].header.hello().max_batch_frames(), kMaxBatchFrames);
  for (uint64_t i = 0; i < 100; ++i) {
    EXPECT_EQ(events.frames.at(stream)[i + 1].header.pull().version(), i);
  }
}

// Answers a Hello, and echoes every other frame.
void GreetAndEcho(StreamServer* streams, StreamId stream, const DecodedFrame& frame) {
  if (!frame.header.has_hello()) return Echo(streams, stream, frame);
  v1::Header reply;
  reply.mutable_hello_reply();
  streams->Send(stream, reply);
}

// Payloads of one client's frames as the server and then the client receive them. Through a socket
// they arrive in chunks of at most 64 KiB; in shared memory they are in one piece.
struct Journey {
  bool server_in_one_piece = false;
  bool client_in_one_piece = false;
  bool taken = false;
};

Journey SendThereAndBack(size_t shared_memory_bytes, StreamServer::Options server_options = {}) {
  TestServer server(GreetAndEcho, std::move(server_options));
  StreamClient::Options options;
  options.shared_memory_bytes = shared_memory_bytes;
  TestClient client(server.address(), options);
  v1::Header hello;
  hello.mutable_hello();
  client->Send(hello);
  Journey journey;
  journey.taken = client.WaitForFrames(1)[0].header.hello_reply().shared_memory_taken();
  std::string bytes(1 << 20, 'x');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 7 % 251);
  client->Send(DataHeader(1, bytes.size()), absl::Cord(bytes));
  const DecodedFrame back = client.WaitForFrames(2)[1];
  EXPECT_EQ(back.payload, bytes);
  journey.client_in_one_piece = back.payload.TryFlat().has_value();
  const StreamId stream = server.WaitForStream();
  const DecodedFrame there =
      server.events()
          .WaitFor([=](const ServerEvents& e) { return e.frames.at(stream).size() == 2; })
          .frames.at(stream)[1];
  EXPECT_EQ(there.payload, bytes);
  journey.server_in_one_piece = there.payload.TryFlat().has_value();
  return journey;
}

TEST(StreamTest, SharesPayloadsBetweenProcessesOfOneMachineInMemory) {
  const Journey journey = SendThereAndBack(size_t{4} << 20);
  EXPECT_TRUE(journey.taken);
  EXPECT_TRUE(journey.server_in_one_piece);
  EXPECT_TRUE(journey.client_in_one_piece);
}

TEST(StreamTest, SendsPayloadsThroughSocketWithoutSharedMemory) {
  const Journey journey = SendThereAndBack(0);
  EXPECT_FALSE(journey.taken);
  EXPECT_FALSE(journey.server_in_one_piece);
  EXPECT_FALSE(journey.client_in_one_piece);
}

TEST(StreamTest, ServerWithoutSharedMemoryDeclinesTheOffer) {
  StreamServer::Options options;
  options.shared_memory = false;
  const Journey journey = SendThereAndBack(size_t{4} << 20, std::move(options));
  EXPECT_FALSE(journey.taken);
  EXPECT_FALSE(journey.server_in_one_piece);
  EXPECT_FALSE(journey.client_in_one_piece);
}

TEST(StreamTest, SendsPayloadThroughSocketInOrderIfSharedMemoryIsFull) {
  TestServer server(GreetAndEcho);  // keeps every payload that it gets
  StreamClient::Options options;
  options.shared_memory_bytes = size_t{256} << 10;
  TestClient client(server.address(), options);
  v1::Header hello;
  hello.mutable_hello();
  client->Send(hello);
  client.WaitForFrames(1);
  constexpr size_t kFrames = 20;
  for (size_t i = 0; i < kFrames; ++i) {
    const std::string bytes((size_t{20} << 10) + i * 5000, static_cast<char>('a' + i));
    client->Send(DataHeader(i, bytes.size()), absl::Cord(bytes));
  }
  const std::vector<DecodedFrame> frames = client.WaitForFrames(1 + kFrames);
  for (size_t i = 0; i < kFrames; ++i) {
    EXPECT_EQ(frames[i + 1].header.data().version(), i);
    EXPECT_EQ(frames[i + 1].payload,
              std::string((size_t{20} << 10) + i * 5000, static_cast<char>('a' + i)));
  }
}

TEST(StreamTest, DoesNotAcceptOfferThatCannotBeOpened) {
  TestServer server(GreetAndEcho);
  auto stub = GeneratedStub(server.address());
  grpc::ClientContext context;
  auto stream = stub->Exchange(&context);
  v1::Frame frame;
  v1::SharedMemory* offer = frame.mutable_header()->mutable_hello()->mutable_shared_memory();
  offer->set_pid(1);
  offer->set_file(12345);
  offer->set_half_bytes(4096);
  ASSERT_TRUE(stream->Write(frame));
  ASSERT_TRUE(stream->Read(&frame));
  EXPECT_TRUE(frame.header().has_hello_reply());
  EXPECT_FALSE(frame.header().hello_reply().shared_memory_taken());
  context.TryCancel();
  stream->Finish();
}

TEST(StreamTest, RefusesPlaceInMemoryThatIsNotSharedAndServesOthers) {
  TestServer server(Echo);
  auto stub = GeneratedStub(server.address());
  grpc::ClientContext context;
  auto stream = stub->Exchange(&context);
  v1::Frame frame;
  *frame.mutable_header() = DataHeader(1, 10);
  frame.mutable_shared_payload()->set_bytes(10);
  ASSERT_TRUE(stream->Write(frame));
  EXPECT_FALSE(stream->Read(&frame));
  const grpc::Status status = stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("none was agreed on"));
  TestClient other(server.address());
  other->Send(PullHeader(5));
  EXPECT_THAT(other.WaitForFrames(1), SizeIs(1));
}

TEST(StreamTest, RefusesMalformedBatchAndServesOthers) {
  TestServer server(Echo);
  auto stub = GeneratedStub(server.address());
  grpc::ClientContext context;
  auto stream = stub->Exchange(&context);
  v1::Frame frame;
  frame.add_batch()->add_batch();
  ASSERT_TRUE(stream->Write(frame));
  EXPECT_FALSE(stream->Read(&frame));
  const grpc::Status status = stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("frame 0 of a batch"));

  TestClient good(server.address());
  good->Send(PullHeader(2));
  good.WaitForFrames(1);
}

}  // namespace
}  // namespace sluice
