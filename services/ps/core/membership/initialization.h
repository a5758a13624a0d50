#ifndef SLUICE_SERVICES_PS_CORE_MEMBERSHIP_INITIALIZATION_H_
#define SLUICE_SERVICES_PS_CORE_MEMBERSHIP_INITIALIZATION_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "proto/common.pb.h"
#include "proto/control.pb.h"
#include "proto/frame.pb.h"
#include "services/ps/core/base/outbox.h"
#include "services/ps/core/session/streams.h"
#include "services/ps/core/state/partition.h"
#include "services/ps/core/state/shard_state.h"

namespace sluice::ps {

// Loads an attempt's first state into the shard: version 0 from a worker, or a checkpoint (R12).
//
// It is for one init request: a higher one begins another attempt (ShardAttempt), a lower one is
// refused. The loaded state becomes the shard's partitions at the first Install, which must name
// the same init request.
class Initialization {
 public:
  // Both must outlive it.
  Initialization(const ShardState* state, Outbox* out) : state_(*state), out_(*out) {}

  // The init request, once. A repetition is answered again.
  void Prepare(const v1::PrepareState& prepare);
  const PreparedJob& job() const { return job_; }

  // Blocks of version 0. Returns kWait for an init request whose PrepareState has not arrived yet.
  // An error ends the stream.
  absl::StatusOr<Handled> OnPush(StreamTable& streams, Stream& stream, const v1::InitPush& push,
                                 const absl::Cord& payload);
  void OnLoaded(const v1::InitId& init_id, uint32_t partition, absl::StatusOr<absl::Cord> file);

  bool has_init_id() const { return has_init_id_; }
  const v1::InitId& init_id() const { return prepare_.init_id(); }
  // Whether the kept init request is of a later attempt.
  bool IsAfter(uint64_t attempt) const { return has_init_id_ && attempt < init_id().attempt(); }
  bool ready() const { return has_init_id_ && missing_.empty() && error_.empty(); }
  // Sends StateReady again, or the reason why the state cannot become whole.
  void Report();

  // The partitions, each at its first version. Requires ready(). May be called once.
  PartitionMap TakePartitions();
  const std::vector<v1::ClockRecord>& clocks() const { return clocks_; }
  // The version of the checkpoint, or 0.
  uint64_t version() const { return prepare_.version(); }
  bool has_checkpoint() const { return prepare_.has_checkpoint(); }

 private:
  struct InitialPartition {
    std::vector<BlockState> blocks;
    uint64_t version = 0;
  };

  absl::Status Begin();
  absl::Status BeginLoading(const std::vector<uint32_t>& owned);
  absl::Status Take(const v1::InitPush& push, const absl::Cord& payload);
  void CheckReady();

  const ShardState& state_;
  Outbox& out_;
  bool has_init_id_ = false;
  v1::PrepareState prepare_;
  PreparedJob job_;
  std::map<uint32_t, InitialPartition> initial_;
  std::set<uint32_t>
      missing_;  // blocks (an initialization) or partitions (loading) that have not arrived
  std::map<uint32_t, v1::PartitionFile> files_;
  std::vector<v1::ClockRecord> clocks_;
  std::string error_;
  uint64_t pusher_ = 0;  // incarnation of the worker that pushes version 0; 0: no push yet
};

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_CORE_MEMBERSHIP_INITIALIZATION_H_
