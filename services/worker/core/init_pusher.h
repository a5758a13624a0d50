// Pushes version 0 to the shards when this worker is asked to (R12).
#ifndef SLUICE_SERVICES_WORKER_CORE_INIT_PUSHER_H_
#define SLUICE_SERVICES_WORKER_CORE_INIT_PUSHER_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/cord.h"
#include "proto/control.pb.h"
#include "services/worker/core/worker_context.h"
#include "services/worker/core/worker_output.h"

namespace sluice::worker {

// Reads the tensors one by one, then pushes each shard's blocks on each new stream until the shard
// has answered Initialized for this init request. A newer init request replaces an older one; the
// attempt's first view ends the init request.
class InitPusher {
 public:
  InitPusher(const WorkerContext* context, WorkerOutput* out) : context_(context), out_(out) {}

  // False: the init request is not newer than the current one. The context's table and layout must
  // be those of the init request.
  bool Start(const v1::Initialize& initialize);
  // Ends the init request: its tensors are dropped, and answers that still come are ignored.
  void Stop();
  bool active() const { return active_; }
  const v1::Initialize& initialize() const { return initialize_; }

  // The answer to a ReadInitialTensor; requests the next one, and pushes once all have been read.
  void OnInitialTensor(const v1::InitId& init_id, uint32_t tensor, absl::Cord content);
  // The stream to a shard is new: pushes its blocks (again), unless it has answered Initialized.
  void OnLinkReady(ShardLink& link);
  // The shard has all blocks of this init request.
  void OnInitialized(ShardLink& link, const v1::Initialized& initialized);

 private:
  // Pushes all of a shard's partitions; a shard without any gets an empty push, which it answers,
  // too.
  void PushTo(ShardLink& link);
  // Sends the partition in frames of at most kMaxFramePayloadBytes. `last`: its end is the end of
  // the shard's version 0.
  void PushPartition(ShardLink& link, uint32_t partition, bool last);

  const WorkerContext* const context_;
  WorkerOutput* const out_;
  bool active_ = false;
  v1::Initialize initialize_;
  std::vector<absl::Cord> tensors_;  // by index; read so far
  std::map<ShardId, std::vector<uint32_t>> owned_;
  std::set<ShardId> answered_;
};

}  // namespace sluice::worker

#endif  // SLUICE_SERVICES_WORKER_CORE_INIT_PUSHER_H_
