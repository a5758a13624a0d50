#include "services/transport/streams/message_stream.h"

#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/control.grpc.pb.h"
#include "services/transport/grpc_settings.h"
#include "services/transport/security/transport_security.h"
#include "services/transport/server/connection_guard.h"
#include "services/transport/server/grpc_server.h"
#include "services/transport/streams/coordinator_link.h"
#include "services/transport/streams/event_loop.h"
#include "services/transport/testing/watched.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using ServerSide = MessageStreamServer<v1::MemberMessage, v1::CoordinatorMessage>;
using ClientSide = MessageStreamClient<v1::MemberMessage, v1::CoordinatorMessage>;

v1::MemberMessage Heartbeat(uint64_t sequence) {
  v1::MemberMessage message;
  message.mutable_heartbeat()->set_sequence(sequence);
  return message;
}

v1::MemberMessage LargeRequest() {
  v1::MemberMessage message;
  message.mutable_ready()->mutable_table()->add_tensors()->set_name(
      std::string(size_t{1} << 20, 'x'));
  return message;
}

v1::CoordinatorMessage Reply(uint64_t sequence) {
  v1::CoordinatorMessage message;
  message.mutable_heartbeat_reply()->set_sequence(sequence);
  return message;
}

constexpr char kJoin[] = "/sluice.v1.Coordinator/Join";

struct ServerEvents {
  std::vector<uint64_t> opened;
  std::map<uint64_t, std::vector<v1::MemberMessage>> messages;
  std::map<uint64_t, std::vector<absl::Status>> closed;
};

class TestServer final : public ServerSide::Handler {
 public:
  using OnMessageFunction = std::function<void(ServerSide*, uint64_t, const v1::MemberMessage&)>;

  explicit TestServer(OnMessageFunction on_message = nullptr, MessageStreamOptions options = {},
                      GrpcServer::Options server_options = {})
      : on_message_(std::move(on_message)), streams_(kJoin, options, this) {
    server_options.grace = absl::Milliseconds(500);
    auto server = GrpcServer::Start(server_options, {&streams_});
    if (!server.ok()) ADD_FAILURE() << server.status();
    server_ = *std::move(server);
  }

  ServerSide* streams() { return &streams_; }
  std::string address() const { return absl::StrCat("127.0.0.1:", server_->port()); }
  void Stop() { server_->Stop(); }
  Watched<ServerEvents>& events() { return events_; }

  uint64_t WaitForStream() {
    return events_.WaitFor([](const ServerEvents& e) { return !e.opened.empty(); }).opened[0];
  }
  absl::Status WaitForClose(uint64_t stream) {
    return events_.WaitFor([=](const ServerEvents& e) { return e.closed.count(stream) > 0; })
        .closed[stream]
        .front();
  }

  void OnOpen(uint64_t stream, const std::string& peer) override {
    EXPECT_FALSE(peer.empty());
    events_.Change([&](ServerEvents* e) { e->opened.push_back(stream); });
  }
  void OnMessage(uint64_t stream, v1::MemberMessage message) override {
    if (on_message_) on_message_(&streams_, stream, message);
    events_.Change([&](ServerEvents* e) { e->messages[stream].push_back(std::move(message)); });
  }
  void OnClosed(uint64_t stream, const absl::Status& why) override {
    events_.Change([&](ServerEvents* e) { e->closed[stream].push_back(why); });
  }

 private:
  const OnMessageFunction on_message_;
  Watched<ServerEvents> events_;
  ServerSide streams_;
  std::unique_ptr<GrpcServer> server_;
};

struct ClientEvents {
  std::vector<v1::CoordinatorMessage> messages;
  std::vector<absl::Status> broken;
};

class TestClient {
 public:
  explicit TestClient(const std::string& address, size_t max_message_bytes = 0) {
    ChannelOptions options;
    options.address = address;
    options.max_message_bytes = max_message_bytes;
    stub_ = v1::Coordinator::NewStub(MakeChannel(options));
    stream_ = std::make_unique<ClientSide>(
        MessageStreamOptions(), &loop_,
        [this](auto* context, auto* queue) { return stub_->PrepareAsyncJoin(context, queue); },
        ClientSide::Callbacks{[this](v1::CoordinatorMessage message) {
                                events_.Change([&](ClientEvents* e) {
                                  e->messages.push_back(std::move(message));
                                });
                              },
                              [this](const absl::Status& why) {
                                events_.Change([&](ClientEvents* e) { e->broken.push_back(why); });
                              }});
  }

  ClientSide* operator->() { return stream_.get(); }
  void Destroy() { stream_ = nullptr; }
  Watched<ClientEvents>& events() { return events_; }

  std::vector<v1::CoordinatorMessage> WaitForMessages(size_t count) {
    return events_.WaitFor([=](const ClientEvents& e) { return e.messages.size() >= count; })
        .messages;
  }
  absl::Status WaitForBreak() {
    return events_.WaitFor([](const ClientEvents& e) { return !e.broken.empty(); }).broken.front();
  }

 private:
  Watched<ClientEvents> events_;
  EventLoop loop_{"test"};
  std::unique_ptr<v1::Coordinator::Stub> stub_;
  std::unique_ptr<ClientSide> stream_;
};

void Answer(ServerSide* streams, uint64_t stream, const v1::MemberMessage& message) {
  streams->Send(stream, Reply(message.heartbeat().sequence()));
}

TEST(MessageStreamTest, DeliversMessagesFromManyThreadsInOrderBothWays) {
  constexpr int kThreads = 4;
  constexpr uint64_t kMessages = 500;
  TestServer server(Answer);
  TestClient client(server.address());
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&client, t] {
      for (uint64_t i = 0; i < kMessages; ++i) client->Send(Heartbeat(t * kMessages + i));
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<uint64_t> next(kThreads, 0);
  for (const auto& message : client.WaitForMessages(kThreads * kMessages)) {
    const uint64_t sequence = message.heartbeat_reply().sequence();
    EXPECT_EQ(sequence % kMessages, next[sequence / kMessages]++);
  }
}

TEST(MessageStreamTest, CloseDeliversEarlierMessagesAndStatus) {
  TestServer server([](ServerSide* streams, uint64_t stream, const v1::MemberMessage&) {
    for (uint64_t i = 0; i < 50; ++i) streams->Send(stream, Reply(i));
    streams->Close(stream, absl::PermissionDeniedError("expelled"));
    streams->Send(stream, Reply(1000));
  });
  TestClient client(server.address());
  client->Send(Heartbeat(0));
  EXPECT_EQ(client.WaitForBreak(), absl::PermissionDeniedError("expelled"));
  EXPECT_THAT(client.events().Now().messages, SizeIs(50));
  EXPECT_EQ(server.WaitForClose(server.WaitForStream()), absl::PermissionDeniedError("expelled"));
}

// Regression: a message of 16 MiB took a gigabyte, and the thread that parsed it several seconds.
TEST(MessageStreamTest, ClosesStreamOfMessageThatTakesTooMuchMemory) {
  TestServer server(Answer);
  TestClient client(server.address());
  client->Send(Heartbeat(1));
  v1::MemberMessage message;
  for (int i = 0; i < 500000; ++i) message.mutable_ready()->mutable_table()->add_tensors();
  ASSERT_LT(message.ByteSizeLong(), kMaxControlMessageBytes);
  client->Send(std::move(message));
  const absl::Status closed = client.WaitForBreak();
  EXPECT_EQ(closed.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(closed.message()), HasSubstr("kMaxParsedBytes"));
  const uint64_t stream = server.WaitForStream();
  EXPECT_THAT(server.events().Now().messages[stream], SizeIs(1));
}

// The guard must know of every message: it disconnects a client whose bytes belong to none.
TEST(MessageStreamTest, KeepsClientThatSendsManyMessages) {
  Watched<std::vector<Disconnection>> disconnected;
  GrpcServer::Options options;
  options.credentials = security::ServerCredentialsOf(nullptr, nullptr);
  options.guard.on_disconnected = [&](const Disconnection& disconnection) {
    disconnected.Change([&](auto* all) { all->push_back(disconnection); });
  };
  Watched<int> received;
  TestServer server(
      [&](ServerSide*, uint64_t, const v1::MemberMessage&) {
        received.Change([](int* count) { ++*count; });
      },
      {}, options);
  TestClient client(server.address());

  constexpr int kMessages = 100;
  for (int i = 0; i < kMessages; ++i) client->Send(LargeRequest());
  received.WaitFor([](int count) { return count == kMessages; });
  EXPECT_THAT(disconnected.Now(), IsEmpty());
}

// Regression: gRPC encodes such texts in three times as many bytes, and the client received neither
// the code nor the text.
TEST(MessageStreamTest, CloseDeliversStatusWithLongTextOfAnyCharacters) {
  for (const char* piece : {"x", "ä", "\n", "%", "line of a traceback\n  100 % größer\n"}) {
    std::string text;
    while (text.size() < 20000) text += piece;
    TestServer server([&](ServerSide* streams, uint64_t stream, const v1::MemberMessage&) {
      streams->Close(stream, absl::PermissionDeniedError(text));
    });
    TestClient client(server.address());
    client->Send(Heartbeat(0));
    const absl::Status why = client.WaitForBreak();
    EXPECT_EQ(why.code(), absl::StatusCode::kPermissionDenied) << piece << ": " << why;
    EXPECT_GT(why.message().size(), 2000u) << piece;
    EXPECT_EQ(why.message(), absl::string_view(text).substr(0, why.message().size()));
  }
}

// gRPC ends the call on its own and does not always report this to the read: the server must not
// take it for a client that has finished.
TEST(MessageStreamTest, ReportsMessageOverTheLimitAsFailureOnBothSides) {
  TestServer server(Answer);
  TestClient client(server.address(), 2 * kMaxControlMessageBytes);
  client->Send(Heartbeat(1));
  v1::MemberMessage message;
  std::string* name = message.mutable_ready()->mutable_table()->add_tensors()->mutable_name();
  while (message.ByteSizeLong() <= kMaxControlMessageBytes) {
    name->append(kMaxControlMessageBytes + 1 - message.ByteSizeLong(), 'x');
  }
  while (message.ByteSizeLong() > kMaxControlMessageBytes + 1) name->pop_back();
  ASSERT_EQ(message.ByteSizeLong(), kMaxControlMessageBytes + 1);

  client->Send(std::move(message));
  EXPECT_EQ(client.WaitForBreak().code(), absl::StatusCode::kResourceExhausted);
  const uint64_t stream = server.WaitForStream();
  EXPECT_FALSE(server.WaitForClose(stream).ok());
  EXPECT_THAT(server.events().Now().messages[stream], SizeIs(1));
}

TEST(MessageStreamTest, ReportsLostClientOnceAndToleratesSendsToIt) {
  TestServer server;
  {
    TestClient client(server.address());
    client->Send(Heartbeat(0));
    server.WaitForStream();
  }
  const uint64_t stream = server.WaitForStream();
  EXPECT_EQ(server.WaitForClose(stream).code(), absl::StatusCode::kUnavailable);
  server.streams()->Send(stream, Reply(1));
  server.streams()->Close(stream, absl::OkStatus());
  server.Stop();
  EXPECT_THAT(server.events().Now().closed[stream], SizeIs(1));
}

TEST(MessageStreamTest, ReportsFinishedClientAsDone) {
  TestServer server(Answer);
  TestClient client(server.address());
  client->Send(Heartbeat(0));
  client->Finish();
  EXPECT_TRUE(client.WaitForBreak().ok());
  EXPECT_THAT(client.events().Now().messages, SizeIs(1));
  EXPECT_TRUE(server.WaitForClose(server.WaitForStream()).ok());
}

TEST(MessageStreamTest, ReportsStoppedServerToClientsOnce) {
  auto server = std::make_unique<TestServer>(Answer);
  TestClient client(server->address());
  client->Send(Heartbeat(0));
  client.WaitForMessages(1);
  server->Stop();
  EXPECT_THAT(server->events().Now().closed[1], SizeIs(1));
  server = nullptr;
  EXPECT_EQ(client.WaitForBreak().code(), absl::StatusCode::kUnavailable);
  client->Send(Heartbeat(1));
  client.Destroy();
  EXPECT_THAT(client.events().Now().broken, SizeIs(1));
}

TEST(MessageStreamTest, ClientBreaksOnceWithoutServer) {
  std::string address;
  {
    TestServer server;
    address = server.address();
  }
  TestClient client(address);
  client->Send(Heartbeat(0));
  EXPECT_EQ(client.WaitForBreak().code(), absl::StatusCode::kUnavailable);
  client.Destroy();
  EXPECT_THAT(client.events().Now().broken, SizeIs(1));
}

// Regression: gRPC lost the cancellation of about every second such stream, and the destructor
// waited for its end forever.
TEST(MessageStreamTest, DestroyedClientEndsAfterLargeMessages) {
  constexpr int kLarge = 5;
  Watched<int> received;
  TestServer server([&](ServerSide*, uint64_t, const v1::MemberMessage&) {
    received.Change([](int* count) { ++*count; });
  });
  for (int round = 1; round <= 10; ++round) {
    TestClient client(server.address());
    for (int i = 0; i < kLarge; ++i) client->Send(LargeRequest());
    received.WaitFor([&](int count) { return count == round * kLarge; });
  }
}

TEST(MessageStreamTest, DestroyedClientMakesNoCallback) {
  TestServer server(Answer);
  TestClient client(server.address());
  client->Send(Heartbeat(0));
  client.WaitForMessages(1);
  client.Destroy();
  EXPECT_THAT(client.events().Now().broken, IsEmpty());
}

// A generated client that opens a stream and does not read.
class SilentReader {
 public:
  explicit SilentReader(const std::string& address)
      : stub_(v1::Coordinator::NewStub(
            grpc::CreateChannel(address, grpc::InsecureChannelCredentials()))),
        stream_(stub_->Join(&context_)) {
    stream_->Write(Heartbeat(0));
  }
  ~SilentReader() {
    context_.TryCancel();
    stream_->Finish();
  }

 private:
  std::unique_ptr<v1::Coordinator::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::MemberMessage, v1::CoordinatorMessage>> stream_;
};

v1::CoordinatorMessage LargeMessage() {
  v1::CoordinatorMessage message;
  message.mutable_refusal()->set_reason(std::string(1 << 20, 'x'));
  return message;
}

TEST(MessageStreamTest, PeerThatDoesNotReadBlocksNoThreadAndLosesItsStreamAtBound) {
  MessageStreamOptions options;
  options.max_queued_messages = 40;
  options.close_timeout = absl::Milliseconds(10);
  TestServer server(Answer, options);
  SilentReader silent(server.address());
  const uint64_t stream = server.WaitForStream();
  for (int i = 0; i < 100; ++i) server.streams()->Send(stream, LargeMessage());
  EXPECT_EQ(server.WaitForClose(stream).code(), absl::StatusCode::kResourceExhausted);

  TestClient good(server.address());
  good->Send(Heartbeat(1));
  good.WaitForMessages(1);
}

TEST(MessageStreamTest, CancelsClosedStreamIfPeerDoesNotRead) {
  MessageStreamOptions options;
  options.close_timeout = absl::Milliseconds(10);
  TestServer server(nullptr, options);
  SilentReader silent(server.address());
  const uint64_t stream = server.WaitForStream();
  for (int i = 0; i < 40; ++i) server.streams()->Send(stream, LargeMessage());
  server.streams()->Close(stream, absl::AbortedError("expelled"));
  EXPECT_EQ(server.WaitForClose(stream).code(), absl::StatusCode::kAborted);
}

TEST(MessageStreamTest, ServerUnderTrafficStopsWithinGrace) {
  TestServer server(Answer);
  SilentReader silent(server.address());
  const uint64_t stream = server.WaitForStream();
  for (int i = 0; i < 40; ++i) server.streams()->Send(stream, LargeMessage());
  TestClient client(server.address());
  std::thread sender([&] {
    bool broken = false;
    for (uint64_t i = 0; !broken; ++i) {
      client->Send(Heartbeat(i));
      broken = !client.events()
                    .WaitFor([=](const ClientEvents& e) {
                      return !e.broken.empty() || e.messages.size() > i;
                    })
                    .broken.empty();
    }
  });
  client.WaitForMessages(10);
  server.Stop();
  EXPECT_FALSE(client.WaitForBreak().ok());
  sender.join();
  const auto closed = server.events().Now().closed;
  EXPECT_THAT(closed, SizeIs(2));
  for (const auto& [id, reasons] : closed) EXPECT_THAT(reasons, SizeIs(1)) << id;
}

// The dropped stream may lead to an older coordinator, which must not get later messages.
TEST(CoordinatorLinkTest, SendsNothingOnDroppedStream) {
  TestServer server(Answer);
  Watched<bool> answered;
  EventLoop loop("test");
  Watched<CoordinatorLink*> started;
  int streams = 0;  // on the link's thread
  const std::unique_ptr<CoordinatorLink> owner = CoordinatorLink::Start(
      {.address = server.address(), .loop = &loop},
      {[&] {
         CoordinatorLink* const link =
             started.WaitFor([](const CoordinatorLink* link) { return link != nullptr; });
         link->Send(Heartbeat(++streams));
         if (streams > 1) return;
         // The stream is open, and its thread cannot end it during this call.
         answered.WaitFor([](bool there) { return there; });
         link->Reconnect();
         link->Send(Heartbeat(1000));
         link->Send(Heartbeat(1001));
       },
       [&](const v1::CoordinatorMessage&) { answered.Change([](bool* there) { *there = true; }); },
       [](const absl::Status&) {}});
  started.Change([&](CoordinatorLink** link) { *link = owner.get(); });
  const auto messages =
      server.events()
          .WaitFor([](const ServerEvents& e) {
            return e.opened.size() > 1 && e.closed.size() == 1 && e.messages.count(e.opened[1]) > 0;
          })
          .messages;
  for (const auto& [stream, received] : messages) {
    ASSERT_THAT(received, SizeIs(1));
    EXPECT_LT(received[0].heartbeat().sequence(), 1000u);
  }
}

}  // namespace
}  // namespace sluice
