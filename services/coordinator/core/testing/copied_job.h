// Jobs whose partitions have second copies.
#ifndef SLUICE_SERVICES_COORDINATOR_CORE_TESTING_COPIED_JOB_H_
#define SLUICE_SERVICES_COORDINATOR_CORE_TESTING_COPIED_JOB_H_

#include <cstdint>
#include <set>
#include <utility>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "proto/common.pb.h"
#include "proto/job.pb.h"
#include "services/coordinator/core/base/actions.h"
#include "services/coordinator/core/testing/fake_job.h"

namespace sluice::coordinator {

// The backoff limit is 0: the job fails if it has to be restored.
inline v1::JobSpec Spec(uint32_t shards, uint32_t copies = 2) {
  v1::JobSpec spec = FakeJob::Spec();
  spec.mutable_parameter_server()->set_replicas(shards);
  spec.mutable_parameter_server()->set_partitions(6);
  spec.mutable_parameter_server()->set_copies(copies);
  spec.mutable_training()->set_steps(100);
  spec.set_backoff_limit(0);
  return spec;
}

// So many that all partitions have blocks.
inline constexpr int64_t kElements = 10'000'000;

// A job that has trained this many steps, and whose copies are whole.
struct CopiedJob : FakeJob {
  explicit CopiedJob(int steps, v1::JobSpec spec) : FakeJob(std::move(spec)) {
    elements = kElements;
    Start();
    Pass(absl::Seconds(1));
    Train(steps);
  }
  const v1::View& view() { return core->view(); }
  uint64_t Incarnation(int position) { return view().shards(position).process().incarnation(); }
  std::set<uint32_t> Indexes() {
    std::set<uint32_t> indexes;
    for (const auto& shard : view().shards()) indexes.insert(shard.process().index());
    return indexes;
  }
  int OwnedBy(uint64_t incarnation) {
    int owned = 0;
    for (const uint32_t owner : view().owner()) {
      owned += Incarnation(static_cast<int>(owner)) == incarnation ? 1 : 0;
    }
    return owned;
  }
};

// Trains to the end, which must be a success.
inline void ExpectSuccess(FakeJob& job) {
  job.Train(120);
  job.Pass(absl::Seconds(3));
  ASSERT_TRUE(job.exit.has_value()) << job.Progress().DebugString();
  EXPECT_EQ(job.exit->reason, ExitReason::kSucceeded) << job.exit->message;
}

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_CORE_TESTING_COPIED_JOB_H_
