// Measures the transport alone: a server and a client, two processes on loopback, over the streams
// that workers and shards use. Without the protocol: the server adds received blocks to its array
// and sends that part of the array back.
//
//   bazel run -c opt //bench:transport_benchmark -- --rounds=20

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "services/common/arithmetic/cord_reader.h"
#include "services/common/threads/mutex.h"
#include "services/common/threads/serial_executor.h"
#include "services/transport/frames/frame_wire.h"
#include "services/transport/grpc_settings.h"
#include "services/transport/server/grpc_server.h"
#include "services/transport/streams/stream_client.h"
#include "services/transport/streams/stream_server.h"

namespace sluice {
namespace {

constexpr size_t kSmallBytes = 64;
constexpr size_t kInlineBytes = 64 << 10;

struct Flags {
  size_t mib = 100;
  size_t chunk_kib = 2048;
  int rounds = 20;
  int small_rounds = 3000;
  bool experiments = true;
  bool compute = true;
};

double Milliseconds(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

v1::Header WithBlock(bool push, uint32_t block, size_t bytes) {
  v1::Header header;
  v1::BlockHeader* out =
      push ? header.mutable_push()->add_blocks() : header.mutable_data()->add_blocks();
  out->set_block(block);
  out->set_payload_bytes(bytes);
  return header;
}

// Adds each pushed block to its part of the array, and replies with that part.
class AddingServer final : public StreamHandler {
 public:
  explicit AddingServer(const Flags& flags)
      : flags_(flags),
        array_((flags.mib << 20) / sizeof(float), 0.0F),
        streams_({}, this),
        executor_({}) {}

  StreamServer* streams() { return &streams_; }
  void Stop() { executor_.Stop(); }

  void OnOpen(StreamId, const std::string&) override {}
  void OnClosed(StreamId, const absl::Status&) override {}
  void OnFrames(StreamId stream, std::vector<DecodedFrame> frames) override {
    size_t bytes = 0;
    for (const DecodedFrame& frame : frames) bytes += frame.payload.size();
    auto task = [this, stream, frames = std::move(frames)]() mutable {
      for (DecodedFrame& frame : frames) Handle(stream, frame.header, std::move(frame.payload));
    };
    if (bytes <= kInlineBytes) {
      executor_.Run(std::move(task), bytes);
    } else {
      executor_.Post(std::move(task), bytes);
    }
  }

 private:
  void Handle(StreamId stream, const v1::Header& header, absl::Cord payload) {
    const uint32_t block = header.push().blocks(0).block();
    float* part = array_.data() + block * (flags_.chunk_kib << 10) / sizeof(float);
    const size_t bytes = payload.size();
    if (flags_.compute) {
      (void)AddPayload<float>(payload, absl::MakeSpan(part, bytes / sizeof(float)));
    }
    payload.Clear();
    const absl::string_view memory(reinterpret_cast<const char*>(part), bytes);
    streams_.Send(stream, WithBlock(false, block, bytes),
                  absl::MakeCordFromExternal(memory, [] {}));
  }

  const Flags flags_;
  std::vector<float> array_;
  StreamServer streams_;
  SerialExecutor executor_;
};

[[noreturn]] void Serve(const Flags& flags, int port_pipe) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  ConfigureGrpcProcess({flags.experiments});
  AddingServer server(flags);
  auto grpc_server = GrpcServer::Start({}, {server.streams()});
  if (!grpc_server.ok()) std::exit(1);
  const int port = (*grpc_server)->port();
  if (write(port_pipe, &port, sizeof(port)) != sizeof(port)) std::exit(1);
  while (true) pause();
}

class Client {
 public:
  Client(const Flags& flags, int port)
      : flags_(flags),
        out_((flags.mib << 20) / sizeof(float), 1.0F),
        in_((flags.mib << 20) / sizeof(float)) {
    StreamClient::Options options;
    options.address = absl::StrCat("127.0.0.1:", port);
    stream_ = StreamClient::Connect(options, {[this](const std::vector<DecodedFrame>& frames) {
                                                for (const DecodedFrame& frame : frames)
                                                  OnFrame(frame.header, frame.payload);
                                              },
                                              [](const absl::Status& why) {
                                                std::fprintf(stderr, "broken: %s\n",
                                                             std::string(why.message()).c_str());
                                                std::exit(1);
                                              }});
  }

  // Pushes the whole array in blocks of `block_bytes` and waits for all replies; returns
  // milliseconds.
  double Round(size_t bytes, size_t block_bytes) {
    const auto start = std::chrono::steady_clock::now();
    for (size_t offset = 0, block = 0; offset < bytes; offset += block_bytes, ++block) {
      const size_t size = std::min(block_bytes, bytes - offset);
      const absl::string_view memory(reinterpret_cast<const char*>(out_.data()) + offset, size);
      stream_->Send(WithBlock(true, block, size), absl::MakeCordFromExternal(memory, [] {}));
    }
    MutexLock lock(&mutex_);
    while (received_ < bytes) changed_.Wait(&mutex_);
    received_ = 0;
    return Milliseconds(std::chrono::steady_clock::now() - start);
  }

  // Each round must have added to every element once.
  bool Check(float value) const {
    return std::all_of(in_.begin(), in_.end(), [value](float x) { return x == value; });
  }

 private:
  void OnFrame(const v1::Header& header, const absl::Cord& payload) {
    const size_t offset = header.data().blocks(0).block() * (flags_.chunk_kib << 10);
    if (flags_.compute) {
      (void)CopyPayload(
          payload, absl::MakeSpan(reinterpret_cast<char*>(in_.data()) + offset, payload.size()));
    }
    MutexLock lock(&mutex_);
    received_ += payload.size();
    changed_.Signal();
  }

  const Flags flags_;
  std::vector<float> out_;
  std::vector<float> in_;
  Mutex mutex_;  // protects received_
  CondVar changed_;
  size_t received_ ABSL_GUARDED_BY(mutex_) = 0;
  std::unique_ptr<StreamClient> stream_;
};

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app("Throughput and latency of the transport on loopback");
  app.add_option("--mib", flags.mib, "size of the array");
  app.add_option("--chunk_kib", flags.chunk_kib, "payload of one frame");
  app.add_option("--rounds", flags.rounds, "rounds of the whole array");
  app.add_option("--small_rounds", flags.small_rounds, "rounds of 64 bytes");
  app.add_flag("--experiments,!--no-experiments", flags.experiments, "gRPC's experiments");
  app.add_flag("--compute,!--no-compute", flags.compute, "add and copy received blocks");
  CLI11_PARSE(app, argc, argv);

  int ports[2];
  if (pipe(ports) != 0) return 1;
  const pid_t child = fork();  // before gRPC and any thread
  if (child == 0) Serve(flags, ports[1]);
  int port = 0;
  if (read(ports[0], &port, sizeof(port)) != sizeof(port)) return 1;

  ConfigureGrpcProcess({flags.experiments});
  auto client = std::make_unique<Client>(flags, port);
  std::vector<double> large;
  bool right = true;
  for (int round = 1; round <= flags.rounds; ++round) {
    large.push_back(client->Round(flags.mib << 20, flags.chunk_kib << 10));
    right = right && (!flags.compute || client->Check(static_cast<float>(round)));
  }
  std::vector<double> small;
  for (int i = 0; i < flags.small_rounds; ++i)
    small.push_back(client->Round(kSmallBytes, kSmallBytes));
  std::printf("%zu MiB push+pull: median %.1f ms, best %.1f ms, worst %.1f ms%s\n", flags.mib,
              Median(large), *std::min_element(large.begin(), large.end()),
              *std::max_element(large.begin(), large.end()), right ? "" : ", WRONG VALUES");
  std::printf("%zu B round trip: median %.1f us, best %.1f us\n", kSmallBytes, Median(small) * 1000,
              *std::min_element(small.begin(), small.end()) * 1000);
  client = nullptr;
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  return right ? 0 : 1;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) { return sluice::Main(argc, argv); }
