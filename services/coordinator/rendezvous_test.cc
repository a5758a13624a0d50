#include "services/coordinator/rendezvous.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"

namespace sluice::coordinator {
namespace {

v1::View View(uint64_t number, const std::vector<std::pair<uint64_t, bool>>& members) {
  v1::View view;
  view.mutable_id()->set_attempt(1);
  view.mutable_id()->set_number(number);
  for (const auto& [incarnation, computes] : members) {
    v1::View::Member& member = *view.add_workers();
    member.mutable_process()->set_incarnation(incarnation);
    if (computes) member.add_microbatches()->set_end(1);
  }
  return view;
}

v1::MeetRequest Request(const v1::View& view, uint64_t incarnation, std::string message) {
  v1::MeetRequest request;
  *request.mutable_view() = view.id();
  request.mutable_process()->set_role(v1::WORKER);
  request.mutable_process()->set_incarnation(incarnation);
  request.set_message(std::move(message));
  return request;
}

TEST(RendezvousTest, AllAreToldOfAllOnceAllAreThere) {
  Rendezvous rendezvous;
  const v1::View view = View(3, {{12, true}, {11, true}});
  rendezvous.OnView(view);
  auto reply = rendezvous.Meet(Request(view, 11, "eleven"));
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(reply->members_size(), 0);
  for (uint64_t asker : {12, 11, 12}) {
    reply = rendezvous.Meet(Request(view, asker, asker == 11 ? "eleven" : "twelve"));
    ASSERT_TRUE(reply.ok());
    ASSERT_EQ(reply->members_size(), 2);
    EXPECT_EQ(reply->members(0).incarnation(), 12u);
    EXPECT_EQ(reply->members(0).message(), "twelve");
    EXPECT_EQ(reply->members(1).message(), "eleven");
  }
}

TEST(RendezvousTest, AMemberWithoutMicrobatchesIsNotWaitedForAndMayNotAsk) {
  Rendezvous rendezvous;
  const v1::View view = View(3, {{11, true}, {12, false}});
  rendezvous.OnView(view);
  EXPECT_EQ(rendezvous.Meet(Request(view, 11, "x"))->members_size(), 1);
  EXPECT_TRUE(absl::IsPermissionDenied(rendezvous.Meet(Request(view, 12, "x")).status()));
  EXPECT_TRUE(absl::IsPermissionDenied(rendezvous.Meet(Request(view, 99, "x")).status()));
}

TEST(RendezvousTest, ANewViewBeginsAnew) {
  Rendezvous rendezvous;
  const v1::View first = View(3, {{11, true}, {12, true}});
  const v1::View second = View(4, {{11, true}, {12, true}});
  rendezvous.OnView(first);
  ASSERT_TRUE(rendezvous.Meet(Request(first, 11, "x")).ok());
  rendezvous.OnView(second);
  EXPECT_EQ(rendezvous.Meet(Request(second, 12, "y"))->members_size(), 0)
      << "what was left in the older view does not count";
  EXPECT_TRUE(absl::IsFailedPrecondition(rendezvous.Meet(Request(first, 12, "x")).status()));
}

TEST(RendezvousTest, TheSameViewAgainChangesNothing) {
  Rendezvous rendezvous;
  const v1::View view = View(3, {{11, true}, {12, true}});
  rendezvous.OnView(view);
  ASSERT_TRUE(rendezvous.Meet(Request(view, 11, "x")).ok());
  rendezvous.OnView(view);
  EXPECT_EQ(rendezvous.Meet(Request(view, 12, "y"))->members_size(), 2);
}

TEST(RendezvousTest, NobodyMeetsBeforeThereIsAView) {
  Rendezvous rendezvous;
  EXPECT_TRUE(absl::IsFailedPrecondition(
      rendezvous.Meet(Request(View(3, {{11, true}}), 11, "x")).status()));
  EXPECT_TRUE(absl::IsPermissionDenied(rendezvous.Meet(Request(v1::View(), 11, "x")).status()));
}

TEST(RendezvousTest, AMessageThatIsTooLongOrAnotherThanBeforeIsRefused) {
  Rendezvous rendezvous;
  const v1::View view = View(3, {{11, true}, {12, true}});
  rendezvous.OnView(view);
  const std::string longest(Rendezvous::kMaxMessageBytes, 'x');
  EXPECT_TRUE(absl::IsInvalidArgument(rendezvous.Meet(Request(view, 11, longest + "x")).status()));
  ASSERT_TRUE(rendezvous.Meet(Request(view, 11, longest)).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(rendezvous.Meet(Request(view, 11, "other")).status()));
  EXPECT_EQ(rendezvous.Meet(Request(view, 12, "y"))->members(0).message(), longest);
}

}  // namespace
}  // namespace sluice::coordinator
