// A coordinator's state machine with strangers and workers that send anything, in any order.
//
// An input is a list of events: a job that trains, processes that die and join, and messages that
// break the protocol, on streams of strangers and of members. The core must not end the process,
// must not make the shell spin, and must not count a step beyond the job's length.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/control.pb.h"
#include "proto/jobcontrol.pb.h"
#include "services/common/check.h"
#include "services/coordinator/core/coordinator_core.h"
#include "services/coordinator/core/decisions/member_checks.h"
#include "services/coordinator/core/testing/fake_job.h"
#include "tests/fuzz/byte_source.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/message_change.h"

namespace sluice::fuzz {
namespace {

using coordinator::FakeJob;
using coordinator::FakeWorker;
using coordinator::StreamId;

constexpr int kMaxEvents = 40;
constexpr size_t kMaxProgressBytes = 1 << 20;

v1::JobSpec Spec(size_t mode) {
  v1::JobSpec spec = FakeJob::Spec();
  constexpr v1::Mode kModes[] = {v1::SYNCHRONOUS, v1::ASYNCHRONOUS, v1::BOUNDED_STALENESS};
  spec.mutable_training()->set_mode(kModes[mode]);
  spec.mutable_training()->set_steps(12);
  spec.mutable_checkpoint()->set_interval_steps(4);
  spec.mutable_data()->mutable_evaluation()->set_interval_steps(5);
  spec.set_backoff_limit(3);
  return spec;
}

class CoordinatorWorld {
 public:
  explicit CoordinatorWorld(ByteSource* bytes)
      : bytes_(bytes), kind_(bytes->Below(6)), job_(Spec(kind_ % 3)) {
    if (kind_ >= 3) job_.sample_weight = 0.25;
    job_.Start();
  }

  void Run() {
    for (int event = 0; event < kMaxEvents && !bytes_->empty() && !job_.exit.has_value(); ++event) {
      Act();
      if (job_.exit.has_value()) return;
      job_.Pump();
      const v1::JobProgress progress = job_.Progress();
      SLUICE_CHECK(progress.ByteSizeLong() <= kMaxProgressBytes, "progress is bounded");
    }
  }

  bool Trained() { return job_.Version() > 0; }

 private:
  void Act() {
    switch (bytes_->Below(16)) {
      case 0:
      case 1:
        return job_.Train(1 + static_cast<int>(bytes_->Below(3)));
      case 2:
        return job_.Pass(absl::Milliseconds(50 * (1 + bytes_->Below(20))));
      case 3:
        strangers_.push_back(next_stream_++);
        return job_.core->OnConnected(strangers_.back(), job_.now);
      case 4:
        return RegisterStranger();
      case 5:
      case 6:
        if (!strangers_.empty()) {
          Say(strangers_[bytes_->Below(256) % strangers_.size()]);
        }
        return;
      case 7:
      case 8:
      case 9:
      case 10: {
        const std::vector<FakeWorker*> workers = job_.Workers();
        if (workers.empty()) return;
        const StreamId stream = workers[bytes_->Below(256) % workers.size()]->stream;
        if (stream != 0) Say(stream);
        return;
      }
      case 11:
        if (strangers_.empty()) return;
        job_.core->OnDisconnected(strangers_.back(), job_.now);
        strangers_.pop_back();
        return;
      case 12:
        return ChangeWorkers();
      case 13:
      case 14:
        return Control();
      default:
        return Storage();
    }
  }

  // An earlier message of a process of this job, changed; or a new body.
  void Say(StreamId stream) {
    v1::MemberMessage message;
    if (!job_.said.empty() && bytes_->Below(4) != 0) {
      message = job_.said[bytes_->Number(2) % job_.said.size()];
    } else {
      ChooseBody(bytes_, &message);
    }
    ChangeFields(bytes_, &message);
    job_.core->OnMessage(stream, message, job_.now);
  }

  void RegisterStranger() {
    const StreamId stream = next_stream_++;
    strangers_.push_back(stream);
    job_.core->OnConnected(stream, job_.now);
    v1::MemberMessage message;
    v1::Register& request = *message.mutable_register_();
    request.set_job(coordinator::JobName(job_.spec));
    constexpr v1::Role kRoles[] = {v1::WORKER, v1::SHARD, v1::READER, v1::OPERATOR};
    request.mutable_process()->set_role(kRoles[bytes_->Below(4)]);
    request.mutable_process()->set_index(static_cast<uint32_t>(bytes_->Below(4)));
    request.mutable_process()->set_incarnation(9000 + stream);
    request.set_address("host:1");
    request.set_wire_version(1);
    ChangeFields(bytes_, &message);
    job_.core->OnMessage(stream, message, job_.now);
  }

  void ChangeWorkers() {
    const std::vector<FakeWorker*> workers = job_.Workers();
    if (bytes_->Below(2) == 0 && !workers.empty()) {
      job_.Kill(*workers[bytes_->Below(256) % workers.size()], bytes_->Below(2) == 1);
    } else if (workers.size() < 4) {
      job_.AddWorker(static_cast<uint32_t>(bytes_->Below(4)));
    }
  }

  void Control() {
    switch (bytes_->Below(5)) {
      case 0: {
        v1::SetDesiredRequest desired;
        ChangeFields(bytes_, &desired);
        if (coordinator::CheckSetDesired(desired).ok()) job_.core->OnSetDesired(desired, job_.now);
        return;
      }
      case 1: {
        v1::OpenSnapshotRequest snapshot;
        ChangeFields(bytes_, &snapshot);
        return job_.core->OnOpenSnapshot(++snapshots_, snapshot, job_.now);
      }
      case 2:
        return job_.core->OnSnapshotCallEnded(bytes_->Below(8), job_.now);
      case 3: {
        v1::GetProgressRequest request;
        ChangeFields(bytes_, &request);
        (void)job_.core->Progress(request, job_.now);
        return;
      }
      default:
        job_.core->OnTick(job_.now);
        SLUICE_CHECK(job_.core->NextDeadline() > job_.now, "the shell would spin");
    }
  }

  // Answers that come late or twice.
  void Storage() {
    v1::CheckpointRef ref;
    ref.set_attempt(bytes_->Below(3));
    ref.set_step(bytes_->Below(16));
    switch (bytes_->Below(3)) {
      case 0:
        return job_.core->OnCheckpointIndexWritten(ref, absl::OkStatus(), job_.now);
      case 1:
        return job_.core->OnClaimResult(bytes_->Below(4), absl::UnavailableError("disk"), job_.now);
      default:
        return job_.core->OnClaimsRead(job_.claims, job_.now);
    }
  }

  ByteSource* const bytes_;
  const size_t kind_;  // mode, and whether samples have weights
  FakeJob job_;
  std::vector<StreamId> strangers_;
  StreamId next_stream_ = 1'000'000;
  uint64_t snapshots_ = 0;
};

bool RunCoordinator(absl::string_view input) {
  ByteSource bytes(input);
  CoordinatorWorld world(&bytes);
  world.Run();
  return world.Trained();
}

std::vector<std::string> CoordinatorSeeds() {
  std::vector<std::string> seeds;
  for (const char kind : {0, 3}) {
    std::string seed(1, kind);
    for (char between = 2; between < 16; ++between) {
      seed += std::string{0, 1, between, 1, 1, 0, 0, 0};
    }
    seeds.push_back(std::move(seed));
  }
  return seeds;
}

}  // namespace

std::vector<FuzzTarget> CoordinatorTargets() {
  return {
      {"coordinator", RunCoordinator, CoordinatorSeeds, 1024,
       "services/coordinator/core/coordinator_core.cc "
       "services/coordinator/core/coordinator_messages.cc "
       "services/coordinator/core/coordinator_progress.cc "
       "services/coordinator/core/facts/attempt.cc "
       "services/coordinator/core/snapshots/checkpoints.cc "
       "services/coordinator/core/storage/claims.cc "
       "services/coordinator/core/lifecycle/ending.cc "
       "services/coordinator/core/evaluation/evaluation.cc "
       "services/coordinator/core/evaluation/evaluations.cc "
       "services/coordinator/core/facts/facts.cc "
       "services/coordinator/core/lifecycle/init_request.cc "
       "services/coordinator/core/lifecycle/initialization.cc "
       "services/coordinator/core/facts/membership.cc "
       "services/coordinator/core/lifecycle/model_check.cc "
       "services/coordinator/core/facts/progress.cc "
       "services/coordinator/core/snapshots/readers.cc "
       "services/coordinator/core/snapshots/snapshots.cc "
       "services/coordinator/core/facts/training.cc "
       "services/coordinator/core/facts/training_mode.cc "
       "services/coordinator/core/facts/view_change.cc "
       "services/coordinator/core/decisions/view_decision.cc "
       "services/coordinator/core/views/views.cc services/coordinator/core/members/waits.cc"},
  };
}

}  // namespace sluice::fuzz
