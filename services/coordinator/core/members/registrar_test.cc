#include "services/coordinator/core/members/registrar.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/checkpoint/existing_job.h"
#include "services/coordinator/core/base/phase.h"
#include "services/coordinator/core/base/rules.h"
#include "services/coordinator/core/facts/snapshot.h"

namespace sluice::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const absl::Time kStart = absl::FromUnixSeconds(1000);

CoordinatorOptions Options() {
  CoordinatorOptions options;
  options.incarnation = 77;
  options.job.set_name("digits");
  options.job.mutable_worker()->set_replicas(2);
  return options;
}

class RegistrarTest : public ::testing::Test {
 protected:
  RegistrarTest() {
    facts_.attempt.id.term.set_counter(1);
    facts_.phase = Phase::kRunning;
  }

  Registrar::Admission Register(StreamId stream, v1::Role role, uint32_t index,
                                uint64_t incarnation) {
    v1::Register request;
    request.set_job(FullJobName(facts_.job()));
    request.set_wire_version(1);
    request.mutable_process()->set_role(role);
    request.mutable_process()->set_index(index);
    request.mutable_process()->set_incarnation(incarnation);
    registrar_.OnConnected(stream, kStart);
    return registrar_.OnRegister(stream, request, "training is complete", kStart);
  }
  void Answer(uint64_t incarnation) {
    registrar_.Answer(*facts_.members.Find(incarnation), /*attempt=*/3, kStart);
  }
  void OpenSnapshot(uint64_t incarnation) {
    v1::OpenSnapshotRequest call;
    call.mutable_reader()->set_role(v1::READER);
    call.mutable_reader()->set_incarnation(incarnation);
    readers_.OnOpen(/*request=*/1, call, kStart);
  }
  // The incarnations in each list that was sent since the last call.
  std::vector<std::vector<uint64_t>> Lists() {
    std::vector<std::vector<uint64_t>> lists;
    for (const Action& action : output_.TakeActions()) {
      const auto* send = std::get_if<Send>(&action);
      if (send == nullptr || !send->message.has_admitted()) continue;
      std::vector<uint64_t>& list = lists.emplace_back();
      for (const auto& process : send->message.admitted().processes()) {
        list.push_back(process.incarnation());
      }
    }
    return lists;
  }

  CoordinatorRules rules_;
  Facts facts_{Options(), &rules_, kStart};
  Output output_{facts_};
  const std::optional<Snapshot> snapshot_;
  Readers readers_{facts_, snapshot_, &output_};
  Registrar registrar_{facts_, &facts_.members, readers_, &output_};
};

TEST_F(RegistrarTest, SendsShardsTheListEachTimeItChanges) {
  EXPECT_TRUE(Register(1, v1::SHARD, 0, 10).admitted);
  Answer(10);
  EXPECT_THAT(Lists(), ElementsAre(IsEmpty()));
  EXPECT_TRUE(Register(2, v1::WORKER, 0, 20).admitted);
  registrar_.SendAdmitted();
  registrar_.SendAdmitted();
  EXPECT_THAT(Lists(), ElementsAre(ElementsAre(20)));
  OpenSnapshot(30);
  registrar_.SendAdmitted();
  EXPECT_THAT(Lists(), ElementsAre(ElementsAre(20, 30)));
}

TEST_F(RegistrarTest, SendsNoListBeforeAnAttemptBegins) {
  facts_.phase = Phase::kGathering;
  Register(1, v1::SHARD, 0, 10);
  Answer(10);
  Register(2, v1::WORKER, 0, 20);
  registrar_.SendAdmitted();
  EXPECT_THAT(Lists(), IsEmpty());
  facts_.phase = Phase::kPreparing;
  registrar_.SendAdmitted();
  EXPECT_THAT(Lists(), ElementsAre(ElementsAre(20)));
}

TEST_F(RegistrarTest, AnswersWithTermJobAndAttempt) {
  Register(1, v1::WORKER, 0, 20);
  Answer(20);
  const std::vector<Action> actions = output_.TakeActions();
  ASSERT_EQ(actions.size(), 1u);
  const v1::Registered& registered = std::get<Send>(actions[0]).message.registered();
  EXPECT_EQ(registered.term().coordinator(), 77);
  EXPECT_EQ(registered.job().name(), "digits");
  EXPECT_EQ(registered.attempt(), 3);
}

TEST_F(RegistrarTest, RefusesOnlyNewProcessesOnceTheJobHasEnded) {
  Register(1, v1::WORKER, 0, 20);
  facts_.phase = Phase::kLeavingWorkers;
  output_.TakeActions();
  EXPECT_FALSE(Register(2, v1::WORKER, 1, 21).admitted);
  const std::vector<Action> actions = output_.TakeActions();
  ASSERT_EQ(actions.size(), 2u);
  const v1::Refusal& refusal = std::get<Send>(actions[0]).message.refusal();
  EXPECT_EQ(refusal.code(), v1::Refusal::FINISHED);
  EXPECT_EQ(refusal.reason(), "training is complete");
  EXPECT_EQ(std::get<CloseStream>(actions[1]).status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_TRUE(Register(3, v1::WORKER, 0, 20).admitted);
  EXPECT_EQ(registrar_.refused(), 1);
}

TEST_F(RegistrarTest, RefusesIncarnationOfReader) {
  OpenSnapshot(30);
  EXPECT_FALSE(Register(1, v1::WORKER, 0, 30).admitted);
  EXPECT_EQ(registrar_.refused(), 1);
  EXPECT_EQ(facts_.members.registering(), 0u) << "the stream awaits no registration";
}

TEST_F(RegistrarTest, PostponesProcessThatTheJobDoesNotWantYet) {
  EXPECT_FALSE(Register(1, v1::WORKER, 2, 22).admitted);
  const std::vector<Action> actions = output_.TakeActions();
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(std::get<CloseStream>(actions[0]).status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(registrar_.refused(), 1);
}

TEST_F(RegistrarTest, ReportsSuspectThatLosesItsPlace) {
  Register(1, v1::WORKER, 0, 20);
  facts_.members.Disconnected(1, kStart);
  const Registrar::Admission outcome = Register(2, v1::WORKER, 0, 21);
  EXPECT_TRUE(outcome.admitted);
  ASSERT_TRUE(outcome.displaced.has_value());
  EXPECT_EQ(outcome.displaced->process.incarnation(), 20);
}

}  // namespace
}  // namespace sluice::coordinator
