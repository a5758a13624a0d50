// The core of one shard. The test acts as the coordinator, the workers and the other shards.
#ifndef SLUICE_SERVICES_PS_CORE_TESTING_SHARD_HARNESS_H_
#define SLUICE_SERVICES_PS_CORE_TESTING_SHARD_HARNESS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/time/time.h"
#include "proto/common.pb.h"
#include "proto/control.pb.h"
#include "proto/frame.pb.h"
#include "proto/job.pb.h"
#include "proto/model.pb.h"
#include "services/ps/core/shard_core.h"
#include "services/ps/core/state/partition.h"

namespace sluice::ps {

inline constexpr uint64_t kShardIncarnation = 5000;
inline constexpr uint64_t kOtherShardIncarnation = 5001;

absl::Cord CordOf(const std::vector<float>& values);
std::vector<float> FloatsOf(const absl::Cord& bytes);

// "w" (4 floats, partition 0 and block 0) and "b" (2 floats, partition 1 and block 1), both
// initialized to zeros. The optimizer is Add unless changed: a step adds the mean over its samples.
class ShardHarness {
 public:
  ShardHarness();

  // ---- the job; change it before PrepareState
  v1::JobSpec job;
  v1::TensorTable table;
  ShardOptions options;
  std::vector<uint32_t> owner = {0, 0};  // partition -> 0: this shard, 1: the other shard
  const ShardRules* rules = nullptr;

  ShardCore& core() { return *core_; }
  const v1::Layout& layout() const { return layout_; }
  absl::Time now = absl::UnixEpoch();

  // ---- the coordinator. `term` is the term's counter.
  void Connect();
  void Deliver(const v1::CoordinatorMessage& message);
  v1::PrepareState MakePrepareState(uint64_t number, uint64_t attempt = 1) const;
  void Prepare(uint64_t number, uint64_t attempt = 1);
  void Pause(uint64_t number, uint64_t term = 1, uint64_t attempt = 1);
  void PauseAfter(uint64_t step, uint64_t number);
  v1::View MakeView(uint64_t number, uint64_t first_step, const std::vector<uint64_t>& members,
                    uint64_t attempt = 1) const;
  v1::Install MakeInstall(const v1::View& view) const;
  void Install(const v1::View& view);
  // Pause, then install.
  void ChangeView(uint64_t number, uint64_t first_step, const std::vector<uint64_t>& members);
  // PrepareState, push version 0 (zeros, or `w` and `b`), and install view 1 at step 0.
  void Begin(const std::vector<uint64_t>& members);

  // ---- workers, by incarnation. Open admits the process (unless `admits` is false), opens a
  // stream and sends Hello.
  bool admits = true;
  StreamId Open(uint64_t incarnation, v1::Role role = v1::WORKER);
  // A stream that sends no Hello.
  StreamId OpenSilent();
  v1::Header MakeHello(uint64_t incarnation, v1::Role role = v1::WORKER, uint32_t index = 0) const;
  // Adds the process to the processes that the coordinator admits.
  void Admit(uint64_t incarnation, v1::Role role = v1::WORKER, uint32_t index = 0);
  void Send(StreamId stream, const v1::Header& header, const absl::Cord& payload = absl::Cord());
  // Whether something was due.
  bool TickIfDue();
  // Reads the oldest state of a copy that the core wants to be read. False: there is none.
  bool ReadCopyIfDue();
  v1::Header HeaderOf(uint64_t view_number) const;
  // A push of one partition's gradient that completes the partition. Of 4 microbatches, member i of
  // n has [i * 4 / n, (i + 1) * 4 / n).
  v1::Header MakePush(uint64_t step, uint32_t partition, const v1::Range& microbatches,
                      uint64_t samples) const;
  void Push(StreamId stream, uint64_t step, uint32_t partition, const std::vector<float>& values,
            const v1::Range& microbatches, uint64_t samples = 1, bool pull_next = true);
  void Pull(StreamId stream, uint64_t version, uint64_t request = 0);
  static v1::Range Microbatches(uint64_t begin, uint64_t end);
  // The first init request of an attempt, which its views name.
  static v1::InitId FirstInitId(uint64_t attempt);

  // ---- results since the last Take
  std::vector<v1::Header> TakeFrames(StreamId stream);
  std::vector<SendFrame> TakeSent(StreamId stream);
  // Data frames only: (partition, version) -> values.
  std::map<std::pair<uint32_t, uint64_t>, std::vector<float>> TakeData(StreamId stream);
  std::vector<v1::MemberMessage> TakeMessages();
  template <typename Body>
  std::vector<Body> TakeMessages(bool (v1::MemberMessage::*has)() const,
                                 const Body& (v1::MemberMessage::*get)() const) {
    std::vector<Body> bodies;
    for (const v1::MemberMessage& message : TakeMessages()) {
      if ((message.*has)()) bodies.push_back((message.*get)());
    }
    return bodies;
  }
  std::vector<v1::PauseReply> TakePauseReplies() {
    return TakeMessages(&v1::MemberMessage::has_pause_reply, &v1::MemberMessage::pause_reply);
  }
  // OK while the stream is open.
  absl::Status StatusOf(StreamId stream);
  template <typename Action>
  std::vector<Action> TakeActions() {
    Collect();
    std::vector<Action> taken;
    std::vector<ShardAction> rest;
    for (ShardAction& action : other_) {
      if (auto* wanted = std::get_if<Action>(&action); wanted != nullptr) {
        taken.push_back(std::move(*wanted));
      } else {
        rest.push_back(std::move(action));
      }
    }
    other_ = std::move(rest);
    return taken;
  }

  uint64_t Version(uint32_t partition);
  std::vector<float> Values(uint32_t partition);

  // Version 0.
  std::vector<float> w = {0, 0, 0, 0};
  std::vector<float> b = {0, 0};

 private:
  void Collect();
  void EnsureCore();

  std::unique_ptr<ShardCore> core_;
  v1::CoordinatorMessage admitted_;
  v1::Layout layout_;
  StreamId next_stream_ = 1;
  std::map<StreamId, std::vector<SendFrame>> frames_;
  std::map<StreamId, absl::Status> closed_;
  std::vector<v1::MemberMessage> messages_;
  std::vector<ShardAction> other_;
};

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_CORE_TESTING_SHARD_HARNESS_H_
