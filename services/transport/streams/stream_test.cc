// StreamServer and StreamClient, against each other and against code generated from
// proto/frame.proto, over loopback.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "proto/frame.grpc.pb.h"
#include "services/transport/frames/frame_wire.h"
#include "services/transport/server/grpc_server.h"
#include "services/transport/streams/event_loop.h"
#include "services/transport/streams/stream_client.h"
#include "services/transport/streams/stream_server.h"
#include "services/transport/testing/stream_peers.h"
#include "services/transport/testing/watched.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(StreamTest, GeneratedClientTalksToRawServer) {
  TestServer server(Echo);
  auto stub = GeneratedStub(server.address());
  grpc::ClientContext context;
  auto stream = stub->Exchange(&context);
  for (size_t size : {size_t{0}, size_t{64}, size_t{2} << 20}) {
    v1::Frame sent;
    *sent.mutable_header() = DataHeader(size, size);
    sent.set_payload(std::string(size, 'x'));
    ASSERT_TRUE(stream->Write(sent));
    v1::Frame received;
    ASSERT_TRUE(stream->Read(&received));
    EXPECT_EQ(received.SerializeAsString(), sent.SerializeAsString());
  }
  stream->WritesDone();
  v1::Frame none;
  EXPECT_FALSE(stream->Read(&none));
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_TRUE(server.WaitForClose(server.WaitForStream()).ok());
}

// A server made only from the proto file.
class GeneratedEchoService final : public v1::ParameterServer::Service {
  grpc::Status Exchange(grpc::ServerContext*,
                        grpc::ServerReaderWriter<v1::Frame, v1::Frame>* stream) override {
    v1::Frame frame;
    while (stream->Read(&frame)) stream->Write(frame);
    return grpc::Status(grpc::StatusCode::ABORTED, "that was all");
  }
};

TEST(StreamTest, RawClientTalksToGeneratedServer) {
  GeneratedEchoService echo;
  GeneratedService service(&echo);
  auto server = GrpcServer::Start({}, {&service});
  ASSERT_TRUE(server.ok()) << server.status();
  TestClient client(absl::StrCat("127.0.0.1:", (*server)->port()));
  const absl::Cord payload(std::string(1 << 20, 'y'));
  client->Send(PullHeader(1));
  client->Send(DataHeader(2, payload.size()), payload);
  const auto frames = client.WaitForFrames(2);
  EXPECT_EQ(frames[0].header.pull().version(), 1u);
  EXPECT_EQ(frames[1].payload, payload);
  client->Finish();
  EXPECT_EQ(client.WaitForBreak(), absl::AbortedError("that was all"));
}

TEST(StreamTest, FramesSentBeforeConnectionArriveInOrder) {
  TestServer server;
  TestClient client(server.address());
  for (uint64_t i = 0; i < 100; ++i) client->Send(PullHeader(i));
  const StreamId stream = server.WaitForStream();
  auto frames = server.events()
                    .WaitFor([=](const ServerEvents& e) {
                      const auto found = e.frames.find(stream);
                      return found != e.frames.end() && found->second.size() == 100;
                    })
                    .frames[stream];
  for (uint64_t i = 0; i < 100; ++i) EXPECT_EQ(frames[i].header.pull().version(), i);
}

TEST(StreamTest, KeepsOrderOfEachSenderUnderLoadInBothDirections) {
  constexpr int kThreads = 4;
  constexpr uint64_t kFrames = 400;
  TestServer server(Echo);
  TestClient client(server.address());
  const absl::Cord large(std::string(100000, 'l'));
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t i = 0; i < kFrames; ++i) {
        const absl::Cord payload = i % 7 == 0 ? large : absl::Cord();
        v1::Header header = DataHeader(i, payload.size());
        header.mutable_data()->set_partition(static_cast<uint32_t>(t));
        client->Send(header, payload);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<uint64_t> next(kThreads, 0);
  for (const DecodedFrame& frame : client.WaitForFrames(kThreads * kFrames)) {
    EXPECT_EQ(frame.header.data().version(), next[frame.header.data().partition()]++);
  }
  EXPECT_EQ(client->queued_bytes(), 0u);
}

TEST(StreamTest, ClientsOnOneLoopUseItsThreadAndEndOneByOne) {
  TestServer server(Echo);
  EventLoop loop("test");
  StreamClient::Options options;
  options.loop = &loop;
  Watched<std::set<std::thread::id>> threads;
  std::vector<std::unique_ptr<TestClient>> clients;
  for (int i = 0; i < 6; ++i) {
    clients.push_back(
        std::make_unique<TestClient>(server.address(), options, [&threads](const DecodedFrame&) {
          threads.Change(
              [](std::set<std::thread::id>* t) { t->insert(std::this_thread::get_id()); });
        }));
  }
  for (uint64_t i = 0; !clients.empty(); ++i) {
    for (const auto& client : clients) (*client)->Send(PullHeader(i));
    for (const auto& client : clients) {
      EXPECT_EQ(client->WaitForFrames(i + 1)[i].header.pull().version(), i);
    }
    clients.pop_back();
  }
  EXPECT_THAT(threads.Now(), SizeIs(1));
}

TEST(StreamTest, ServesManyStreamsAtOnce) {
  TestServer server(Echo);
  std::vector<std::unique_ptr<TestClient>> clients;
  for (int i = 0; i < 20; ++i) clients.push_back(std::make_unique<TestClient>(server.address()));
  for (size_t i = 0; i < clients.size(); ++i) (*clients[i])->Send(PullHeader(i));
  for (size_t i = 0; i < clients.size(); ++i) {
    EXPECT_EQ(clients[i]->WaitForFrames(1)[0].header.pull().version(), i);
  }
}

TEST(StreamTest, RefusesClientThatSendsGarbageAndServesOthers) {
  TestServer server(Echo);
  TestClient good(server.address());
  good->Send(PullHeader(1));
  good.WaitForFrames(1);

  auto stub = GeneratedStub(server.address());
  grpc::ClientContext context;
  auto stream = stub->Exchange(&context);
  v1::Frame frame;
  frame.set_payload("belongs to no block");
  ASSERT_TRUE(stream->Write(frame));
  EXPECT_FALSE(stream->Read(&frame));
  const grpc::Status status = stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("payload of 19 bytes"));
  EXPECT_EQ(server.WaitForClose(server.WaitForStream(2)).code(),
            absl::StatusCode::kInvalidArgument);

  good->Send(PullHeader(2));
  good.WaitForFrames(2);
}

TEST(StreamTest, RefusesClientThatSendsOversizeMessageAndServesOthers) {
  TestServer server(Echo);
  TestClient good(server.address());
  auto stub = GeneratedStub(server.address());
  grpc::ClientContext context;
  auto stream = stub->Exchange(&context);
  v1::Frame frame;
  *frame.mutable_header() = DataHeader(1, 3 << 20);
  frame.set_payload(std::string(3 << 20, 'x'));
  stream->Write(frame);
  EXPECT_FALSE(stream->Read(&frame));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  good->Send(PullHeader(1));
  good.WaitForFrames(1);
}

TEST(StreamTest, CloseDeliversEarlierFramesAndStatus) {
  TestServer server([](StreamServer* streams, StreamId stream, const DecodedFrame&) {
    for (uint64_t i = 0; i < 50; ++i) streams->Send(stream, PullHeader(i));
    streams->Close(stream, absl::NotFoundError("another instance answers here"));
    streams->Send(stream, PullHeader(1000));
  });
  TestClient client(server.address());
  client->Send(PullHeader(0));
  EXPECT_EQ(client.WaitForBreak(), absl::NotFoundError("another instance answers here"));
  EXPECT_THAT(client.events().Now().frames, SizeIs(50));
  EXPECT_EQ(server.WaitForClose(server.WaitForStream()).code(), absl::StatusCode::kNotFound);
}

TEST(StreamTest, ReportsLostClientOnceAndToleratesSendsToIt) {
  TestServer server;
  {
    TestClient client(server.address());
    client->Send(PullHeader(0));
    server.WaitForStream();
  }
  const StreamId stream = server.WaitForStream();
  EXPECT_EQ(server.WaitForClose(stream).code(), absl::StatusCode::kUnavailable);
  server.streams()->Send(stream, PullHeader(1));
  server.streams()->Close(stream, absl::OkStatus());
  server.Stop();
  EXPECT_THAT(server.events().Now().closed[stream], SizeIs(1));
  EXPECT_EQ(server.streams()->queued_bytes(), 0u);
}

TEST(StreamTest, ReportsFinishedClientAsDone) {
  TestServer server(Echo);
  TestClient client(server.address());
  client->Send(PullHeader(0));
  client.WaitForFrames(1);
  client->Finish();
  EXPECT_TRUE(client.WaitForBreak().ok());
  EXPECT_TRUE(server.WaitForClose(server.WaitForStream()).ok());
}

TEST(StreamTest, ReportsStoppedServerToClientsOnce) {
  auto server = std::make_unique<TestServer>(Echo);
  TestClient client(server->address());
  client->Send(PullHeader(0));
  client.WaitForFrames(1);
  server->Stop();
  EXPECT_EQ(client.WaitForBreak().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(server->events().Now().closed[1], SizeIs(1));
  server = nullptr;
  client->Send(PullHeader(1));
  client.Destroy();
  EXPECT_THAT(client.events().Now().broken, SizeIs(1));
}

TEST(StreamTest, ClientBreaksOnceWithoutServer) {
  std::string address;
  {
    TestServer server;
    address = server.address();
  }
  TestClient client(address);
  client->Send(PullHeader(0));
  EXPECT_EQ(client.WaitForBreak().code(), absl::StatusCode::kUnavailable);
  client.Destroy();
  EXPECT_THAT(client.events().Now().broken, SizeIs(1));
}

TEST(StreamTest, DestroyedClientMakesNoCallback) {
  TestServer server(Echo);
  TestClient client(server.address());
  client->Send(PullHeader(0));
  client.WaitForFrames(1);
  client.Destroy();
  EXPECT_THAT(client.events().Now().broken, IsEmpty());
}

// A generated client that opens a stream and reads no message. A thread waits at its socket, as in
// every running process: unread bytes in the socket's buffers would block a server anyway.
class SilentReader {
 public:
  explicit SilentReader(const std::string& address) : stub_(GeneratedStub(address)) {
    stream_ = stub_->AsyncExchange(&context_, &queue_, this);
    Await();
    v1::Frame frame;
    *frame.mutable_header() = PullHeader(0);
    stream_->Write(frame, this);
    Await();
    waits_ = std::thread([this] { Await(); });
  }
  ~SilentReader() {
    context_.TryCancel();
    stream_->Finish(&status_, this);
    waits_.join();
    queue_.Shutdown();
    Await();
  }

 private:
  // Waits until the operation under way has ended, or the queue is shut down.
  void Await() {
    void* tag = nullptr;
    bool ok = false;
    queue_.Next(&tag, &ok);
  }

  std::unique_ptr<v1::ParameterServer::Stub> stub_;
  grpc::CompletionQueue queue_;
  grpc::ClientContext context_;
  grpc::Status status_;
  std::unique_ptr<grpc::ClientAsyncReaderWriter<v1::Frame, v1::Frame>> stream_;
  std::thread waits_;
};

TEST(StreamTest, PeerThatDoesNotReadBlocksNoThreadAndLosesItsStreamAtBound) {
  StreamServer::Options options;
  options.max_queued_bytes = size_t{64} << 20;
  options.close_timeout = absl::Milliseconds(10);
  TestServer server(Echo, options);
  SilentReader silent(server.address());
  const StreamId stream = server.WaitForStream();
  const absl::Cord payload(std::string(kMaxPayloadBytes, 'x'));
  // Twice the bound: none of these waits for the peer. One frame may have been taken meanwhile.
  for (int i = 0; i < 64; ++i) {
    server.streams()->Send(stream, DataHeader(0, payload.size()), payload);
    EXPECT_LE(server.streams()->queued_bytes(), options.max_queued_bytes + payload.size());
  }
  EXPECT_EQ(server.WaitForClose(stream).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(server.streams()->queued_bytes(), 0u);

  TestClient good(server.address());
  good->Send(PullHeader(1));
  good.WaitForFrames(1);
}

TEST(StreamTest, CancelsClosedStreamIfPeerDoesNotRead) {
  StreamServer::Options options;
  options.close_timeout = absl::Milliseconds(10);
  TestServer server(nullptr, options);
  SilentReader silent(server.address());
  const StreamId stream = server.WaitForStream();
  const absl::Cord payload(std::string(kMaxPayloadBytes, 'x'));
  for (int i = 0; i < 32; ++i)
    server.streams()->Send(stream, DataHeader(0, payload.size()), payload);
  server.streams()->Close(stream, absl::AbortedError("expelled"));
  EXPECT_EQ(server.WaitForClose(stream).code(), absl::StatusCode::kAborted);
}

TEST(StreamTest, ServerUnderTrafficStopsWithinGrace) {
  TestServer server(Echo, {}, absl::Milliseconds(100));
  SilentReader silent(server.address());
  const StreamId stream = server.WaitForStream();
  const absl::Cord payload(std::string(kMaxPayloadBytes, 'x'));
  for (int i = 0; i < 32; ++i)
    server.streams()->Send(stream, DataHeader(0, payload.size()), payload);

  // Frames circulate: each one that comes back is sent again.
  constexpr int kFrames = 64;
  const absl::Cord large(std::string(100000, 'l'));
  StreamClient* sender = nullptr;
  TestClient client(server.address(), {},
                    [&](const DecodedFrame& frame) { sender->Send(frame.header, frame.payload); });
  sender = client.operator->();
  for (int i = 0; i < kFrames; ++i) sender->Send(DataHeader(0, large.size()), large);
  client.WaitForFrames(2 * kFrames);
  server.Stop();
  EXPECT_FALSE(client.WaitForBreak().ok());
  for (const auto& [id, closed] : server.events().Now().closed)
    EXPECT_THAT(closed, SizeIs(1)) << id;
  EXPECT_THAT(server.events().Now().closed, SizeIs(2));
}

TEST(GrpcServerTest, ErrorNamesPortInUse) {
  TestServer server;
  GrpcServer::Options options;
  options.address = server.address();
  GeneratedEchoService echo;
  GeneratedService service(&echo);
  const auto second = GrpcServer::Start(options, {&service});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(server.address()));
}

TEST(GrpcServerTest, RefusesAddressWithoutPort) {
  GrpcServer::Options options;
  options.address = "localhost";
  EXPECT_EQ(GrpcServer::Start(options, {}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(GrpcServerTest, StreamServerCanBeDestroyedIfPortIsInUse) {
  TestServer server;
  GrpcServer::Options options;
  options.address = server.address();
  TestServer handler;
  StreamServer streams({}, &handler);
  EXPECT_FALSE(GrpcServer::Start(options, {&streams}).ok());
}

// Answers each frame with one of the same size, and keeps nothing.
class EchoServer final : public StreamHandler {
 public:
  EchoServer() : streams_({}, this) {
    GrpcServer::Options options;
    options.grace = absl::ZeroDuration();
    auto server = GrpcServer::Start(options, {&streams_});
    if (!server.ok()) ADD_FAILURE() << server.status();
    server_ = *std::move(server);
  }

  std::string address() const { return absl::StrCat("127.0.0.1:", server_->port()); }

  void OnOpen(StreamId, const std::string&) override {}
  void OnFrames(StreamId stream, std::vector<DecodedFrame> frames) override {
    for (const DecodedFrame& frame : frames) streams_.Send(stream, frame.header, frame.payload);
  }
  void OnClosed(StreamId, const absl::Status&) override {}

 private:
  StreamServer streams_;
  std::unique_ptr<GrpcServer> server_;
};

// The connection measures its bandwidth while both sides write, and the answer to a measurement
// arrives after one side has begun to close it.
TEST(StreamTest, ClosesConnectionsThatMeasureBandwidth) {
  constexpr size_t kBytes = size_t{1} << 20;
  constexpr int kThreads = 6, kConnections = 80;
  const absl::Cord payload(std::string(kBytes, 'x'));
  EchoServer server;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (int connection = 0; connection < kConnections; ++connection) {
        Watched<size_t> received;
        StreamClient::Options options;
        options.address = server.address();
        options.shared_memory_bytes = 0;
        auto client = StreamClient::Connect(
            options, {[&](std::vector<DecodedFrame> frames) {
                        received.Change([&](size_t* count) { *count += frames.size(); });
                      },
                      [](const absl::Status&) {}});
        for (int i = 0; i < 12; ++i) client->Send(DataHeader(1, kBytes), payload);
        const size_t wanted = (thread + connection) % 6;
        received.WaitFor([=](size_t count) { return count >= wanted; });
        client.reset();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace sluice
