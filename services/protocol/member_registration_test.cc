#include "services/protocol/member_registration.h"

#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace sluice {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1'000'000);

v1::Register Identity() {
  v1::Register identity;
  identity.set_job("default/job/u1");
  identity.mutable_process()->set_incarnation(7);
  return identity;
}

class Member final : public MemberRegistration {
 public:
  Member() : MemberRegistration(Identity()) {}
  using MemberRegistration::Connect;

  std::vector<v1::MemberMessage> sent;

 private:
  void Send(v1::MemberMessage message) override { sent.push_back(std::move(message)); }
};

v1::Refusal RefusalOf(v1::Refusal::Code code) {
  v1::Refusal refusal;
  refusal.set_code(code);
  refusal.set_reason("why");
  return refusal;
}

TEST(MemberRegistrationTest, RegistersWithNewestViewAndObeyedTermIfThereAreSome) {
  Member member;
  v1::ViewId view;
  member.Connect(view, view);
  view.set_attempt(2);
  member.Connect(view, view);
  ASSERT_EQ(member.sent.size(), 2u);
  const v1::Register& first = member.sent[0].register_();
  EXPECT_EQ(first.job(), "default/job/u1");
  EXPECT_EQ(first.wire_version(), SpokenWireVersions().newest);
  EXPECT_FALSE(first.has_newest_view());
  EXPECT_FALSE(first.has_obeyed());
  EXPECT_EQ(member.sent[1].register_().newest_view().attempt(), 2u);
  EXPECT_EQ(member.sent[1].register_().obeyed().attempt(), 2u);
}

TEST(MemberRegistrationTest, ExitFollowsFromRefusal) {
  const struct {
    v1::Refusal::Code code;
    ExitReason reason;
    ExitReason of_leaving;
  } kCases[] = {
      {v1::Refusal::FINISHED, ExitReason::kFinished, ExitReason::kFinished},
      {v1::Refusal::EXPELLED, ExitReason::kExpelled, ExitReason::kLeft},
      {v1::Refusal::DUPLICATE, ExitReason::kExpelled, ExitReason::kLeft},
      {v1::Refusal::WRONG_JOB, ExitReason::kRefused, ExitReason::kRefused},
      {v1::Refusal::MODEL_DIFFERS, ExitReason::kRefused, ExitReason::kRefused},
  };
  for (const auto& each : kCases) {
    Member member;
    EXPECT_EQ(member.ExitAfter(RefusalOf(each.code))->reason, each.reason) << each.code;
    member.AskToLeave("stop", kStart);
    EXPECT_EQ(member.ExitAfter(RefusalOf(each.code))->reason, each.of_leaving) << each.code;
  }
}

TEST(MemberRegistrationTest, RegistersWithOlderWireVersionsUntilThereIsNone) {
  Member member;
  const WireVersions spoken = SpokenWireVersions();
  for (uint32_t version = spoken.newest; version > spoken.oldest; --version) {
    EXPECT_FALSE(member.ExitAfter(RefusalOf(v1::Refusal::WIRE_VERSION)).has_value());
    member.Connect({}, {});
    EXPECT_EQ(member.sent.back().register_().wire_version(), version - 1);
  }
  EXPECT_EQ(member.ExitAfter(RefusalOf(v1::Refusal::WIRE_VERSION))->reason, ExitReason::kRefused);
}

TEST(MemberRegistrationTest, AsksToLeaveOnceAndAnotherCallOnlyShortensTheWait) {
  Member member;
  member.Connect({}, {});
  member.AskToLeave("stop", kStart + absl::Seconds(20));
  member.AskToLeave("again", kStart + absl::Seconds(30));
  EXPECT_EQ(member.leave_until(), kStart + absl::Seconds(20));
  member.AskToLeave("again", kStart + absl::Seconds(10));
  EXPECT_EQ(member.leave_until(), kStart + absl::Seconds(10));
  ASSERT_EQ(member.sent.size(), 2u);
  EXPECT_EQ(member.sent[1].leave().reason(), "stop");
  EXPECT_EQ(member.leave_reason(), "stop");
}

TEST(MemberRegistrationTest, AnswersFinishWithLeave) {
  for (const bool succeeded : {true, false}) {
    Member member;
    v1::Finish finish;
    finish.set_succeeded(succeeded);
    finish.set_reason("the end");
    const Exit exit = member.ExitAfter(finish);
    EXPECT_EQ(exit.reason, succeeded ? ExitReason::kFinished : ExitReason::kFailed);
    EXPECT_EQ(exit.message, "the end");
    ASSERT_EQ(member.sent.size(), 1u);
    EXPECT_EQ(member.sent[0].leave().reason(), "the end");
  }
}

}  // namespace
}  // namespace sluice
