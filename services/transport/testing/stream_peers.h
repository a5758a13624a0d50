// The two ends of streams in tests, which record what happens to them, and a peer made from
// proto/frame.proto.
#ifndef SLUICE_SERVICES_TRANSPORT_TESTING_STREAM_PEERS_H_
#define SLUICE_SERVICES_TRANSPORT_TESTING_STREAM_PEERS_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "proto/frame.grpc.pb.h"
#include "proto/frame.pb.h"
#include "services/transport/frames/frame_wire.h"
#include "services/transport/server/grpc_server.h"
#include "services/transport/streams/stream_client.h"
#include "services/transport/streams/stream_server.h"
#include "services/transport/testing/watched.h"

namespace sluice {

v1::Header PullHeader(uint64_t version);
v1::Header DataHeader(uint64_t version, size_t bytes);

struct ServerEvents {
  std::vector<StreamId> opened;
  std::map<StreamId, std::vector<DecodedFrame>> frames;
  std::vector<size_t> batches;  // frames of each message
  std::map<StreamId, std::vector<absl::Status>> closed;
};

// A server that records events and answers as the test specifies.
class TestServer final : public StreamHandler {
 public:
  using OnFrameFunction = std::function<void(StreamServer*, StreamId, const DecodedFrame&)>;

  explicit TestServer(OnFrameFunction on_frame = nullptr, StreamServer::Options options = {},
                      absl::Duration grace = absl::Seconds(2))
      : on_frame_(std::move(on_frame)), streams_(std::move(options), this) {
    GrpcServer::Options server_options;
    server_options.grace = grace;
    auto server = GrpcServer::Start(server_options, {&streams_});
    if (!server.ok()) ADD_FAILURE() << server.status();
    server_ = *std::move(server);
  }

  StreamServer* streams() { return &streams_; }
  std::string address() const { return absl::StrCat("127.0.0.1:", server_->port()); }
  void Stop() { server_->Stop(); }
  Watched<ServerEvents>& events() { return events_; }

  StreamId WaitForStream(size_t number = 1) {
    return events_.WaitFor([=](const ServerEvents& e) { return e.opened.size() >= number; })
        .opened[number - 1];
  }
  absl::Status WaitForClose(StreamId stream) {
    return events_.WaitFor([=](const ServerEvents& e) { return e.closed.count(stream) > 0; })
        .closed[stream]
        .front();
  }

  void OnOpen(StreamId stream, const std::string& peer) override {
    EXPECT_FALSE(peer.empty());
    events_.Change([&](ServerEvents* e) { e->opened.push_back(stream); });
  }
  void OnFrames(StreamId stream, std::vector<DecodedFrame> frames) override {
    for (const DecodedFrame& frame : frames) {
      if (on_frame_) on_frame_(&streams_, stream, frame);
    }
    events_.Change([&](ServerEvents* e) {
      e->batches.push_back(frames.size());
      for (DecodedFrame& frame : frames) e->frames[stream].push_back(std::move(frame));
    });
  }
  void OnClosed(StreamId stream, const absl::Status& why) override {
    events_.Change([&](ServerEvents* e) { e->closed[stream].push_back(why); });
  }

 private:
  const OnFrameFunction on_frame_;
  Watched<ServerEvents> events_;
  StreamServer streams_;
  std::unique_ptr<GrpcServer> server_;
};

struct ClientEvents {
  std::vector<DecodedFrame> frames;
  std::vector<size_t> batches;  // frames of each message
  std::vector<absl::Status> broken;
};

class TestClient {
 public:
  using OnFrameFunction = std::function<void(const DecodedFrame&)>;

  explicit TestClient(const std::string& address, StreamClient::Options options = {},
                      const OnFrameFunction& on_frame = nullptr) {
    options.address = address;
    stream_ = StreamClient::Connect(
        options, {[this, on_frame](std::vector<DecodedFrame> frames) {
                    for (const DecodedFrame& frame : frames) {
                      if (on_frame) on_frame(frame);
                    }
                    events_.Change([&](ClientEvents* e) {
                      e->batches.push_back(frames.size());
                      for (DecodedFrame& frame : frames) e->frames.push_back(std::move(frame));
                    });
                  },
                  [this](const absl::Status& why) {
                    events_.Change([&](ClientEvents* e) { e->broken.push_back(why); });
                  }});
  }

  StreamClient* operator->() { return stream_.get(); }
  void Destroy() { stream_ = nullptr; }
  Watched<ClientEvents>& events() { return events_; }

  std::vector<DecodedFrame> WaitForFrames(size_t count) {
    return events_.WaitFor([=](const ClientEvents& e) { return e.frames.size() >= count; }).frames;
  }
  absl::Status WaitForBreak() {
    return events_.WaitFor([](const ClientEvents& e) { return !e.broken.empty(); }).broken.front();
  }

 private:
  Watched<ClientEvents> events_;
  std::unique_ptr<StreamClient> stream_;
};

void Echo(StreamServer* streams, StreamId stream, const DecodedFrame& frame);

std::unique_ptr<v1::ParameterServer::Stub> GeneratedStub(const std::string& address);

}  // namespace sluice

#endif  // SLUICE_SERVICES_TRANSPORT_TESTING_STREAM_PEERS_H_
