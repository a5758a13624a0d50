#include "services/checkpoint/storage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <thread>

#include "absl/strings/str_cat.h"
#include "services/checkpoint/local_storage.h"
#include "services/common/crc32c.h"
#include "services/common/fake_file_system.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

v1::CheckpointRef Ref(uint64_t attempt, uint64_t step) {
  v1::CheckpointRef ref;
  ref.set_attempt(attempt);
  ref.set_step(step);
  return ref;
}

v1::Claim MakeClaim(uint64_t attempt) {
  v1::Claim claim;
  claim.set_format_version(kCheckpointFormatVersion);
  claim.set_attempt(attempt);
  return claim;
}

v1::Claim MakeClaim(uint64_t attempt, const v1::CheckpointRef& parent) {
  v1::Claim claim = MakeClaim(attempt);
  *claim.mutable_parent() = parent;
  return claim;
}

std::vector<std::string> Names(const std::vector<v1::CheckpointRef>& refs) {
  std::vector<std::string> names;
  for (const v1::CheckpointRef& ref : refs) {
    names.push_back(absl::StrCat(ref.attempt(), "/", ref.step()));
  }
  return names;
}

TEST(RestoreCandidatesTest, TheNewestOfTheHighestAttemptIsFirstThenItsParentDownwards) {
  const std::vector<v1::Claim> claims = {MakeClaim(1), MakeClaim(2, Ref(1, 20)),
                                         MakeClaim(3, Ref(2, 30))};
  EXPECT_THAT(Names(RestoreCandidates(claims, {Ref(1, 10), Ref(1, 20), Ref(1, 25), Ref(2, 30),
                                               Ref(2, 40), Ref(3, 50), Ref(3, 60)})),
              ElementsAre("3/60", "3/50", "2/30", "1/20", "1/10"));
}

TEST(RestoreCandidatesTest, AnOlderAttemptNeverWinsAgainstTheParentOfTheHighestClaim) {
  // Attempt 2 was abandoned at 40 when attempt 3 began again from 1/20.
  const std::vector<v1::Claim> claims = {MakeClaim(1), MakeClaim(2, Ref(1, 20)),
                                         MakeClaim(3, Ref(1, 20))};
  EXPECT_THAT(Names(RestoreCandidates(claims, {Ref(1, 20), Ref(2, 40)})), ElementsAre("1/20"));
}

TEST(RestoreCandidatesTest, WhatReplacedAParentThatIsGoneStandsForIt) {
  // Attempt 2 was claimed while attempt 1, not dead after all, replaced 1/10 by 1/20.
  const std::vector<v1::Claim> claims = {MakeClaim(1), MakeClaim(2, Ref(1, 10))};
  EXPECT_THAT(Names(RestoreCandidates(claims, {Ref(1, 20)})), ElementsAre("1/20"));
  EXPECT_THAT(Names(RestoreCandidates(claims, {Ref(1, 10), Ref(1, 20)})), ElementsAre("1/10"));
}

TEST(RestoreCandidatesTest, AClaimWithoutParentIsANewBirth) {
  EXPECT_THAT(RestoreCandidates({MakeClaim(1), MakeClaim(2)}, {Ref(1, 10)}), IsEmpty());
  EXPECT_THAT(RestoreCandidates({}, {Ref(1, 10)}), IsEmpty());
}

TEST(RestoreCandidatesTest, TheEndRecordIsNoAttempt) {
  v1::Claim end = MakeClaim(2);
  end.set_end(true);
  EXPECT_THAT(Names(RestoreCandidates({MakeClaim(1), end}, {Ref(1, 10)})), ElementsAre("1/10"));
}

TEST(RestoreCandidatesTest, AParentThatIsNotOlderEndsTheSearch) {
  EXPECT_THAT(RestoreCandidates({MakeClaim(1, Ref(1, 5))}, {Ref(2, 1)}), IsEmpty());
}

TEST(CheckpointFolderTest, NamesSortAsTheirNumbersAndParseBack) {
  EXPECT_EQ(CheckpointFolder(Ref(1, 500)), "attempt-0001-step-000000000500");
  EXPECT_LT(CheckpointFolder(Ref(9, 99)), CheckpointFolder(Ref(10, 1)));
  const auto ref = ParseCheckpointFolder("attempt-12345-step-1234567890123");
  ASSERT_TRUE(ref.ok());
  EXPECT_EQ(ref->step(), 1234567890123u);
  for (const char* bad : {"", "claims", "attempt-1-step-2", "attempt-0001-step-00000000050x"}) {
    EXPECT_FALSE(ParseCheckpointFolder(bad).ok()) << bad;
  }
}

class LocalStorageTest : public ::testing::Test {
 protected:
  // A checkpoint of one file.
  v1::Manifest Save(const v1::CheckpointRef& ref, const std::string& content,
                    const std::string& job = "") {
    EXPECT_TRUE(storage_->WriteFile(ref, "partition-00000.safetensors", absl::Cord(content)).ok());
    v1::Manifest manifest;
    manifest.set_format_version(kCheckpointFormatVersion);
    manifest.set_job(job);
    *manifest.mutable_checkpoint() = ref;
    v1::PartitionFile& file = *manifest.add_files();
    file.set_name("partition-00000.safetensors");
    file.set_bytes(content.size());
    file.set_crc32c(Crc32c(content));
    EXPECT_TRUE(storage_->WriteManifest(manifest).ok());
    return manifest;
  }

  std::string Path(const v1::CheckpointRef& ref, const std::string& name) {
    return absl::StrCat("/store/", CheckpointFolder(ref), "/", name);
  }
  void Overwrite(const std::string& path, const std::string& content) {
    ASSERT_TRUE(AtomicWriteFile(&files_, path, absl::Cord(content), "test").ok());
  }

  FakeFileSystem files_;
  std::unique_ptr<CheckpointStorage> storage_ = MakeLocalStorage(&files_, "/store", "a");
};

TEST_F(LocalStorageTest, OfTwoClaimsOfOneAttemptTheFirstStands) {
  v1::Claim first = MakeClaim(1);
  first.mutable_term()->set_counter(7);
  ASSERT_TRUE(storage_->CreateClaim(first).ok());
  EXPECT_EQ(storage_->CreateClaim(MakeClaim(1)).code(), absl::StatusCode::kAlreadyExists);
  const auto claims = storage_->ReadClaims();
  ASSERT_TRUE(claims.ok());
  ASSERT_THAT(*claims, SizeIs(1));
  EXPECT_EQ(claims->front().term().counter(), 7u);
}

TEST_F(LocalStorageTest, ClaimsAreThereAfterAPowerCut) {
  ASSERT_TRUE(storage_->CreateClaim(MakeClaim(1)).ok());
  files_.CutPower();
  EXPECT_THAT(*storage_->ReadClaims(), SizeIs(1));
}

TEST_F(LocalStorageTest, AnEmptyStorageHasNothingAndSaysSo) {
  EXPECT_THAT(*storage_->ReadClaims(), IsEmpty());
  EXPECT_THAT(*storage_->ListCheckpoints(), IsEmpty());
  const auto point = FindRestorePoint(*storage_);
  ASSERT_TRUE(point.ok());
  EXPECT_FALSE(point->found);
}

TEST_F(LocalStorageTest, AFolderWithoutManifestIsNoCheckpoint) {
  ASSERT_TRUE(storage_->WriteFile(Ref(1, 10), "partition-00000.safetensors", absl::Cord("x")).ok());
  EXPECT_THAT(*storage_->ListCheckpoints(), IsEmpty());
  Save(Ref(1, 10), "x");
  EXPECT_THAT(Names(*storage_->ListCheckpoints()), ElementsAre("1/10"));
}

TEST_F(LocalStorageTest, ACompleteCheckpointSurvivesAPowerCutWhole) {
  ASSERT_TRUE(storage_->CreateClaim(MakeClaim(1)).ok());
  Save(Ref(1, 10), "content");
  files_.CutPower();
  const auto point = FindRestorePoint(*storage_);
  ASSERT_TRUE(point.ok()) << point.status();
  ASSERT_TRUE(point->found);
  EXPECT_EQ(*storage_->ReadFile(Ref(1, 10), point->manifest.files(0)), "content");
}

TEST_F(LocalStorageTest, ACrashAtAnyWriteLeavesAWholeCheckpointOrNone) {
  ASSERT_TRUE(storage_->CreateClaim(MakeClaim(1)).ok());
  Save(Ref(1, 10), "older");
  for (int operation = 0;; ++operation) {
    files_.FailAfter(operation);
    v1::Manifest manifest;
    manifest.set_format_version(kCheckpointFormatVersion);
    *manifest.mutable_checkpoint() = Ref(1, 20);
    v1::PartitionFile& file = *manifest.add_files();
    file.set_name("p");
    file.set_bytes(5);
    file.set_crc32c(Crc32c("newer"));
    absl::Status status = storage_->WriteFile(Ref(1, 20), "p", absl::Cord("newer"));
    if (status.ok()) status = storage_->WriteManifest(manifest);
    files_.FailNever();
    files_.CutPower();
    const auto point = FindRestorePoint(*storage_);
    ASSERT_TRUE(point.ok()) << point.status();
    ASSERT_TRUE(point->found);
    EXPECT_THAT(point->damaged, IsEmpty()) << "crash at operation " << operation;
    if (status.ok()) {
      EXPECT_EQ(point->manifest.checkpoint().step(), 20u);
      break;
    }
    ASSERT_TRUE(storage_->Remove(Ref(1, 20)).ok());
  }
}

TEST_F(LocalStorageTest, ADiskThatIsFullIsSaidAndChangesNothing) {
  ASSERT_TRUE(storage_->CreateClaim(MakeClaim(1)).ok());
  Save(Ref(1, 10), "older");
  files_.SetCapacity(1000);
  EXPECT_EQ(storage_->WriteFile(Ref(1, 20), "p", absl::Cord(std::string(4096, 'x'))).code(),
            absl::StatusCode::kResourceExhausted);
  files_.SetCapacity(1 << 20);
  EXPECT_EQ(FindRestorePoint(*storage_)->manifest.checkpoint().step(), 10u);
}

TEST_F(LocalStorageTest, ADamagedCheckpointIsNamedAndTheNextOlderIsUsed) {
  ASSERT_TRUE(storage_->CreateClaim(MakeClaim(1)).ok());
  Save(Ref(1, 10), "good");
  Save(Ref(1, 20), "flipped");
  Save(Ref(1, 30), "cut short");
  Save(Ref(1, 40), "manifest");
  Overwrite(Path(Ref(1, 20), "partition-00000.safetensors"), "fLipped");
  Overwrite(Path(Ref(1, 30), "partition-00000.safetensors"), "cut");
  Overwrite(Path(Ref(1, 40), "manifest.json"), "{");
  const auto point = FindRestorePoint(*storage_);
  ASSERT_TRUE(point.ok()) << point.status();
  ASSERT_TRUE(point->found);
  EXPECT_EQ(point->manifest.checkpoint().step(), 10u);
  EXPECT_THAT(point->damaged, ElementsAre(HasSubstr("step-000000000040"), HasSubstr("3 bytes"),
                                          HasSubstr("CRC32C")));
}

TEST_F(LocalStorageTest, AManifestInAnotherFoldersPlaceIsRefused) {
  Save(Ref(1, 10), "x");
  const auto text = files_.Read(Path(Ref(1, 10), "manifest.json"), 1 << 20);
  ASSERT_TRUE(text.ok());
  ASSERT_TRUE(files_.CreateDirectories("/store/attempt-0001-step-000000000011").ok());
  Overwrite(Path(Ref(1, 11), "manifest.json"), *text);
  EXPECT_EQ(storage_->ReadManifest(Ref(1, 11)).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(LocalStorageTest, AManifestsFileNamesCannotLeaveItsFolder) {
  v1::PartitionFile file;
  file.set_name("../secret");
  EXPECT_EQ(storage_->ReadFile(Ref(1, 1), file).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(LocalStorageTest, AClaimThatCannotBeReadIsAnErrorAndNotAGuess) {
  ASSERT_TRUE(storage_->CreateClaim(MakeClaim(1)).ok());
  Overwrite("/store/claims/000002.json", "not json");
  EXPECT_EQ(storage_->ReadClaims().status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(storage_->ReadClaims().status().message(), HasSubstr("000002.json"));
}

TEST_F(LocalStorageTest, ANewerFormatIsRefusedByItsNumber) {
  v1::Claim claim = MakeClaim(1);
  claim.set_format_version(99);
  ASSERT_TRUE(storage_->CreateClaim(claim).ok());
  EXPECT_THAT(storage_->ReadClaims().status().message(), HasSubstr("99"));
}

TEST_F(LocalStorageTest, RemovingTakesAllFilesAndMayBeRepeated) {
  Save(Ref(1, 10), "x");
  EXPECT_TRUE(storage_->Remove(Ref(1, 10)).ok());
  EXPECT_TRUE(storage_->Remove(Ref(1, 10)).ok());
  EXPECT_FALSE(*files_.Exists("/store/attempt-0001-step-000000000010"));
}

TEST_F(LocalStorageTest, AReplacedCheckpointStaysIfAnotherAttemptMayBeginWithIt) {
  Save(Ref(1, 10), "ten");
  Save(Ref(1, 20), "twenty");
  ASSERT_TRUE(storage_->CreateClaim(MakeClaim(1)).ok());
  ASSERT_TRUE(storage_->CreateClaim(MakeClaim(2, Ref(1, 10))).ok());
  EXPECT_EQ(RemoveReplaced(*storage_, Ref(1, 10), 1).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(*storage_->ListCheckpoints(), SizeIs(2));
  EXPECT_TRUE(RemoveReplaced(*storage_, Ref(1, 10), 2).ok());
  EXPECT_THAT(*storage_->ListCheckpoints(), SizeIs(1));
}

TEST_F(LocalStorageTest, LeftoversOfOlderAttemptsAreRemovedAndCheckpointsStay) {
  Save(Ref(1, 10), "x");
  ASSERT_TRUE(storage_->WriteFile(Ref(1, 20), "a", absl::Cord("x")).ok());
  ASSERT_TRUE(storage_->WriteFile(Ref(2, 30), "a", absl::Cord("x")).ok());
  ASSERT_TRUE(storage_->RemoveIncomplete(2).ok());
  EXPECT_TRUE(*files_.Exists("/store/attempt-0001-step-000000000010"));
  EXPECT_FALSE(*files_.Exists("/store/attempt-0001-step-000000000020"));
  EXPECT_TRUE(*files_.Exists("/store/attempt-0002-step-000000000030"));
}

TEST_F(LocalStorageTest, AJobsStorageIsRefusedToAnotherJobWithBothNamesAndTheFolder) {
  ASSERT_TRUE(storage_->Probe().ok());
  EXPECT_TRUE(storage_->Own("team/first/u1").ok());
  EXPECT_TRUE(storage_->Own("team/first/u1").ok()) << "it comes back";
  for (const char* other : {"team/second/u1", "other/first/u1", "team/first-2/"}) {
    const absl::Status refused = storage_->Own(other);
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << other;
    EXPECT_THAT(refused.message(), HasSubstr("/store is job team/first/u1's"));
    EXPECT_THAT(refused.message(), HasSubstr(other));
    EXPECT_THAT(refused.message(), HasSubstr("restoreFrom"));
  }
  EXPECT_EQ(*files_.Read("/store/owner", 100), "team/first/u1\n");
}

TEST_F(LocalStorageTest, AJobThatIsDeletedAndAppliedAgainGoesOnWithItsStorage) {
  ASSERT_TRUE(storage_->Probe().ok());
  ASSERT_TRUE(storage_->Own("team/first/u1").ok());
  EXPECT_TRUE(storage_->Own("team/first/u2").ok());
  EXPECT_TRUE(storage_->Own("team/first/").ok());
}

TEST_F(LocalStorageTest, OfJobsThatBeginAtOnceOneGetsTheStorageAndTheOthersLearnWhich) {
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

TEST_F(LocalStorageTest, AStorageOfAnOlderVersionIsWhoseItsNewestReadableManifestIs) {
  Save(Ref(1, 10), "x", "team/first/u1");
  Save(Ref(1, 20), "x", "team/first/u1");
  Overwrite(Path(Ref(1, 20), "manifest.json"), "{");
  EXPECT_EQ(storage_->Own("team/second/").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(*files_.Exists("/store/owner"));
  EXPECT_TRUE(storage_->Own("team/first/u2").ok());
  EXPECT_TRUE(*files_.Exists("/store/owner"));
}

TEST_F(LocalStorageTest, AnOwnerThatCannotBeUnderstoodIsAnErrorAndNotAGuess) {
  ASSERT_TRUE(storage_->Probe().ok());
  Overwrite("/store/owner", "somebody");
  EXPECT_EQ(storage_->Own("team/first/u1").code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(storage_->Own("team/first/u1").message(), HasSubstr("/store/owner"));
}

TEST_F(LocalStorageTest, AProbeLeavesNothingButTheFolders) {
  ASSERT_TRUE(storage_->Probe().ok());
  EXPECT_THAT(*files_.List("/store"), ElementsAre("claims"));
}

}  // namespace
}  // namespace sluice
