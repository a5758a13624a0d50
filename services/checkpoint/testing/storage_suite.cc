#include "services/checkpoint/testing/storage_suite.h"

#include <gmock/gmock.h>

#include <string>
#include <thread>
#include <vector>

#include "absl/strings/cord.h"
#include "services/checkpoint/testing/storage_fixture.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

v1::Claim ClaimOf(uint64_t attempt, uint64_t coordinator) {
  v1::Claim claim = MakeClaim(attempt);
  claim.mutable_term()->set_counter(1);
  claim.mutable_term()->set_coordinator(coordinator);
  return claim;
}

TEST_P(StorageSuite, EmptyPlaceHasNothing) {
  ASSERT_TRUE(first_->Probe().ok());
  EXPECT_THAT(*first_->ReadClaims(), IsEmpty());
  EXPECT_THAT(*first_->ListCheckpoints(), IsEmpty());
  EXPECT_THAT(first_->FindDamage(), IsEmpty());
  EXPECT_FALSE(FindRestorePoint(*first_)->found);
  EXPECT_EQ(first_->ReadCheckpointIndex(Ref(1, 1)).status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(first_->Remove(Ref(1, 1)).ok());
  EXPECT_TRUE(first_->RemoveIncomplete(9).ok());
}

TEST_P(StorageSuite, OneJobOwnsThePlace) {
  ASSERT_TRUE(first_->Probe().ok());
  ASSERT_TRUE(first_->Own("space/mine/1").ok());
  EXPECT_TRUE(second_->Own("space/mine/2").ok()) << "the uid is not compared";
  const absl::Status status = second_->Own("space/other/1");
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("mine"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("other"));
}

TEST_P(StorageSuite, OneClientGetsEachClaim) {
  ASSERT_TRUE(first_->CreateClaim(ClaimOf(1, 11)).ok());
  EXPECT_EQ(second_->CreateClaim(ClaimOf(1, 22)).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(first_->CreateClaim(ClaimOf(1, 11)).ok()) << "an earlier call made it";
  ASSERT_TRUE(second_->CreateClaim(ClaimOf(2, 22)).ok());

  const auto claims = first_->ReadClaims();
  ASSERT_TRUE(claims.ok()) << claims.status();
  ASSERT_THAT(*claims, SizeIs(2));
  EXPECT_EQ((*claims)[0].term().coordinator(), 11u);
  EXPECT_EQ((*claims)[1].term().coordinator(), 22u);
}

TEST_P(StorageSuite, OneOfManyThreadsGetsAClaim) {
  constexpr uint64_t kThreads = 8;
  for (uint64_t attempt = 1; attempt <= 5; ++attempt) {
    std::vector<std::unique_ptr<CheckpointStorage>> clients;
    for (uint64_t i = 0; i < kThreads; ++i) clients.push_back(place_->Connect(std::to_string(i)));
    std::vector<absl::Status> statuses(kThreads);
    std::vector<std::thread> threads;
    for (uint64_t i = 0; i < kThreads; ++i) {
      threads.emplace_back(
          [&, i] { statuses[i] = clients[i]->CreateClaim(ClaimOf(attempt, i + 1)); });
    }
    for (std::thread& thread : threads) thread.join();

    int winners = 0;
    for (uint64_t i = 0; i < kThreads; ++i) {
      if (!statuses[i].ok()) {
        EXPECT_EQ(statuses[i].code(), absl::StatusCode::kAlreadyExists) << statuses[i];
        continue;
      }
      ++winners;
      EXPECT_EQ(first_->ReadClaims()->back().term().coordinator(), i + 1);
    }
    EXPECT_EQ(winners, 1) << "attempt " << attempt;
  }
}

TEST_P(StorageSuite, CheckpointAppearsWithItsIndex) {
  ASSERT_TRUE(first_->CreateClaim(MakeClaim(1)).ok());
  ASSERT_TRUE(first_->WriteFile(Ref(1, 10), "partition-00000.safetensors", absl::Cord("x")).ok());
  EXPECT_THAT(*second_->ListCheckpoints(), IsEmpty());

  SaveCheckpoint(*first_, Ref(1, 10), "content");
  EXPECT_THAT(Names(*second_->ListCheckpoints()), ElementsAre("1/10"));
  const auto index = second_->ReadCheckpointIndex(Ref(1, 10));
  ASSERT_TRUE(index.ok()) << index.status();
  EXPECT_EQ(*second_->ReadFile(Ref(1, 10), index->files(0)), "content");
  EXPECT_TRUE(FindRestorePoint(*second_)->found);
}

TEST_P(StorageSuite, IndexNamesOnlyFilesThatExist) {
  v1::CheckpointIndex index;
  index.set_format_version(kCheckpointFormatVersion);
  *index.mutable_checkpoint() = Ref(1, 10);
  index.add_files()->set_name("partition-00000.safetensors");
  index.mutable_files(0)->set_bytes(7);
  ASSERT_TRUE(
      first_->WriteFile(Ref(1, 10), "partition-00000.safetensors", absl::Cord("short")).ok());
  EXPECT_EQ(first_->WriteCheckpointIndex(index).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(*first_->ListCheckpoints(), IsEmpty());
}

TEST_P(StorageSuite, FileIsReplacedAndComparedWithTheIndex) {
  v1::CheckpointIndex index = SaveCheckpoint(*first_, Ref(1, 10), "content");
  ASSERT_TRUE(second_->WriteFile(Ref(1, 10), index.files(0).name(), absl::Cord("CONTENT")).ok());
  EXPECT_EQ(first_->ReadFile(Ref(1, 10), index.files(0)).status().code(),
            absl::StatusCode::kDataLoss);

  index.mutable_files(0)->set_name("../owner");
  EXPECT_EQ(first_->ReadFile(Ref(1, 10), index.files(0)).status().code(),
            absl::StatusCode::kDataLoss);
}

TEST_P(StorageSuite, ListsByNumberAndRemovesOneCheckpoint) {
  for (const v1::CheckpointRef& ref : {Ref(10000, 20), Ref(9999, 30), Ref(9999, 10)}) {
    SaveCheckpoint(*first_, ref, "x");
  }
  EXPECT_THAT(Names(*second_->ListCheckpoints()), ElementsAre("9999/10", "9999/30", "10000/20"));
  ASSERT_TRUE(second_->Remove(Ref(9999, 30)).ok());
  ASSERT_TRUE(first_->Remove(Ref(9999, 30)).ok()) << "again";
  EXPECT_THAT(Names(*first_->ListCheckpoints()), ElementsAre("9999/10", "10000/20"));
}

TEST_P(StorageSuite, RemovesIncompleteCheckpointsOfOlderAttempts) {
  SaveCheckpoint(*first_, Ref(1, 10), "whole");
  ASSERT_TRUE(first_->WriteFile(Ref(1, 20), "p", absl::Cord("x")).ok());
  ASSERT_TRUE(first_->WriteFile(Ref(2, 20), "p", absl::Cord("x")).ok());
  ASSERT_TRUE(second_->RemoveIncomplete(2).ok());

  v1::PartitionFile file;
  file.set_name("p");
  file.set_bytes(1);
  EXPECT_EQ(first_->ReadFile(Ref(1, 20), file).status().code(), absl::StatusCode::kNotFound);
  EXPECT_NE(first_->ReadFile(Ref(2, 20), file).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Names(*first_->ListCheckpoints()), ElementsAre("1/10"));
}

}  // namespace
}  // namespace sluice
