// A WorkerCore with hand-driven shards and coordinator around it, for tests.
#ifndef SLUICE_SERVICES_WORKER_CORE_TESTING_WORKER_TEST_HARNESS_H_
#define SLUICE_SERVICES_WORKER_CORE_TESTING_WORKER_TEST_HARNESS_H_

#include <cstdint>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "services/protocol/layout.h"
#include "services/worker/core/worker_core.h"

namespace sluice::worker {

inline constexpr uint64_t kSelf = 100;    // incarnation of the worker under test
inline constexpr uint64_t kOther = 101;   // of another worker
inline constexpr uint64_t kShardA = 201;  // owns partition 0
inline constexpr uint64_t kShardB = 202;  // owns partition 1

inline absl::Cord Number(double value) {
  return absl::Cord(std::string(reinterpret_cast<const char*>(&value), sizeof(value)));
}

inline double ValueOf(const absl::Cord& cord) {
  const std::string bytes(cord);
  double value = 0;
  EXPECT_EQ(bytes.size(), sizeof(value));
  std::memcpy(&value, bytes.data(), std::min(bytes.size(), sizeof(value)));
  return value;
}

// Two tensors of one float64 each, on two partitions, on two shards.
class WorkerHarness {
 public:
  explicit WorkerHarness(v1::Mode mode = v1::SYNCHRONOUS, bool bit_exact = false,
                         const WorkerRules* rules = nullptr)
      : core_(MakeOptions(), rules) {
    job_.mutable_training()->set_mode(mode);
    job_.mutable_training()->set_global_batch_size(8);
    job_.mutable_training()->set_microbatch_size(1);
    job_.mutable_training()->set_steps(1000);
    job_.mutable_training()->set_bit_exact(bit_exact);
    for (const char* name : {"a", "b"}) {
      v1::TensorSpec& tensor = *table_.add_tensors();
      tensor.set_name(name);
      tensor.add_shape(1);
      tensor.set_dtype(v1::FLOAT64);
    }
    CutTable();
  }
  // Recomputes the layout after a change of the table, with one block for each tensor.
  void CutTable() {
    layout_ = *MakeLayout(table_, 2);
    for (int block = 0; block < layout_.blocks_size(); ++block) {
      block_of_[layout_.blocks(block).partition()] = static_cast<uint32_t>(block);
      tensor_of_[layout_.blocks(block).partition()] = layout_.blocks(block).tensor();
    }
  }

  // ---- inputs

  void Start() {
    core_.OnCoordinatorConnected(now_);
    Do();
    v1::CoordinatorMessage message;
    *message.mutable_registered()->mutable_job() = job_;
    Deliver(message);
    v1::Ready ready;
    *ready.mutable_table() = table_;
    ready.set_training_samples(1000);
    ready.set_evaluation_samples(10);
    ready.set_smallest_batch(smallest_batch_);
    core_.OnModelReady(std::move(ready), now_);
    Do();
  }

  struct Member {
    uint64_t incarnation;
    std::vector<std::pair<uint64_t, uint64_t>> microbatches;
  };
  v1::View MakeView(uint64_t number, uint64_t first_step, const std::vector<Member>& members,
                    uint64_t previous, const std::vector<uint64_t>& shards = {kShardA, kShardB}) {
    v1::View view;
    view.mutable_id()->set_attempt(1);
    view.mutable_id()->mutable_term()->set_counter(1);
    view.mutable_id()->set_number(number);
    if (previous != 0) {
      *view.mutable_previous() = view.id();
      view.mutable_previous()->set_number(previous);
    }
    view.set_mode(job_.training().mode());
    view.set_first_step(first_step);
    for (const Member& member : members) {
      v1::View::Member& added = *view.add_workers();
      added.mutable_process()->set_incarnation(member.incarnation);
      for (const auto& [begin, end] : member.microbatches) {
        v1::Range& range = *added.add_microbatches();
        range.set_begin(begin);
        range.set_end(end);
      }
    }
    for (uint64_t shard : shards) {
      view.add_shards()->mutable_process()->set_incarnation(shard);
      view.mutable_shards(view.shards_size() - 1)->set_address("host");
    }
    view.add_owner(0);
    view.add_owner(static_cast<uint32_t>(shards.size() - 1));
    return view;
  }
  void Install(const v1::View& view) {
    view_ = view;
    v1::CoordinatorMessage message;
    *message.mutable_new_view()->mutable_view() = view;
    *message.mutable_new_view()->mutable_table() = table_;
    *message.mutable_new_view()->mutable_layout() = layout_;
    Deliver(message);
  }
  void Deliver(const v1::CoordinatorMessage& message) {
    core_.OnCoordinatorMessage(message, now_);
    Do();
  }

  void Connect(ShardId shard, uint64_t window = 1 << 20) {
    ASSERT_EQ(connecting_.count(shard), 1u) << "the core has not requested a stream";
    connecting_.erase(shard);
    core_.OnShardConnected(shard, now_);
    Do();
    ASSERT_FALSE(sent_[shard].empty());
    EXPECT_TRUE(sent_[shard].back().header.has_hello());
    sent_[shard].clear();
    v1::Header header;
    header.mutable_hello_reply()->set_window_bytes(window);
    header.mutable_hello_reply()->set_takes_rows(takes_rows_);
    Receive(shard, header);
  }
  void Break(ShardId shard) {
    sent_[shard].clear();
    core_.OnShardDisconnected(shard, absl::UnavailableError("cut"), now_);
    Do();
    Advance(absl::Seconds(1));
  }
  void ConnectAll() {
    Connect(kShardA);
    Connect(kShardB);
  }
  void Receive(ShardId shard, v1::Header header, absl::Cord payload = {}) {
    if (header.body_case() != v1::Header::kHelloReply && !header.has_view()) {
      *header.mutable_view() = view_.id();
    }
    core_.OnShardFrame(shard, header, std::move(payload), now_);
    Do();
  }
  // A whole partition of one block.
  void ReceiveData(ShardId shard, uint64_t version, uint32_t partition, double value,
                   const v1::View* view = nullptr) {
    v1::Header header;
    if (view != nullptr) *header.mutable_view() = view->id();
    v1::Data& data = *header.mutable_data();
    data.set_version(version);
    data.set_partition(partition);
    data.set_last(true);
    data.add_blocks()->set_block(block_of_[partition]);
    data.mutable_blocks(0)->set_payload_bytes(8);
    Receive(shard, header, Number(value));
  }
  void ReceiveVersion(uint64_t version) {
    ReceiveData(kShardA, version, 0, static_cast<double>(version));
    ReceiveData(kShardB, version, 1, static_cast<double>(version));
  }
  void Advance(absl::Duration duration) {
    now_ += duration;
    core_.OnTick(now_);
    Do();
  }

  // ---- the compute thread: gradients of both tensors are `value`
  void FinishCompute(ComputeId id, double value, double loss_sum = 0) {
    core_.OnGradient(id, 0, Number(value), now_);
    Do();
    core_.OnGradient(id, 1, Number(-value), now_);
    Do();
    ComputeResult result;
    result.samples = computes_.at(id).positions.size();
    result.loss_sum = loss_sum;
    core_.OnComputed(id, result, now_);
    Do();
  }
  void FinishAllComputes(double value = 1) {
    std::vector<ComputeId> ids;
    for (const auto& [id, compute] : computes_) ids.push_back(id);
    for (ComputeId id : ids) {
      FinishCompute(id, value);
      computes_.erase(id);
    }
  }
  std::vector<std::pair<uint64_t, uint64_t>> Positions() const {
    std::vector<std::pair<uint64_t, uint64_t>> positions;
    for (const auto& [id, compute] : computes_) {
      positions.emplace_back(compute.positions.begin, compute.positions.end);
    }
    return positions;
  }

  // ---- outputs
  // The times that the worker reported so far: push, wait, pull.
  std::vector<double> TimesReported() {
    Advance(absl::Seconds(1));
    std::vector<double> times(3);
    for (const v1::MemberMessage& message : sent_to_coordinator_) {
      times[0] += message.worker_progress().push_seconds();
      times[1] += message.worker_progress().wait_seconds();
      times[2] += message.worker_progress().pull_seconds();
    }
    return times;
  }
  // The first step that the worker reported.
  v1::WorkerProgress::Step StepReported() {
    Advance(absl::Seconds(1));
    for (const v1::MemberMessage& message : sent_to_coordinator_) {
      if (message.worker_progress().steps_size() > 0) return message.worker_progress().steps(0);
    }
    ADD_FAILURE() << "no step was reported";
    return {};
  }
  std::vector<SendFrame> TakeSent(ShardId shard) { return std::exchange(sent_[shard], {}); }
  std::vector<v1::Push> TakePushes(ShardId shard) {
    std::vector<v1::Push> pushes;
    for (const SendFrame& frame : TakeSent(shard)) {
      if (frame.header.has_push()) pushes.push_back(frame.header.push());
    }
    return pushes;
  }
  template <typename Has>
  int Count(ShardId shard, Has has) {
    int count = 0;
    for (const SendFrame& frame : sent_[shard]) count += has(frame.header) ? 1 : 0;
    return count;
  }

  void Do() {
    const WorkerActions actions = core_.TakeActions();
    for (const WorkerAction& action : actions) std::visit([this](const auto& a) { On(a); }, action);
  }

  uint32_t smallest_batch_ = 1;
  bool takes_rows_ = false;  // what shards announce
  v1::JobSpec job_;
  v1::TensorTable table_;
  v1::Layout layout_;
  v1::View view_;
  WorkerCore core_;
  absl::Time now_ = absl::FromUnixSeconds(1000);
  std::map<uint32_t, uint32_t> block_of_;   // partition -> block
  std::map<uint32_t, uint32_t> tensor_of_;  // partition -> tensor
  std::set<ShardId> connecting_;
  std::map<ShardId, std::vector<SendFrame>> sent_;
  std::vector<v1::MemberMessage> sent_to_coordinator_;
  std::map<ComputeId, Compute> computes_;  // not answered
  std::vector<FindRows> row_requests_;
  std::vector<ComputeId> cancelled_;
  std::vector<EvaluateSamples> evaluations_;
  std::vector<ComputeMetrics> computations_;
  std::vector<StoreBlock> stored_;
  std::vector<uint64_t> adopted_;
  std::vector<ReadInitialTensor> reads_;
  std::vector<std::string> disconnects_;
  std::vector<JoinGroup> joined_;
  int left_ = 0;
  std::vector<ReduceGradients> reduces_;
  std::vector<GiveSum> sums_;
  std::vector<Exit> exits_;

 private:
  static WorkerOptions MakeOptions() {
    WorkerOptions options;
    options.process.set_role(v1::WORKER);
    options.process.set_incarnation(kSelf);
    options.job = "default/job/uid";
    return options;
  }

  void On(const ConnectShard& action) { connecting_.insert(action.shard); }
  void On(const DisconnectShard& action) {
    connecting_.erase(action.shard);
    disconnects_.push_back(action.reason);
  }
  void On(const SendFrame& action) { sent_[action.shard].push_back(action); }
  void On(const SendToCoordinator& action) { sent_to_coordinator_.push_back(action.message); }
  void On(const OpenModel&) {}
  void On(const ReadInitialTensor& action) { reads_.push_back(action); }
  void On(const StoreBlock& action) { stored_.push_back(action); }
  void On(const AdoptVersion& action) {
    EXPECT_TRUE(computes_.empty()) << "the current buffer changes during a computation";
    adopted_.push_back(action.version);
  }
  void On(const Compute& action) { computes_[action.id] = action; }
  void On(const FindRows& action) { row_requests_.push_back(action); }
  void On(const CancelCompute& action) { cancelled_.push_back(action.id); }
  void On(const EvaluateSamples& action) { evaluations_.push_back(action); }
  void On(const ComputeMetrics& action) { computations_.push_back(action); }
  void On(const JoinGroup& action) { joined_.push_back(action); }
  void On(const LeaveGroup&) { ++left_; }
  void On(const ReduceGradients& action) { reduces_.push_back(action); }
  void On(const GiveSum& action) { sums_.push_back(action); }
  void On(const Exit& action) { exits_.push_back(action); }
};

}  // namespace sluice::worker

#endif  // SLUICE_SERVICES_WORKER_CORE_TESTING_WORKER_TEST_HARNESS_H_
