// Evaluations that the coordinator assigned to this worker.
#ifndef SLUICE_SERVICES_WORKER_CORE_EVALUATION_QUEUE_H_
#define SLUICE_SERVICES_WORKER_CORE_EVALUATION_QUEUE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "proto/control.pb.h"
#include "services/worker/core/base/actions.h"
#include "services/worker/core/version_receiver.h"
#include "services/worker/core/worker_context.h"
#include "services/worker/core/worker_output.h"

namespace sluice::worker {

// If the current buffer holds the requested version, it is evaluated there. Otherwise the version
// is pulled by its snapshot into the evaluation buffer, one snapshot at a time. Results are kept
// until they can be sent. At most kMaxWaiting evaluations wait; further ones are answered with an
// error.
//
// The values of the program's own metrics are computed from the states that the coordinator sends,
// at most kMaxComputations requests at a time.
class EvaluationQueue {
 public:
  static constexpr size_t kMaxWaiting = 1024;
  static constexpr size_t kMaxComputations = 8;

  EvaluationQueue(const WorkerContext* context, WorkerOutput* out) : context_(context), out_(out) {}

  // Queues an evaluation, or answers with an error. A repeated request of the attempt is ignored.
  void Add(const v1::Evaluate& request);
  // Gives a computation of metrics to the program, or answers with an error. A repeated request is
  // ignored; one with other samples replaces the older one.
  void Add(const v1::ComputeMetrics& request);
  // Forgets the snapshot in the buffer. Waiting evaluations are answered with an error, unless the
  // view is of the same attempt and this worker may evaluate in it.
  void OnView(bool same_attempt);
  // The stream to a shard is new: pulls again what the shard had not sent whole.
  void OnLinkReady(ShardLink& link);
  // Data with a snapshot.
  absl::Status OnData(const v1::Data& data, const absl::Cord& payload);
  // The shard does not have the snapshot (any more).
  void OnPullRefused(uint64_t snapshot, const std::string& reason);
  // False: the id does not belong to an evaluation.
  bool OnEvaluated(ComputeId id, const ComputeResult& result);

  // The answer to a ComputeMetrics; answers for others are ignored.
  void OnMetricValues(MetricsId id, v1::MetricValues values);

  // Gives the compute thread the evaluations that can run now.
  void Proceed(std::optional<uint64_t> current_version);
  // Empties the list of answers.
  std::vector<v1::MemberMessage> TakeAnswers();

 private:
  // The request and its attempt: coordinators number evaluations from 1 again.
  struct Asked {
    v1::Evaluate request;
    uint64_t attempt = 0;
  };

  // A request for the values of metrics, without the states.
  struct Computation {
    MetricsId id = 0;
    uint64_t evaluation = 0;
    v1::CheckpointRef name;
    uint64_t samples = 0;
  };

  // Gives the evaluation to the compute thread.
  void Issue(const Asked& asked, ComputeEngine::Buffer buffer);
  // Answers with an error.
  void Fail(const Asked& asked, const std::string& reason);
  static v1::EvaluationResult AnswerTo(const Asked& asked);
  void Answer(v1::EvaluationResult answer);
  // Begins to receive the snapshot into the evaluation buffer.
  void StartPull(uint64_t snapshot);
  // Pulls the partitions of this shard that are not whole.
  void PullFrom(ShardLink& link);

  const WorkerContext* const context_;
  WorkerOutput* const out_;
  std::deque<Asked> waiting_;
  std::map<ComputeId, Asked> running_;
  std::vector<Computation> computing_;
  MetricsId last_computation_ = 0;
  std::vector<v1::MemberMessage> answers_;
  VersionReceiver receiver_{ComputeEngine::Buffer::kEvaluation};
  uint64_t snapshot_ = 0;  // in the evaluation buffer, or on the way there; 0: none
};

}  // namespace sluice::worker

#endif  // SLUICE_SERVICES_WORKER_CORE_EVALUATION_QUEUE_H_
