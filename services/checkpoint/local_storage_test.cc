#include "services/checkpoint/local_storage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "services/checkpoint/storage.h"
#include "services/checkpoint/testing/storage_fixture.h"
#include "services/common/arithmetic/crc32c.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

TEST_F(LocalStorageTest, FirstClaimOfAnAttemptWins) {
  v1::Claim first = MakeClaim(1);
  first.mutable_term()->set_counter(7);
  ASSERT_TRUE(storage_->CreateClaim(first).ok());
  EXPECT_EQ(storage_->CreateClaim(MakeClaim(1)).code(), absl::StatusCode::kAlreadyExists);
  const auto claims = storage_->ReadClaims();
  ASSERT_TRUE(claims.ok());
  ASSERT_THAT(*claims, SizeIs(1));
  EXPECT_EQ(claims->front().term().counter(), 7u);
}

// A call fails at any of its operations. If it has made the claim, the next call finds it.
TEST_F(LocalStorageTest, ClaimOfACallThatFailedIsItsOwn) {
  int made = 0;
  for (const bool end : {false, true}) {
    for (int operation = 0; operation < 8; ++operation) {
      const auto attempt = static_cast<uint64_t>(storage_->ReadClaims()->size() + 1);
      v1::Claim mine = MakeClaim(attempt);
      mine.set_end(end);
      mine.mutable_term()->set_counter(3);
      mine.mutable_term()->set_coordinator(11);
      files_.FailAfter(operation);
      if (storage_->CreateClaim(mine).ok()) break;
      files_.FailNever();
      made += storage_->ReadClaims()->size() == attempt;

      mine.set_time("2026-01-02T03:04:05Z");
      EXPECT_TRUE(storage_->CreateClaim(mine).ok()) << operation;
      files_.CutPower();
      ASSERT_THAT(*storage_->ReadClaims(), SizeIs(attempt)) << "it is durable";

      v1::Claim other = mine;
      other.mutable_term()->set_coordinator(12);
      EXPECT_EQ(storage_->CreateClaim(other).code(), absl::StatusCode::kAlreadyExists);
      other = mine;
      other.mutable_term()->set_counter(4);
      EXPECT_EQ(storage_->CreateClaim(other).code(), absl::StatusCode::kAlreadyExists);
      other = mine;
      other.set_end(!end);
      EXPECT_EQ(storage_->CreateClaim(other).code(), absl::StatusCode::kAlreadyExists);
    }
    files_.FailNever();
  }
  EXPECT_GE(made, 2) << "the directory's sync failed after the link";
}

v1::Claim LossRecord(uint64_t attempt, uint64_t number, std::vector<uint64_t> kept) {
  v1::Claim record = MakeClaim(attempt);
  record.set_loss_record(number);
  *record.mutable_kept() = {kept.begin(), kept.end()};
  record.mutable_term()->set_counter(number);
  return record;
}

TEST_F(LocalStorageTest, FirstLossRecordOfItsNumberWins) {
  for (const uint64_t attempt : {1, 2}) {
    ASSERT_TRUE(storage_->CreateClaim(MakeClaim(attempt)).ok());
  }
  EXPECT_TRUE(storage_->CreateClaim(LossRecord(1, 1, {7, 8})).ok());
  EXPECT_TRUE(storage_->CreateClaim(LossRecord(2, 1, {9})).ok());
  EXPECT_EQ(storage_->CreateClaim(LossRecord(1, 1, {8})).code(), absl::StatusCode::kAlreadyExists);
  files_.CutPower();
  EXPECT_TRUE(storage_->CreateClaim(LossRecord(1, 2, {8})).ok());

  const auto claims = storage_->ReadClaims();
  ASSERT_TRUE(claims.ok()) << claims.status();
  ASSERT_THAT(*claims, SizeIs(2));
  EXPECT_EQ((*claims)[0].loss_record(), 2u) << "the attempt's newest";
  EXPECT_THAT((*claims)[0].kept(), ElementsAre(8));
  EXPECT_EQ((*claims)[0].term().counter(), 2u);
  EXPECT_EQ((*claims)[1].loss_record(), 1u);
  EXPECT_THAT((*claims)[1].kept(), ElementsAre(9));
  EXPECT_THAT(storage_->FindDamage(), IsEmpty());
}

TEST_F(LocalStorageTest, DamagedLossRecordHasNumberAndNoShards) {
  ASSERT_TRUE(storage_->CreateClaim(MakeClaim(1)).ok());
  ASSERT_TRUE(storage_->CreateClaim(LossRecord(1, 1, {7})).ok());
  for (const char* const text : {"{}", "not JSON"}) {
    Overwrite("/store/claims/000001-loss-0002.json", text);
    const auto claims = storage_->ReadClaims();
    ASSERT_TRUE(claims.ok()) << claims.status();
    ASSERT_THAT(*claims, SizeIs(1));
    EXPECT_FALSE(IsDamaged((*claims)[0])) << "the claim is whole";
    EXPECT_EQ((*claims)[0].loss_record(), 2u);
    EXPECT_THAT((*claims)[0].kept(), IsEmpty());
    EXPECT_THAT(storage_->FindDamage(), ElementsAre(HasSubstr("000001-loss-0002.json")));
  }
  // A record is not accepted under another name, and a claim is no record.
  Overwrite("/store/claims/000001-loss-0002.json", ClaimToJson(LossRecord(1, 3, {7})));
  EXPECT_THAT(storage_->FindDamage(), ElementsAre(HasSubstr("is loss record 3")));
  Overwrite("/store/claims/000001.json", ClaimToJson(LossRecord(1, 1, {7})));
  EXPECT_TRUE(IsDamaged((*storage_->ReadClaims())[0]));
}

TEST_F(LocalStorageTest, ClaimsSurvivePowerLoss) {
  ASSERT_TRUE(storage_->CreateClaim(MakeClaim(1)).ok());
  files_.CutPower();
  EXPECT_THAT(*storage_->ReadClaims(), SizeIs(1));
}

TEST_F(LocalStorageTest, EmptyStorageReportsNothing) {
  EXPECT_THAT(*storage_->ReadClaims(), IsEmpty());
  EXPECT_THAT(*storage_->ListCheckpoints(), IsEmpty());
  const auto point = FindRestorePoint(*storage_);
  ASSERT_TRUE(point.ok());
  EXPECT_FALSE(point->found);
}

TEST_F(LocalStorageTest, ParentIsDurableBeforeItsClaim) {
  ASSERT_TRUE(storage_->CreateClaim(MakeClaim(1)).ok());
  SaveButForTheLastSync(Ref(1, 10));
  ASSERT_TRUE(storage_->CreateClaim(MakeClaim(2, Ref(1, 10))).ok());
  files_.CutPower();
  EXPECT_TRUE(ReadWholeCheckpoint(*storage_, Ref(1, 10)).ok());
}

TEST_F(LocalStorageTest, ProbeMakesDurableWhatACrashedWriterHasLeft) {
  ASSERT_TRUE(storage_->CreateClaim(MakeClaim(1)).ok());
  SaveButForTheLastSync(Ref(1, 10));
  ASSERT_TRUE(storage_->Probe().ok());
  files_.CutPower();
  EXPECT_TRUE(ReadWholeCheckpoint(*storage_, Ref(1, 10)).ok());
}

TEST_F(LocalStorageTest, DirectoryWithoutIndexIsNotACheckpoint) {
  ASSERT_TRUE(storage_->WriteFile(Ref(1, 10), "partition-00000.safetensors", absl::Cord("x")).ok());
  EXPECT_THAT(*storage_->ListCheckpoints(), IsEmpty());
  Save(Ref(1, 10), "x");
  EXPECT_THAT(Names(*storage_->ListCheckpoints()), ElementsAre("1/10"));
}

TEST_F(LocalStorageTest, ListsCheckpointsByNumberNotByName) {
  for (const v1::CheckpointRef& ref : {Ref(10000, 20), Ref(9999, 30), Ref(9999, 10)})
    Save(ref, "x");
  EXPECT_THAT(Names(*storage_->ListCheckpoints()), ElementsAre("9999/10", "9999/30", "10000/20"));
}

TEST_F(LocalStorageTest, CompleteCheckpointSurvivesPowerLoss) {
  ASSERT_TRUE(storage_->CreateClaim(MakeClaim(1)).ok());
  Save(Ref(1, 10), "content");
  files_.CutPower();
  const auto point = FindRestorePoint(*storage_);
  ASSERT_TRUE(point.ok()) << point.status();
  ASSERT_TRUE(point->found);
  EXPECT_EQ(*storage_->ReadFile(Ref(1, 10), point->checkpoint_index.files(0)), "content");
}

TEST_F(LocalStorageTest, CrashAtAnyWriteLeavesWholeCheckpointOrNone) {
  ASSERT_TRUE(storage_->CreateClaim(MakeClaim(1)).ok());
  Save(Ref(1, 10), "older");
  for (int operation = 0;; ++operation) {
    files_.FailAfter(operation);
    v1::CheckpointIndex checkpoint_index;
    checkpoint_index.set_format_version(kCheckpointFormatVersion);
    *checkpoint_index.mutable_checkpoint() = Ref(1, 20);
    v1::PartitionFile& file = *checkpoint_index.add_files();
    file.set_name("p");
    file.set_bytes(5);
    file.set_crc32c(Crc32c("newer"));
    absl::Status status = storage_->WriteFile(Ref(1, 20), "p", absl::Cord("newer"));
    if (status.ok()) status = storage_->WriteCheckpointIndex(checkpoint_index);
    files_.FailNever();
    files_.CutPower();
    const auto point = FindRestorePoint(*storage_);
    ASSERT_TRUE(point.ok()) << point.status();
    ASSERT_TRUE(point->found);
    EXPECT_THAT(point->damaged, IsEmpty()) << "crash at operation " << operation;
    if (status.ok()) {
      EXPECT_EQ(point->checkpoint_index.checkpoint().step(), 20u);
      break;
    }
    ASSERT_TRUE(storage_->Remove(Ref(1, 20)).ok());
  }
}

TEST_F(LocalStorageTest, ReportsFullDiskAndChangesNothing) {
  ASSERT_TRUE(storage_->CreateClaim(MakeClaim(1)).ok());
  Save(Ref(1, 10), "older");
  files_.SetCapacity(1000);
  EXPECT_EQ(storage_->WriteFile(Ref(1, 20), "p", absl::Cord(std::string(4096, 'x'))).code(),
            absl::StatusCode::kResourceExhausted);
  files_.SetCapacity(1 << 20);
  EXPECT_EQ(FindRestorePoint(*storage_)->checkpoint_index.checkpoint().step(), 10u);
}

TEST_F(LocalStorageTest, RejectsIndexOfAnotherDirectory) {
  Save(Ref(1, 10), "x");
  const auto text = files_.Read(Path(Ref(1, 10), "manifest.json"), 1 << 20);
  ASSERT_TRUE(text.ok());
  ASSERT_TRUE(files_.CreateDirectories("/store/attempt-0001-step-000000000011").ok());
  Overwrite(Path(Ref(1, 11), "manifest.json"), *text);
  EXPECT_EQ(storage_->ReadCheckpointIndex(Ref(1, 11)).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(LocalStorageTest, FileNamesOfIndexCannotLeaveItsDirectory) {
  v1::PartitionFile file;
  file.set_name("../secret");
  EXPECT_EQ(storage_->ReadFile(Ref(1, 1), file).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(LocalStorageTest, NamesDamagedAndMissingClaimsByAttempt) {
  for (uint64_t attempt = 1; attempt <= 5; ++attempt) {
    ASSERT_TRUE(storage_->CreateClaim(MakeClaim(attempt)).ok());
  }
  Overwrite("/store/claims/000002.json", "not json");
  ASSERT_TRUE(files_.Remove("/store/claims/000003.json").ok());
  ASSERT_TRUE(files_.Remove("/store/claims/000004.json").ok());
  ASSERT_TRUE(files_.CreateDirectories("/store/claims/000004.json").ok());

  const auto claims = storage_->ReadClaims();
  ASSERT_TRUE(claims.ok()) << claims.status();
  std::vector<bool> damaged;
  for (size_t i = 0; i < claims->size(); ++i) {
    EXPECT_EQ((*claims)[i].attempt(), i + 1);
    damaged.push_back(IsDamaged((*claims)[i]));
  }
  EXPECT_THAT(damaged, ElementsAre(false, true, true, true, false));
  EXPECT_THAT(storage_->FindDamage(),
              ElementsAre(HasSubstr("000002.json"), HasSubstr("000003.json is missing"),
                          HasSubstr("000004.json: it is a directory")));

  Save(Ref(1, 10), "x");
  Save(Ref(2, 20), "x");
  EXPECT_EQ(FindRestorePoint(*storage_).status().code(), absl::StatusCode::kOk)
      << "attempt 5 began without a parent";
}

TEST_F(LocalStorageTest, WritesIndexOnlyIfItsFilesExist) {
  v1::CheckpointIndex checkpoint_index;
  *checkpoint_index.mutable_checkpoint() = Ref(1, 10);
  v1::PartitionFile& file = *checkpoint_index.add_files();
  file.set_name("p");
  file.set_bytes(5);
  ASSERT_TRUE(storage_->WriteFile(Ref(1, 10), "other", absl::Cord("x")).ok());
  EXPECT_EQ(storage_->WriteCheckpointIndex(checkpoint_index).code(),
            absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(storage_->WriteFile(Ref(1, 10), "p", absl::Cord("four")).ok());
  EXPECT_THAT(storage_->WriteCheckpointIndex(checkpoint_index).message(),
              HasSubstr("5 bytes, and now it has 4"));
  EXPECT_THAT(*storage_->ListCheckpoints(), IsEmpty());
  ASSERT_TRUE(storage_->WriteFile(Ref(1, 10), "p", absl::Cord("fives")).ok());
  EXPECT_TRUE(storage_->WriteCheckpointIndex(checkpoint_index).ok());
}

TEST_F(LocalStorageTest, RemovesWhatKilledShardsLeftOnceCheckpointIsWhole) {
  ASSERT_TRUE(storage_->WriteFile(Ref(1, 10), "other", absl::Cord("y")).ok());
  Overwrite("/store/attempt-0001-step-000000000010/p.safetensors.tmp-7-1", "a shard that died");
  Overwrite("/store/attempt-0001-step-000000000010/manifest.json.tmp-8-1", "another coordinator");
  Save(Ref(1, 10), "x");
  EXPECT_EQ(files_.Exists("/store/attempt-0001-step-000000000010/p.safetensors.tmp-7-1").value(),
            false);
  EXPECT_EQ(files_.Exists("/store/attempt-0001-step-000000000010/manifest.json.tmp-8-1").value(),
            true);
  EXPECT_TRUE(ReadWholeCheckpoint(*storage_, Ref(1, 10)).ok());
}

// Like pods without a shared volume.
TEST_F(LocalStorageTest, WritesIndexIfShardsWriteToTheirOwnDisks) {
  v1::CheckpointIndex checkpoint_index;
  *checkpoint_index.mutable_checkpoint() = Ref(1, 10);
  checkpoint_index.add_files()->set_name("p");
  EXPECT_TRUE(storage_->WriteCheckpointIndex(checkpoint_index).ok());
  EXPECT_EQ(storage_->ListCheckpoints()->size(), 1u);
}

TEST_F(LocalStorageTest, RemovesAllFilesAndMayBeRepeated) {
  Save(Ref(1, 10), "x");
  EXPECT_TRUE(storage_->Remove(Ref(1, 10)).ok());
  EXPECT_TRUE(storage_->Remove(Ref(1, 10)).ok());
  EXPECT_FALSE(*files_.Exists("/store/attempt-0001-step-000000000010"));
}

TEST_F(LocalStorageTest, KeepsReplacedCheckpointThatAnotherAttemptMayBeginWith) {
  Save(Ref(1, 10), "ten");
  Save(Ref(1, 20), "twenty");
  ASSERT_TRUE(storage_->CreateClaim(MakeClaim(1)).ok());
  ASSERT_TRUE(storage_->CreateClaim(MakeClaim(2, Ref(1, 10))).ok());
  EXPECT_EQ(RemoveReplaced(*storage_, Ref(1, 10), 1).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(*storage_->ListCheckpoints(), SizeIs(2));
  EXPECT_TRUE(RemoveReplaced(*storage_, Ref(1, 10), 2).ok());
  EXPECT_THAT(*storage_->ListCheckpoints(), SizeIs(1));
}

TEST_F(LocalStorageTest, RemovesLeftoversOfOlderAttemptsAndKeepsCheckpoints) {
  Save(Ref(1, 10), "x");
  ASSERT_TRUE(storage_->WriteFile(Ref(1, 20), "a", absl::Cord("x")).ok());
  ASSERT_TRUE(storage_->WriteFile(Ref(2, 30), "a", absl::Cord("x")).ok());
  ASSERT_TRUE(storage_->RemoveIncomplete(2).ok());
  EXPECT_TRUE(*files_.Exists("/store/attempt-0001-step-000000000010"));
  EXPECT_FALSE(*files_.Exists("/store/attempt-0001-step-000000000020"));
  EXPECT_TRUE(*files_.Exists("/store/attempt-0002-step-000000000030"));
}

TEST_F(LocalStorageTest, RefusesStorageOfAnotherJobWithBothNamesAndDirectory) {
  ASSERT_TRUE(storage_->Probe().ok());
  EXPECT_TRUE(storage_->Own("team/first/u1").ok());
  EXPECT_TRUE(storage_->Own("team/first/u1").ok()) << "the job returns";
  for (const char* other : {"team/second/u1", "other/first/u1", "team/first-2/"}) {
    const absl::Status refused = storage_->Own(other);
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << other;
    EXPECT_THAT(refused.message(), HasSubstr("/store is job team/first/u1's"));
    EXPECT_THAT(refused.message(), HasSubstr(other));
    EXPECT_THAT(refused.message(), HasSubstr("restoreFrom"));
  }
  EXPECT_THAT(*files_.Read("/store/owner", 100), StartsWith("team/first/u1\ncrc32c "));
}

TEST_F(LocalStorageTest, RecreatedJobKeepsItsStorage) {
  ASSERT_TRUE(storage_->Probe().ok());
  ASSERT_TRUE(storage_->Own("team/first/u1").ok());
  EXPECT_TRUE(storage_->Own("team/first/u2").ok());
  EXPECT_TRUE(storage_->Own("team/first/").ok());
}

TEST_F(LocalStorageTest, OneOfSimultaneousJobsGetsStorageAndIsNamedToOthers) {
  ASSERT_TRUE(storage_->Probe().ok());
  constexpr int kJobs = 8;
  std::vector<absl::Status> owned(kJobs);
  std::vector<std::thread> threads;
  for (int i = 0; i < kJobs; ++i) {
    threads.emplace_back([&, i] {
      const auto storage = MakeLocalStorage(&files_, "/store", absl::StrCat("writer-", i));
      owned[i] = storage->Own(absl::StrCat("team/job-", i, "/u"));
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto winner = std::find(owned.begin(), owned.end(), absl::OkStatus());
  ASSERT_NE(winner, owned.end());

  for (auto status = owned.begin(); status != owned.end(); ++status) {
    if (status == winner) continue;
    EXPECT_THAT(status->message(), HasSubstr(absl::StrCat("job-", winner - owned.begin(), "/u's")));
  }
}

TEST_F(LocalStorageTest, StorageOfOlderVersionBelongsToJobOfNewestReadableIndex) {
  Save(Ref(1, 10), "x", "team/first/u1");
  Save(Ref(1, 20), "x", "team/first/u1");
  Overwrite(Path(Ref(1, 20), "manifest.json"), "{");
  EXPECT_EQ(storage_->Own("team/second/").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(*files_.Exists("/store/owner"));
  EXPECT_TRUE(storage_->Own("team/first/u2").ok());
  EXPECT_TRUE(*files_.Exists("/store/owner"));
}

TEST_F(LocalStorageTest, UnreadableOwnerIsAnError) {
  ASSERT_TRUE(storage_->Probe().ok());
  Overwrite("/store/owner", "not an owner file");
  EXPECT_EQ(storage_->Own("team/first/u1").code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(storage_->Own("team/first/u1").message(), HasSubstr("/store/owner"));
}

TEST_F(LocalStorageTest, RepairsDamagedOwnerFromCheckpoints) {
  ASSERT_TRUE(storage_->Probe().ok());
  ASSERT_TRUE(storage_->Own("team/first/u1").ok());
  const std::string whole = *files_.Read("/store/owner", 100);
  Save(Ref(1, 10), "x", "team/first/u1");
  for (size_t bit = 0; bit < whole.size() * 8; ++bit) {
    std::string flipped = whole;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    Overwrite("/store/owner", flipped);
    EXPECT_THAT(storage_->FindDamage(), ElementsAre(HasSubstr("/store/owner is damaged"))) << bit;
    EXPECT_EQ(storage_->Own("team/second/u1").code(), absl::StatusCode::kFailedPrecondition) << bit;
    EXPECT_TRUE(storage_->Own("team/first/u1").ok()) << bit;
    EXPECT_EQ(*files_.Read("/store/owner", 100), whole) << bit;
  }
}

TEST_F(LocalStorageTest, SetsVocabularyEncodingAndStreamStatesAside) {
  ASSERT_TRUE(storage_->Probe().ok());
  ASSERT_TRUE(storage_->SetEncodingsAside().ok()) << "there is none";
  for (const char* const name : {kVocabularyFile, kTableEncodingFile, kStreamStatesFile}) {
    Overwrite(absl::StrCat("/store/", name), "x");
  }
  ASSERT_TRUE(storage_->SetEncodingsAside().ok());
  for (const char* const name : {kVocabularyFile, kTableEncodingFile, kStreamStatesFile}) {
    EXPECT_FALSE(*files_.Exists(absl::StrCat("/store/", name)));
    EXPECT_TRUE(*files_.Exists(absl::StrCat("/store/", name, ".replaced")));
  }
}

TEST_F(LocalStorageTest, ProbeLeavesOnlyDirectories) {
  ASSERT_TRUE(storage_->Probe().ok());
  EXPECT_THAT(*files_.List("/store"), ElementsAre("claims"));
}

}  // namespace
}  // namespace sluice
