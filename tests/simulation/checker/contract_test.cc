// Tests the simulator's contract with hand-made messages.
#include "tests/simulation/checker/contract.h"

#include <cstdint>
#include <initializer_list>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/control.pb.h"
#include "proto/job.pb.h"
#include "services/protocol/layout.h"
#include "tests/simulation/checker/checker.h"
#include "tests/simulation/checker/toy_model.h"

namespace sluice::simulation {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

constexpr uint64_t kOld = 11;
constexpr uint64_t kNew = 12;

v1::JobSpec Job() {
  v1::JobSpec job;
  job.mutable_training()->set_global_batch_size(2);
  job.mutable_training()->set_microbatch_size(2);
  return job;
}

// The last of three partitions is empty, because the model has two tensors. A view begins at step 8
// and names the snapshot of step 7, which only the old shard has pinned.
class ContractTest : public testing::Test {
 protected:
  ContractTest() {
    v1::Install& install = *message_.mutable_install();
    install.mutable_pause()->set_attempt(1);
    install.mutable_pause()->set_number(2);
    install.mutable_snapshot()->set_snapshot_id(1);
    install.mutable_snapshot()->set_step(7);
    v1::View& view = *install.mutable_view();
    view.mutable_id()->set_attempt(1);
    view.mutable_id()->set_number(2);
    view.set_mode(v1::SYNCHRONOUS);
    view.set_first_step(8);
    for (const uint64_t shard : {kOld, kNew}) {
      view.add_shards()->mutable_process()->set_incarnation(shard);
      v1::MemberMessage reply;
      *reply.mutable_pause_reply()->mutable_pause() = install.pause();
      contract_.OnShardSays(shard, reply);
    }
    v1::MemberMessage pinned;
    pinned.mutable_snapshot_pinned()->set_snapshot_id(1);
    pinned.mutable_snapshot_pinned()->mutable_view()->set_attempt(1);
    contract_.OnShardSays(kOld, pinned);
  }

  // The positions of the partitions' owners.
  void Install(std::initializer_list<uint32_t> owners) {
    for (const uint32_t owner : owners)
      message_.mutable_install()->mutable_view()->add_owner(owner);
    contract_.OnCoordinatorSays(message_);
  }

  const v1::JobSpec job_ = Job();
  ToyModel model_{1, 2, false, 2, job_};
  const v1::Layout layout_ = *MakeLayout(model_.table(), 3);
  Checker checker_{&model_, job_, layout_};
  Contract contract_{&checker_};
  v1::CoordinatorMessage message_;
};

TEST_F(ContractTest, OwnerMustHavePinnedSnapshotBelowTheView) {
  Install({0, 1, 0});
  EXPECT_THAT(checker_.failure(), HasSubstr("has not pinned (R14)"));
}

TEST_F(ContractTest, OwnerOfEmptyPartitionsHasNoPins) {
  Install({0, 0, 1});
  EXPECT_THAT(checker_.failure(), IsEmpty());
}

}  // namespace
}  // namespace sluice::simulation
