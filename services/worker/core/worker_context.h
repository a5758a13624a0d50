// What the parts of a WorkerCore share: the job, the view, the streams, and the actions so far.
#ifndef SLUICE_SERVICES_WORKER_CORE_WORKER_CONTEXT_H_
#define SLUICE_SERVICES_WORKER_CORE_WORKER_CONTEXT_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/time/time.h"
#include "proto/common.pb.h"
#include "proto/control.pb.h"
#include "proto/frame.pb.h"
#include "proto/job.pb.h"
#include "proto/model.pb.h"
#include "services/common/check.h"
#include "services/protocol/layout.h"
#include "services/protocol/sequence.h"
#include "services/worker/core/shard_link.h"
#include "services/worker/core/step_gradients.h"
#include "services/worker/core/worker_actions.h"
#include "services/worker/core/worker_rules.h"

namespace sluice::worker {

struct WorkerContext {
  const WorkerRules* rules = nullptr;
  uint64_t incarnation = 0;
  v1::JobSpec job;
  uint64_t training_samples = 0;
  uint64_t smallest_batch = 1;        // samples that the model can compute at once
  std::vector<uint32_t> row_tensors;  // their samples name the rows that they use
  v1::TensorTable table;
  v1::Layout layout;
  std::optional<LayoutIndex> index;  // set together with table and layout
  std::optional<StepSchedule> plan;

  uint64_t batch_size = 0;  // HeartbeatReply.batch_size

  v1::View view;        // the newest; its id is the default value before the first view
  bool member = false;  // of it
  std::vector<MicrobatchRange> assignment;
  // Partitions with content, by owner, ascending. Shards without any are left out.
  std::map<ShardId, std::vector<uint32_t>> owned;

  std::map<ShardId, ShardLink> links;
  std::set<ComputeId> outstanding;  // given to the compute thread and not answered

  // When the worker exits, to come back as a new incarnation, unless a new view arrives before.
  absl::Time give_up_at = absl::InfiniteFuture();
  std::string give_up_reason;

  absl::Time now;
  absl::Time sent_at = absl::InfinitePast();  // when the send queue was last empty
  WorkerActions actions;
  v1::WorkerProgress progress;  // not sent yet
  uint64_t samples_sent = 0;
  uint64_t samples_recomputed = 0;

  // Whether parameters and gradients stay on the shards (server-side execution).
  bool ByReference() const { return job.training().execution() == v1::TrainingSpec::SERVER; }

  // Members evaluate. A view without members is how training ends at a target: all evaluate.
  bool MayEvaluate() const { return member || (view.id().attempt() > 0 && view.workers().empty()); }
  // Whether rows of embedding tables are sent alone, to and from shards that accept them.
  bool RowsTravel() const { return job.model().embeddings() == v1::ModelSpec::ROWS; }
  // Of an asynchronous update that begins now.
  uint64_t BatchSize() const {
    return batch_size > 0 ? batch_size : job.training().global_batch_size();
  }

  // Takes from `view` what concerns this worker: member, assignment, owned.
  void ReadView();

  // Null if there is no such stream or it is not ready.
  ShardLink* ReadyLink(ShardId shard) {
    auto it = links.find(shard);
    return it != links.end() && it->second.ready() ? &it->second : nullptr;
  }
  // Bytes of payload that wait for credit.
  uint64_t QueuedBytes() const;
  // The owner of partition 0.
  ShardId Arbiter() const {
    SLUICE_DCHECK(view.owner_size() > 0, "partition 0 has an owner");
    return view.shards(static_cast<int>(view.owner(0))).process().incarnation();
  }

  // Sends under the current view.
  void Send(ShardLink& link, v1::Header header, absl::Cord payload = {}) {
    SLUICE_DCHECK(link.ready(), "a frame is sent on a stream that is ready");
    *header.mutable_view() = view.id();
    link.Send(std::move(header), std::move(payload), &actions);
  }

  ComputeId NewCompute() {
    outstanding.insert(++last_compute_);
    return last_compute_;
  }
  RowsId NewRows() { return ++last_rows_; }
  // Counts parameters that were received for training.
  void CountPulled(const v1::Data& data, size_t payload_bytes);
  void CountRecomputed(uint64_t samples) {
    samples_recomputed += samples;
    progress.set_recomputed_samples(progress.recomputed_samples() + samples);
  }

 private:
  ComputeId last_compute_ = 0;
  RowsId last_rows_ = 0;
};

// INVALID_ARGUMENT if the view's owners do not fit its shards or the layout.
absl::Status CheckView(const v1::View& view, const v1::Layout& layout);

}  // namespace sluice::worker

#endif  // SLUICE_SERVICES_WORKER_CORE_WORKER_CONTEXT_H_
