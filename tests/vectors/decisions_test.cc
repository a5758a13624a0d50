// The worker's core does, event for event, what decisions.json describes. The tests of the Python
// package read the same file, so both cores make the same decisions.

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "services/worker/core/worker_core.h"

namespace sluice::worker {
namespace {

using Json = nlohmann::json;

std::string Bytes(const Json& hex) { return absl::HexStringToBytes(hex.get<std::string>()); }

template <typename Message>
Message Parse(const Json& hex) {
  Message message;
  EXPECT_TRUE(message.ParseFromString(Bytes(hex)));
  return message;
}

template <typename Message>
std::string Hex(const Message& message) {
  return absl::BytesToHexString(message.SerializeAsString());
}

std::string Hex(const absl::Cord& cord) { return absl::BytesToHexString(std::string(cord)); }

const char* Name(ComputeEngine::Buffer buffer) {
  switch (buffer) {
    case ComputeEngine::Buffer::kCurrent:
      return "current";
    case ComputeEngine::Buffer::kIncoming:
      return "incoming";
    case ComputeEngine::Buffer::kEvaluation:
      break;
  }
  return "evaluation";
}

const char* Name(ExitReason reason) {
  switch (reason) {
    case ExitReason::kFinished:
      return "finished";
    case ExitReason::kLeft:
      return "left";
    case ExitReason::kExpelled:
      return "expelled";
    case ExitReason::kRefused:
      return "refused";
    case ExitReason::kFailed:
      break;
  }
  return "failed";
}

Json Describe(const ConnectShard& a) { return {"ConnectShard", a.shard, a.address}; }
Json Describe(const DisconnectShard& a) { return {"DisconnectShard", a.shard, a.reason}; }
Json Describe(const SendFrame& a) { return {"SendFrame", a.shard, Hex(a.header), Hex(a.payload)}; }
Json Describe(const SendToCoordinator& a) {
  return Json::array({"SendToCoordinator", Hex(a.message)});
}
Json Describe(const OpenModel& a) { return Json::array({"OpenModel", Hex(a.job)}); }
Json Describe(const ReadInitialTensor& a) {
  return {"ReadInitialTensor", Hex(a.init_id), a.tensor};
}
Json Describe(const StoreBlock& a) {
  return {"StoreBlock",  Name(a.buffer), a.tensor, a.offset, a.count, static_cast<int>(a.codec),
          Hex(a.payload)};
}
Json Describe(const AdoptVersion& a) { return Json::array({"AdoptVersion", a.version}); }
Json Describe(const Compute& a) {
  return {"Compute",         a.id,           a.step, a.first_microbatch, a.microbatch_size,
          a.positions.begin, a.positions.end};
}
// Python workers pull whole tables.
Json Describe(const FindRows& a) { return Json::array({"FindRows", a.id}); }
Json Describe(const CancelCompute& a) { return Json::array({"CancelCompute", a.id}); }
Json Describe(const EvaluateSamples& a) {
  return {"EvaluateSamples", a.id, Name(a.buffer), a.samples.begin, a.samples.end};
}
// Python workers do not sum gradients among themselves.
Json Describe(const JoinGroup&) { return Json::array({"JoinGroup"}); }
Json Describe(const LeaveGroup&) { return Json::array({"LeaveGroup"}); }
Json Describe(const ReduceGradients&) { return Json::array({"ReduceGradients"}); }
Json Describe(const Exit& a) { return {"Exit", Name(a.reason), a.message}; }

WorkerOptions Options() {
  WorkerOptions options;
  options.process.set_role(v1::WORKER);
  options.process.set_index(2);
  options.process.set_incarnation(100);
  options.job = "default/vectors/1";
  options.host = "here";
  options.pid = 7;
  return options;
}

ComputeResult ResultOf(const Json& event) {
  ComputeResult result;
  result.samples = event.at("samples");
  result.loss_sum = event.at("loss_sum");
  result.correct = event.at("correct");
  result.data_time = absl::Seconds(event.at("data_seconds").get<double>());
  result.compute_time = absl::Seconds(event.at("compute_seconds").get<double>());
  return result;
}

void Replay(WorkerCore& core, const Json& event) {
  const std::string kind = event.at("event");
  const absl::Time now = absl::UnixEpoch() + absl::Seconds(event.at("at").get<double>());
  if (kind == "coordinator_connected") return core.OnCoordinatorConnected(now);
  if (kind == "coordinator_broken") return core.OnCoordinatorDisconnected(now);
  if (kind == "coordinator_message") {
    return core.OnCoordinatorMessage(Parse<v1::CoordinatorMessage>(event.at("message")), now);
  }
  if (kind == "shard_connected") return core.OnShardConnected(event.at("shard"), now);
  if (kind == "shard_broken") {
    return core.OnShardDisconnected(event.at("shard"), absl::UnavailableError("cut"), now);
  }
  if (kind == "shard_frame") {
    return core.OnShardFrame(event.at("shard"), Parse<v1::Header>(event.at("header")),
                             absl::Cord(Bytes(event.at("payload"))), now);
  }
  if (kind == "model_ready") {
    return core.OnModelReady(Parse<v1::TensorTable>(event.at("table")),
                             event.at("training_samples"), event.at("evaluation_samples"), now);
  }
  if (kind == "initial_tensor") {
    return core.OnInitialTensor(Parse<v1::InitId>(event.at("init_id")), event.at("tensor"),
                                absl::Cord(Bytes(event.at("content"))), now);
  }
  if (kind == "tensor") {
    const ComputeId id = event.at("compute");
    const uint32_t tensor = event.at("tensor");
    if (event.at("gradient").is_null()) return core.OnNoGradient(id, tensor, now);
    return core.OnGradient(id, tensor, absl::Cord(Bytes(event.at("gradient"))), now);
  }
  if (kind == "computed") return core.OnComputed(event.at("compute"), ResultOf(event), now);
  if (kind == "evaluated") return core.OnEvaluated(event.at("compute"), ResultOf(event), now);
  if (kind == "leave") {
    return core.OnLeave(event.at("reason"), absl::Seconds(event.at("grace").get<double>()), now);
  }
  if (kind == "sent") return core.OnSent(now);
  EXPECT_EQ(kind, "tick");
  return core.OnTick(now);
}

TEST(DecisionVectorsTest, TheCoreDecidesAsInEveryCaseOfTheFile) {
  std::ifstream file("tests/vectors/decisions.json");
  const Json lives = Json::parse(file);
  ASSERT_GE(lives.size(), 5u);
  for (const Json& life : lives) {
    WorkerCore core(Options());
    int number = 0;
    for (const Json& event : life.at("events")) {
      Json done = Json::array();
      Replay(core, event);
      for (const WorkerAction& action : core.TakeActions()) {
        done.push_back(std::visit([](const auto& a) { return Describe(a); }, action));
      }
      ASSERT_EQ(done, event.at("actions"))
          << "life '" << life.at("name") << "', event " << number << ": " << event.at("event");
      ++number;
    }
  }
}

}  // namespace
}  // namespace sluice::worker
