#include "services/coordinator/core/members/rendezvous.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "services/transport/grpc_settings.h"

namespace sluice::coordinator {
namespace {

v1::View View(uint64_t number, const std::vector<std::pair<uint64_t, bool>>& members) {
  v1::View view;
  view.mutable_id()->set_attempt(1);
  view.mutable_id()->set_number(number);
  for (const auto& [incarnation, computes] : members) {
    v1::View::Member& member = *view.add_workers();
    member.mutable_process()->set_role(v1::WORKER);
    member.mutable_process()->set_incarnation(incarnation);
    if (computes) member.add_microbatches()->set_end(1);
  }
  return view;
}

// The request of a member that awaits the others at these addresses.
v1::MeetRequest Request(const v1::View& view, uint64_t incarnation,
                        const std::vector<std::string>& addresses) {
  v1::MeetRequest request;
  *request.mutable_view() = view.id();
  request.mutable_process()->set_role(v1::WORKER);
  request.mutable_process()->set_incarnation(incarnation);
  request.set_plan_hash(1000 + incarnation);
  for (const std::string& address : addresses) request.add_addresses(address);
  return request;
}

TEST(RendezvousTest, MemberMayNotAskInTheNameOfAnother) {
  Rendezvous rendezvous;
  const v1::View view = View(3, {{12, true}, {11, true}});
  rendezvous.OnView(view);
  v1::MeetRequest other_index = Request(view, 12, {"", "12 for 11"});
  other_index.mutable_process()->set_index(1);
  v1::MeetRequest other_role = Request(view, 12, {"", "12 for 11"});
  other_role.mutable_process()->set_role(v1::SHARD);
  for (const v1::MeetRequest& request : {other_index, other_role}) {
    EXPECT_TRUE(absl::IsPermissionDenied(rendezvous.Meet(request).status()));
  }
  // The refused requests had no effect.
  EXPECT_TRUE(rendezvous.Meet(Request(view, 12, {"", "12 at last"})).ok());
}

TEST(RendezvousTest, SendsAddressesToEachMemberOnceAllHaveAsked) {
  Rendezvous rendezvous;
  const v1::View view = View(3, {{12, true}, {11, true}, {13, true}});
  rendezvous.OnView(view);
  const std::map<uint64_t, std::vector<std::string>> addresses = {
      {12, {"", "12 for 11", "12 for 13"}},
      {11, {"11 for 12", "", "11 for 13"}},
      {13, {"13 for 12", "13 for 11", ""}}};
  for (const uint64_t asker : {11, 13}) {
    const auto early = rendezvous.Meet(Request(view, asker, addresses.at(asker)));
    ASSERT_TRUE(early.ok()) << early.status();
    EXPECT_EQ(early->members_size(), 0);
  }
  for (const uint64_t asker : {12, 11, 13, 12}) {
    const auto reply = rendezvous.Meet(Request(view, asker, addresses.at(asker)));
    ASSERT_TRUE(reply.ok()) << reply.status();
    ASSERT_EQ(reply->members_size(), 3);
    for (int i = 0; i < 3; ++i) {
      const uint64_t member = view.workers(i).process().incarnation();
      const v1::MeetReply::Member& entry = reply->members(i);
      EXPECT_EQ(entry.incarnation(), member);
      EXPECT_EQ(entry.plan_hash(), 1000 + member);
      EXPECT_EQ(entry.address(), member == asker ? "" : absl::StrCat(member, " for ", asker));
    }
  }
}

TEST(RendezvousTest, ReplyIsSmallEvenForLargestJob) {
  constexpr uint64_t kWorkers = 1024;
  std::vector<std::pair<uint64_t, bool>> members;
  for (uint64_t i = 0; i < kWorkers; ++i) members.emplace_back(i + 1, true);
  const v1::View view = View(3, members);
  Rendezvous rendezvous;
  rendezvous.OnView(view);

  // As long as gloo's addresses.
  const std::vector<std::string> addresses(kWorkers, std::string(136, 'x'));
  absl::StatusOr<v1::MeetReply> reply;
  for (uint64_t i = 0; i < kWorkers; ++i) {
    const v1::MeetRequest request = Request(view, i + 1, addresses);
    ASSERT_LT(request.ByteSizeLong(), kMaxControlMessageBytes);
    reply = rendezvous.Meet(request);
    ASSERT_TRUE(reply.ok()) << reply.status();
  }
  ASSERT_EQ(reply->members_size(), kWorkers);
  EXPECT_LT(reply->ByteSizeLong(), kMaxControlMessageBytes);
}

TEST(RendezvousTest, MemberWithoutMicrobatchesIsNotAwaitedAndMayNotAsk) {
  Rendezvous rendezvous;
  const v1::View view = View(3, {{11, true}, {12, false}});
  rendezvous.OnView(view);
  EXPECT_EQ(rendezvous.Meet(Request(view, 11, {""}))->members_size(), 1);
  EXPECT_TRUE(absl::IsPermissionDenied(rendezvous.Meet(Request(view, 12, {""})).status()));
  EXPECT_TRUE(absl::IsPermissionDenied(rendezvous.Meet(Request(view, 99, {""})).status()));
}

TEST(RendezvousTest, NewViewStartsOver) {
  Rendezvous rendezvous;
  const v1::View first = View(3, {{11, true}, {12, true}});
  const v1::View second = View(4, {{11, true}, {12, true}});
  rendezvous.OnView(first);
  ASSERT_TRUE(rendezvous.Meet(Request(first, 11, {"", "x"})).ok());
  rendezvous.OnView(second);
  EXPECT_EQ(rendezvous.Meet(Request(second, 12, {"y", ""}))->members_size(), 0)
      << "addresses of the older view do not count";
  EXPECT_TRUE(absl::IsFailedPrecondition(rendezvous.Meet(Request(first, 12, {"x", ""})).status()));
}

TEST(RendezvousTest, RepeatedViewChangesNothing) {
  Rendezvous rendezvous;
  const v1::View view = View(3, {{11, true}, {12, true}});
  rendezvous.OnView(view);
  ASSERT_TRUE(rendezvous.Meet(Request(view, 11, {"", "x"})).ok());
  rendezvous.OnView(view);
  EXPECT_EQ(rendezvous.Meet(Request(view, 12, {"y", ""}))->members_size(), 2);
}

TEST(RendezvousTest, RefusesMembersBeforeFirstView) {
  Rendezvous rendezvous;
  EXPECT_TRUE(absl::IsFailedPrecondition(
      rendezvous.Meet(Request(View(3, {{11, true}}), 11, {""})).status()));
  EXPECT_TRUE(absl::IsPermissionDenied(rendezvous.Meet(Request(v1::View(), 11, {})).status()));
}

TEST(RendezvousTest, RefusesWrongNumberLengthOrChangeOfAddresses) {
  Rendezvous rendezvous;
  const v1::View view = View(3, {{11, true}, {12, true}});
  rendezvous.OnView(view);
  const std::string longest(Rendezvous::kMaxAddressBytes, 'x');
  const auto refused = [&](const std::vector<std::string>& addresses) {
    return absl::IsInvalidArgument(rendezvous.Meet(Request(view, 11, addresses)).status());
  };
  EXPECT_TRUE(refused({"", longest + "x"}));
  EXPECT_TRUE(refused({""}));
  EXPECT_TRUE(refused({"", "x", "y"}));
  ASSERT_TRUE(rendezvous.Meet(Request(view, 11, {"", longest})).ok());
  EXPECT_TRUE(refused({"", "other"}));

  v1::MeetRequest other_plan = Request(view, 11, {"", longest});
  other_plan.set_plan_hash(5);
  EXPECT_TRUE(absl::IsInvalidArgument(rendezvous.Meet(other_plan).status()));
  EXPECT_EQ(rendezvous.Meet(Request(view, 12, {"y", ""}))->members(0).address(), longest);
}

}  // namespace
}  // namespace sluice::coordinator
