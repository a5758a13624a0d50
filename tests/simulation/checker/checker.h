// Checks the invariants of the protocol in a simulation.
//
// The checker sees more than any process: the contents of all shards, all views, all leases. The
// simulation reports them after every event. The checker keeps the first violation. It checks that:
//
//   - each sample is applied exactly once: a synchronous version is the sum of its steps, an
//     asynchronous content is the sum of the applied updates, and no two updates share a sample
//   - all partitions have applied the same updates, at every Install and at the end
//   - where stragglers are dropped, all partitions close a step with the same whole contributions,
//     all of this step
//   - BitExact: the sums have the bits of the fixed tree
//   - in a view, a version has one content, on its owners and on the workers that compute with it
//   - a committed version never changes, and no process rolls back below it
//   - a partition has one owner in a view; two views never have one id
//   - nothing changes between a PauseReply and its Install (R2)
//   - no shard answers a pull whose clock is too far ahead of a lease holder, and no lease is
//     recorded at a clock below those of all lease holders (R13)
//   - a checkpoint has one committed version (asynchronous: one set of updates), and the loss of
//   its
//     evaluation
#ifndef SLUICE_TESTS_SIMULATION_CHECKER_CHECKER_H_
#define SLUICE_TESTS_SIMULATION_CHECKER_CHECKER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "proto/checkpoint.pb.h"
#include "proto/common.pb.h"
#include "proto/control.pb.h"
#include "proto/frame.pb.h"
#include "proto/job.pb.h"
#include "proto/jobcontrol.pb.h"
#include "services/protocol/ids.h"
#include "services/protocol/interval_set.h"
#include "services/protocol/layout.h"
#include "tests/simulation/checker/toy_model.h"

namespace sluice::simulation {

// The content of a partition: one element of the vector per block, in the layout's order.
struct PartitionFacts {
  uint32_t partition = 0;
  uint64_t version = 0;
  std::vector<Elements3> blocks;
};

class Checker {
 public:
  Checker(ToyModel* model, const v1::JobSpec& job, const v1::Layout& layout);

  bool failed() const { return !failure_.empty(); }
  const std::string& failure() const { return failure_; }
  // Keeps the first failure.
  void Fail(std::string what);
  // Whether the partition has no blocks.
  bool IsEmpty(uint32_t partition) const { return index_.IsEmpty(partition); }

  // The coordinator informs the shards that a version is committed.
  void OnCommitted(const v1::Committed& committed);

  // Any view that a process receives.
  void OnView(const v1::View& view);
  // Number of members of a view; 0 if the checker has not seen the view.
  size_t MembersOf(const v1::ViewId& view) const;

  // A shard after an event, once it has a view.
  struct ShardNow {
    uint64_t incarnation = 0;
    v1::ViewId view;
    uint64_t committed = 0;
    std::vector<PartitionFacts> partitions;
    std::vector<PartitionFacts> copies;  // whole copies of other shards' partitions
    // Asynchronous, by worker: the clock of its last update, and that update's samples.
    std::map<uint64_t, uint64_t> clocks;
    std::map<uint64_t, PositionRange> last_samples;
  };
  void OnShard(const ShardNow& now);
  void OnPauseReply(const ShardNow& now);
  void OnRelease(uint64_t shard) { promises_.erase(shard); }

  // A worker begins to compute. Its gradient will carry `tag`.
  void OnSynchronousCompute(const v1::ViewId& view, uint64_t step, const PositionRange& positions,
                            const std::vector<Elements3>& tensors);
  void OnUpdate(double tag, const PositionRange& positions);
  void OnContribution(double tag, uint64_t step, const PositionRange& positions);
  // A computation received a sum over its step: samples, their integers, and the members' marks.
  void OnSum(const v1::ViewId& view, uint64_t step, uint32_t number, const Elements3& sum);
  // A worker must evaluate one version, a committed one (synchronous).
  void OnEvaluate(const std::vector<Elements3>& tensors);
  // The same for the snapshot that a reader reads.
  void OnSnapshot(const v1::Snapshot& snapshot, const std::vector<Elements3>& tensors);

  // Bounded staleness: frames that shards send.
  void OnLease(const ShardNow& arbiter, uint64_t worker, const v1::Lease& lease);
  // The arbiter has recorded a lease, and sends the record to a shard with a copy of partition 0.
  void OnLeaseRecorded(const ShardNow& arbiter, uint64_t worker, const v1::Lease& lease);
  // `arbiter`: the frame comes from the arbiter; else it is the data of another shard.
  void OnPullAnswered(const ShardNow& shard, bool arbiter, uint64_t worker, uint64_t clock);

  // Checkpoints. A file is recorded when it is written and checked when a checkpoint index names
  // it.
  void OnFile(const v1::CheckpointRef& ref, const PartitionFacts& content);
  void OnCheckpointIndex(const v1::CheckpointIndex& checkpoint_index);
  // The job has succeeded.
  void OnEnd(uint64_t total, const std::optional<v1::CheckpointIndex>& newest);

 private:
  using ViewKey = std::tuple<uint64_t, uint64_t, uint64_t, uint64_t>;
  using RefKey = std::pair<uint64_t, uint64_t>;
  using Tags = std::vector<double>;

  struct Update {
    PositionRange positions;
  };
  // The content of an asynchronous partition, by the tags of its updates.
  struct Applied {
    std::vector<Elements3> content;
    std::set<double> updates;
    IntervalSet samples;
  };

  bool synchronous() const { return job_.training().mode() == v1::SYNCHRONOUS; }
  bool drops_stragglers() const {
    return job_.training().stragglers().policy() == v1::TrainingSpec::Stragglers::DROP;
  }
  bool sums_over_steps() const { return job_.training().sync() == v1::TrainingSpec::BATCH_NORM; }
  uint32_t TensorOf(uint32_t partition, size_t place) const;
  // Whether all tensors of the content are silent (ToyModel::IsSilent).
  bool IsSilent(const PartitionFacts& content) const;
  static Tags TagsOf(const PartitionFacts& content);
  std::string Where(const ShardNow& now, const PartitionFacts& content) const;

  void CheckPromise(const ShardNow& now);
  void CheckOwner(const ShardNow& now, uint32_t partition);
  // Whether a newer view of the attempt continues without the shard.
  bool IsLeftOut(const ShardNow& now) const;
  void CheckVersion(const ShardNow& now, const PartitionFacts& content);
  void CheckElements(const ShardNow& now, const PartitionFacts& content);
  void CheckSet(const ShardNow& now, const PartitionFacts& content);
  // The loss in an index is that of the samples whose weight is not 0.
  void CheckLoss(const v1::CheckpointIndex& checkpoint_index);
  void CheckMarks(const ShardNow& now, const PartitionFacts& content);
  // The contributions to a step whose tags add up to this sum; null if there are none.
  const std::vector<PositionRange>* SetOf(uint64_t step, double tags);
  bool IsVersionOfOneHistory(const std::vector<Elements3>& tensors) const;
  void CheckLineage(const ViewKey& view, uint32_t partition, uint64_t version, const Tags& tags,
                    const std::string& who);
  void CheckCommitted(const ShardNow& now);
  void CheckUpdates(const ShardNow& now, const PartitionFacts& content);
  void ForgetDropped(const ShardNow& now);
  void CheckAtInstall(const ShardNow& now, const PartitionFacts& content);
  void BeginLeases(uint64_t attempt);
  void CheckRaised(const ShardNow& arbiter, uint64_t worker, uint64_t clock);
  std::set<uint64_t> LeaseHolders(const ShardNow& arbiter, const v1::View& view);
  // The updates that the shard's partitions have applied; null if all of them are silent.
  const Applied* AppliedOn(const ShardNow& shard);
  std::optional<Applied> Origin(const PartitionFacts& content) const;
  bool Explain(const ShardNow& now, const PartitionFacts& content, Applied* applied);
  bool Apply(double tag, Applied* applied);

  ToyModel& model_;
  const v1::JobSpec job_;
  const v1::Layout layout_;
  const LayoutIndex index_;
  std::string failure_;

  std::map<ViewKey, std::string> views_;  // serialized
  std::map<ViewKey, v1::View> known_views_;
  std::map<std::pair<ViewKey, uint32_t>, uint64_t> owners_;
  std::map<uint64_t, std::pair<std::string, std::map<uint64_t, uint64_t>>> promises_;  // by shard

  // Synchronous.
  std::map<std::tuple<ViewKey, uint32_t, uint64_t>, Tags> lineage_;  // view, partition, version
  std::map<std::tuple<uint64_t, uint32_t, uint64_t>, Tags> last_;    // attempt, partition, version
  std::map<std::tuple<uint64_t, uint32_t, uint64_t>, Tags> truth_;   // of committed versions
  std::map<uint64_t, uint64_t> committed_;                           // by attempt

  // Synchronous, with `sync`.
  std::map<std::tuple<ViewKey, uint64_t, uint32_t>, Elements3> step_sums_;  // view, step, number
  std::map<uint64_t, std::set<double>> marks_;  // by step: marks times the step's samples
  // Every content of an attempt's partition at a version.
  std::map<std::tuple<uint64_t, uint32_t, uint64_t>, std::set<std::vector<Elements3>>> histories_;

  // Synchronous, stragglers dropped.
  std::map<uint64_t, std::map<double, PositionRange>> contributions_;  // by step, tag
  std::map<std::tuple<uint64_t, uint32_t, uint64_t>, std::vector<Elements3>>
      contents_;                                         // attempt, partition, version
  std::map<std::pair<ViewKey, uint64_t>, double> sets_;  // view, step -> the tags together
  std::map<std::pair<uint64_t, double>, std::optional<std::vector<PositionRange>>> found_sets_;

  // Asynchronous.
  std::map<double, Update> updates_;  // by tag
  std::map<std::tuple<uint64_t, uint64_t, uint32_t>, Applied>
      applied_;  // attempt, shard, partition
  std::map<ViewKey, std::set<double>> at_install_;
  std::map<uint64_t, ViewKey> last_view_;  // by shard
  std::map<uint64_t, Interval> leases_;    // by worker, in the attempt
  std::map<uint64_t, uint64_t> raised_;
  std::map<uint64_t, uint64_t> recorded_;  // leases that were recorded, not given: their clocks
  uint64_t lease_attempt_ = 0;
  // The arbiter's answers: worker, view, clock -> the lease holders that were counted.
  std::map<std::tuple<uint64_t, ViewKey, uint64_t>, std::set<uint64_t>> answers_;

  std::map<RefKey, std::map<uint32_t, PartitionFacts>> files_;
  // Every content that a partition has ever had; a restored partition must begin with one of them.
  std::map<std::pair<uint32_t, std::vector<Elements3>>, Applied> history_;
};

}  // namespace sluice::simulation

#endif  // SLUICE_TESTS_SIMULATION_CHECKER_CHECKER_H_
