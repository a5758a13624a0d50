#include "services/coordinator/core/storage/claims.h"

#include <cstdint>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/checkpoint.pb.h"
#include "proto/common.pb.h"
#include "services/coordinator/core/base/actions.h"
#include "services/coordinator/core/base/phase.h"
#include "services/coordinator/core/base/rules.h"
#include "services/coordinator/core/base/verdict.h"
#include "services/coordinator/core/facts/facts.h"
#include "services/coordinator/core/facts/output.h"

namespace sluice::coordinator {
namespace {

using ::testing::HasSubstr;

const absl::Time kStart = absl::FromUnixSeconds(1000);

CoordinatorOptions Options() {
  CoordinatorOptions options;
  options.incarnation = 77;
  options.job.mutable_worker()->set_replicas(1);
  return options;
}

class ClaimsTest : public ::testing::Test {
 protected:
  static StorageContents Storage(uint64_t claims, uint64_t counter) {
    StorageContents contents;
    for (uint64_t i = 1; i <= claims; ++i) {
      v1::Claim& claim = contents.claims.emplace_back();
      claim.set_format_version(1);
      claim.set_attempt(i);
      claim.mutable_term()->set_counter(counter);
      claim.mutable_term()->set_coordinator(5);
    }
    return contents;
  }

  // Reads a storage with so many claims.
  Verdict Read(uint64_t claims, uint64_t counter = 1) {
    claims_.ReadStorage();
    return claims_.OnStorageRead(Storage(claims, counter), kStart);
  }

  template <typename T>
  std::vector<T> Take() {
    std::vector<T> found;
    for (Action& action : output_.TakeActions()) {
      if (T* one = std::get_if<T>(&action); one != nullptr) found.push_back(std::move(*one));
    }
    return found;
  }

  static v1::ViewId View(uint64_t attempt, uint64_t counter) {
    v1::ViewId id;
    id.set_attempt(attempt);
    id.mutable_term()->set_counter(counter);
    id.mutable_term()->set_coordinator(6);
    return id;
  }

  CoordinatorRules rules_;
  Facts facts_{Options(), &rules_, kStart};
  Output output_{facts_};
  Claims claims_{facts_, &facts_.attempt.id, &facts_.storage, &output_};
};

TEST_F(ClaimsTest, ReadsTheStorageAgainAfterATransientError) {
  claims_.ReadStorage();
  EXPECT_EQ(claims_.NextDeadline(), absl::InfiniteFuture());
  EXPECT_TRUE(claims_.OnStorageRead(absl::UnavailableError("no disk"), kStart).ok());
  EXPECT_FALSE(claims_.known());
  EXPECT_EQ(claims_.NextDeadline(), kStart + facts_.timers.storage_retry);
  output_.TakeActions();

  claims_.Advance(kStart);
  EXPECT_FALSE(claims_.reading());
  claims_.Advance(claims_.NextDeadline());
  EXPECT_TRUE(claims_.reading());
  EXPECT_EQ(Take<ReadStorage>().size(), 1);
}

TEST_F(ClaimsTest, PermanentErrorFailsTheJob) {
  claims_.ReadStorage();
  const Verdict verdict = claims_.OnStorageRead(absl::DataLossError("no disk"), kStart);
  EXPECT_EQ(verdict.kind, Verdict::Kind::kFailed);
  EXPECT_EQ(verdict.why, "no disk");
}

TEST_F(ClaimsTest, ClaimsTheNextAttemptWithATermAboveAllOthers) {
  ASSERT_TRUE(Read(/*claims=*/3, /*counter=*/8).ok());
  EXPECT_EQ(facts_.attempt.id.term.counter(), 9);
  EXPECT_EQ(facts_.attempt.id.term.coordinator(), 77);

  ASSERT_TRUE(claims_.Claim(/*end=*/false, kStart));
  const std::vector<ClaimAttempt> claims = Take<ClaimAttempt>();
  ASSERT_EQ(claims.size(), 1);
  EXPECT_EQ(claims[0].claim.attempt(), 4);
  EXPECT_TRUE(claims_.Awaits(4));
  EXPECT_FALSE(claims_.Awaits(3));

  ASSERT_TRUE(claims_.OnClaimResult(absl::OkStatus(), kStart).ok());
  EXPECT_EQ(facts_.attempt.id.number, 4);
  EXPECT_TRUE(claims_.unused());
}

TEST_F(ClaimsTest, AClaimThatExistsMeansAnotherCoordinator) {
  ASSERT_TRUE(Read(/*claims=*/0).ok());
  claims_.Claim(/*end=*/false, kStart);
  const Verdict verdict = claims_.OnClaimResult(absl::AlreadyExistsError(""), kStart);
  EXPECT_EQ(verdict.kind, Verdict::Kind::kSuperseded);
  EXPECT_THAT(verdict.why, HasSubstr("attempt 1"));
  EXPECT_EQ(facts_.attempt.id.number, 0);
}

TEST_F(ClaimsTest, TheEndIsTriedAgainWithGrowingDelay) {
  ASSERT_TRUE(Read(/*claims=*/0).ok());
  facts_.phase = Phase::kRunning;
  EXPECT_TRUE(claims_.EndDue(kStart));
  claims_.Claim(/*end=*/true, kStart);
  EXPECT_FALSE(claims_.EndDue(kStart));

  absl::Time now = kStart;
  std::vector<absl::Duration> delays;
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(claims_.OnClaimResult(absl::ResourceExhaustedError("full"), now).ok());
    EXPECT_TRUE(claims_.EndFails());
    delays.push_back(claims_.NextDeadline() - now);
    now = claims_.NextDeadline();
    EXPECT_TRUE(claims_.EndDue(now));
    claims_.Claim(/*end=*/true, now);
  }
  const absl::Duration retry = facts_.timers.storage_retry;
  EXPECT_EQ(delays, (std::vector<absl::Duration>{retry, 2 * retry, 4 * retry}));
}

TEST_F(ClaimsTest, AShardsHigherAttemptIsNeverClaimedAgain) {
  ASSERT_TRUE(Read(/*claims=*/2).ok());
  EXPECT_TRUE(claims_.OnViewSeen(View(/*attempt=*/4, /*counter=*/3)).ok());
  EXPECT_TRUE(claims_.MissesAttempt());
  EXPECT_EQ(facts_.attempt.id.term.counter(), 4);

  // The storage still lacks the claim: it was lost.
  ASSERT_TRUE(Read(/*claims=*/2).ok());
  EXPECT_FALSE(claims_.MissesAttempt());
  EXPECT_EQ(claims_.highest(), 4);
}

TEST_F(ClaimsTest, AShardOfANewerCoordinatorEndsThisOne) {
  ASSERT_TRUE(Read(/*claims=*/0).ok());
  claims_.Claim(/*end=*/false, kStart);
  EXPECT_TRUE(claims_.OnViewSeen(View(/*attempt=*/1, /*counter=*/0)).ok());
  EXPECT_EQ(claims_.OnViewSeen(View(/*attempt=*/1, /*counter=*/9)).kind,
            Verdict::Kind::kSuperseded);
}

TEST_F(ClaimsTest, RereadsTheClaimsWhileProcessesAreMissing) {
  ASSERT_TRUE(Read(/*claims=*/1).ok());
  facts_.phase = Phase::kGathering;
  output_.TakeActions();
  claims_.RereadClaims(kStart);
  EXPECT_EQ(Take<ReadClaims>().size(), 0);
  EXPECT_EQ(claims_.NextDeadline(), kStart + facts_.timers.claims);

  claims_.RereadClaims(kStart + facts_.timers.claims);
  EXPECT_EQ(Take<ReadClaims>().size(), 1);
  EXPECT_TRUE(claims_.rereading());
  EXPECT_FALSE(claims_.OnClaimsSeen(Storage(1, 1).claims));
  EXPECT_FALSE(claims_.rereading());
  claims_.RereadClaims(kStart + facts_.timers.claims);
  claims_.RereadClaims(kStart + 2 * facts_.timers.claims);
  EXPECT_TRUE(claims_.OnClaimsSeen(Storage(2, 1).claims));
}

}  // namespace
}  // namespace sluice::coordinator
