// Facts that the parts of a WorkerCore share: the job and the view. They act through WorkerOutput.
#ifndef SLUICE_SERVICES_WORKER_CORE_WORKER_CONTEXT_H_
#define SLUICE_SERVICES_WORKER_CORE_WORKER_CONTEXT_H_

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/common.pb.h"
#include "proto/job.pb.h"
#include "proto/model.pb.h"
#include "services/common/check.h"
#include "services/protocol/layout.h"
#include "services/protocol/samples/sequence.h"
#include "services/worker/core/base/actions.h"
#include "services/worker/core/base/rules.h"
#include "services/worker/core/gradients/step_gradients.h"
#include "services/worker/core/shard_link.h"

namespace sluice::worker {

// The core owns it and alone changes it; the parts read it.
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

  absl::Time now;
  absl::Time sent_at = absl::InfinitePast();  // when the send queue was last empty

  // Whether parameters and gradients stay on the shards (server-side execution).
  bool ByReference() const { return job.training().execution() == v1::TrainingSpec::SERVER; }

  // Members evaluate. A view without members is how training ends at a target: all evaluate.
  bool MayEvaluate() const { return member || (view.id().attempt() > 0 && view.workers().empty()); }
  // Whether rows of embedding tables are sent alone, to and from shards that accept them.
  bool RowsTravel() const { return job.model().embeddings() == v1::ModelSpec::ROWS; }
  // Samples of an asynchronous update that begins now.
  uint64_t BatchSize() const {
    return batch_size > 0 ? batch_size : job.training().global_batch_size();
  }

  // Takes from `view` what concerns this worker: member, assignment, owned.
  void ReadView();

  // The owner of partition 0.
  ShardId Arbiter() const {
    SLUICE_DCHECK(view.owner_size() > 0, "partition 0 has an owner");
    return view.shards(static_cast<int>(view.owner(0))).process().incarnation();
  }
};

// INVALID_ARGUMENT if the view's owners do not fit its shards or the layout.
absl::Status CheckView(const v1::View& view, const v1::Layout& layout);

}  // namespace sluice::worker

#endif  // SLUICE_SERVICES_WORKER_CORE_WORKER_CONTEXT_H_
