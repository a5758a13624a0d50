#ifndef SLUICE_SERVICES_WORKER_CORE_WORKER_OUTPUT_H_
#define SLUICE_SERVICES_WORKER_CORE_WORKER_OUTPUT_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/time/time.h"
#include "proto/control.pb.h"
#include "proto/frame.pb.h"
#include "services/worker/core/base/actions.h"
#include "services/worker/core/shard_link.h"
#include "services/worker/core/worker_context.h"

namespace sluice::worker {

// The output of a WorkerCore's parts: actions for the shell, frames for shards, computations, and
// figures for the coordinator. Parts add to it; only the core takes from it, opens and closes
// links, and ends computations.
class WorkerOutput {
 public:
  // `context` must outlive it.
  explicit WorkerOutput(const WorkerContext* context) : context_(*context) {}

  // ---- actions

  // Appends an action; the shell performs it after the event.
  void Add(WorkerAction action) { actions_.push_back(std::move(action)); }
  // For links, which append to it.
  WorkerActions* actions() { return &actions_; }
  WorkerActions TakeActions() { return std::exchange(actions_, {}); }

  // ---- streams to shards
  std::map<ShardId, ShardLink>& links() { return links_; }
  const std::map<ShardId, ShardLink>& links() const { return links_; }
  // Null if there is no such stream or it is not ready.
  ShardLink* ReadyLink(ShardId shard);
  // Bytes of payload that wait for credit.
  uint64_t QueuedBytes() const;
  // Sends under the current view.
  void Send(ShardLink& link, v1::Header header, absl::Cord payload = {});

  // ---- computations: given to the compute thread and not answered

  // A number for a Compute or EvaluateSamples, awaited from now on until OnAnswered.
  ComputeId NewCompute();
  // Whether its answer is awaited, also if it was cancelled.
  bool Awaits(ComputeId id) const { return outstanding_.count(id) > 0; }
  bool AwaitsAny() const { return !outstanding_.empty(); }
  size_t outstanding() const { return outstanding_.size(); }
  // It is answered. False: it was not awaited.
  bool OnAnswered(ComputeId id) { return outstanding_.erase(id) > 0; }
  // A number for a FindRows.
  RowsId NewRows() { return ++last_rows_; }

  // ---- figures
  // The content of the next report.
  v1::WorkerProgress* progress() { return &progress_; }
  const v1::WorkerProgress* progress() const { return &progress_; }
  v1::WorkerProgress TakeProgress() { return std::exchange(progress_, {}); }
  // Counts parameters that were received for training.
  void CountPulled(const v1::Data& data, size_t payload_bytes);
  // Counts samples of contributions that were sent, for metrics.
  void CountSent(uint64_t samples) { samples_sent_ += samples; }
  // Counts samples that are computed again because of a view change, for metrics and the report.
  void CountRecomputed(uint64_t samples);
  uint64_t samples_sent() const { return samples_sent_; }
  uint64_t samples_recomputed() const { return samples_recomputed_; }

  // ---- giving up: the worker exits at this time, to come back as a new incarnation, unless a new
  // view arrives before.
  void GiveUpAt(absl::Time time, std::string reason) {
    give_up_at_ = time;
    give_up_reason_ = std::move(reason);
  }
  // A view has come, so the worker does not give up.
  void KeepOn() { give_up_at_ = absl::InfiniteFuture(); }
  // InfiniteFuture: the worker does not give up.
  absl::Time give_up_at() const { return give_up_at_; }
  const std::string& give_up_reason() const { return give_up_reason_; }

 private:
  const WorkerContext& context_;
  WorkerActions actions_;
  std::map<ShardId, ShardLink> links_;
  std::set<ComputeId> outstanding_;
  ComputeId last_compute_ = 0;
  RowsId last_rows_ = 0;
  v1::WorkerProgress progress_;  // not sent yet
  uint64_t samples_sent_ = 0;
  uint64_t samples_recomputed_ = 0;
  absl::Time give_up_at_ = absl::InfiniteFuture();
  std::string give_up_reason_;
};

}  // namespace sluice::worker

#endif  // SLUICE_SERVICES_WORKER_CORE_WORKER_OUTPUT_H_
