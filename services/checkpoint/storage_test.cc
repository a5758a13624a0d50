#include "services/checkpoint/storage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "services/checkpoint/local_storage.h"
#include "services/common/crc32c.h"
#include "services/common/fake_file_system.h"

namespace sluice {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

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

TEST(RestoreCandidatesTest, BeginWithNewestOfHighestAttemptThenParentsDownwards) {
  const std::vector<v1::Claim> claims = {MakeClaim(1), MakeClaim(2, Ref(1, 20)),
                                         MakeClaim(3, Ref(2, 30))};
  EXPECT_THAT(Names(RestoreCandidates(claims, {Ref(1, 10), Ref(1, 20), Ref(1, 25), Ref(2, 30),
                                               Ref(2, 40), Ref(3, 50), Ref(3, 60)})),
              ElementsAre("3/60", "3/50", "2/30", "1/20", "1/10"));
}

TEST(RestoreCandidatesTest, PreferParentOfHighestClaimToOlderAttempts) {
  // Attempt 2 was abandoned at 40 when attempt 3 began again from 1/20.
  const std::vector<v1::Claim> claims = {MakeClaim(1), MakeClaim(2, Ref(1, 20)),
                                         MakeClaim(3, Ref(1, 20))};
  EXPECT_THAT(Names(RestoreCandidates(claims, {Ref(1, 20), Ref(2, 40)})), ElementsAre("1/20"));
}

TEST(RestoreCandidatesTest, UseReplacementOfMissingParent) {
  // Attempt 2 was claimed while attempt 1, still alive, replaced 1/10 by 1/20.
  const std::vector<v1::Claim> claims = {MakeClaim(1), MakeClaim(2, Ref(1, 10))};
  EXPECT_THAT(Names(RestoreCandidates(claims, {Ref(1, 20)})), ElementsAre("1/20"));
  EXPECT_THAT(Names(RestoreCandidates(claims, {Ref(1, 10), Ref(1, 20)})), ElementsAre("1/10"));
}

TEST(RestoreCandidatesTest, UseReplacementThatLaterAttemptMadeOfParent) {
  // Attempt 3 was claimed with the parent with which attempt 2 had begun. Attempt 2, still alive,
  // replaced that checkpoint meanwhile.
  const std::vector<v1::Claim> claims = {MakeClaim(1), MakeClaim(2, Ref(1, 10)),
                                         MakeClaim(3, Ref(1, 10))};
  EXPECT_THAT(Names(RestoreCandidates(claims, {Ref(2, 20), Ref(2, 30)})),
              ElementsAre("2/30", "2/20"));
  EXPECT_THAT(Names(RestoreCandidates(claims, {Ref(1, 10), Ref(2, 20)})), ElementsAre("1/10"));
  // A checkpoint of attempt 3 replaced it: attempt 2 was abandoned.
  EXPECT_THAT(Names(RestoreCandidates(claims, {Ref(2, 20), Ref(3, 15)})), ElementsAre("3/15"));
}

TEST(RestoreCandidatesTest, ClaimWithoutParentStartsNewModel) {
  EXPECT_THAT(RestoreCandidates({MakeClaim(1), MakeClaim(2)}, {Ref(1, 10)}), IsEmpty());
  EXPECT_THAT(RestoreCandidates({}, {Ref(1, 10)}), IsEmpty());
}

TEST(RestoreCandidatesTest, EndRecordIsNotAnAttempt) {
  v1::Claim end = MakeClaim(2);
  end.set_end(true);
  EXPECT_THAT(Names(RestoreCandidates({MakeClaim(1), end}, {Ref(1, 10)})), ElementsAre("1/10"));
}

TEST(RestoreCandidatesTest, ParentThatIsNotOlderEndsSearch) {
  EXPECT_THAT(RestoreCandidates({MakeClaim(1, Ref(1, 5))}, {Ref(2, 1)}), IsEmpty());
}

TEST(CheckpointDirectoryTest, NamesSortLikeTheirNumbersAndParseBack) {
  EXPECT_EQ(CheckpointDirectory(Ref(1, 500)), "attempt-0001-step-000000000500");
  EXPECT_LT(CheckpointDirectory(Ref(9, 99)), CheckpointDirectory(Ref(10, 1)));
  const auto ref = ParseCheckpointDirectory("attempt-12345-step-1234567890123");
  ASSERT_TRUE(ref.ok());
  EXPECT_EQ(ref->step(), 1234567890123u);
  for (const char* bad : {"", "claims", "attempt-1-step-2", "attempt-0001-step-00000000050x"}) {
    EXPECT_FALSE(ParseCheckpointDirectory(bad).ok()) << bad;
  }
}

class LocalStorageTest : public ::testing::Test {
 protected:
  // A checkpoint of one file.
  v1::CheckpointIndex Save(const v1::CheckpointRef& ref, const std::string& content,
                           const std::string& job = "") {
    EXPECT_TRUE(storage_->WriteFile(ref, "partition-00000.safetensors", absl::Cord(content)).ok());
    v1::CheckpointIndex checkpoint_index;
    checkpoint_index.set_format_version(kCheckpointFormatVersion);
    checkpoint_index.set_job(job);
    *checkpoint_index.mutable_checkpoint() = ref;
    v1::PartitionFile& file = *checkpoint_index.add_files();
    file.set_name("partition-00000.safetensors");
    file.set_bytes(content.size());
    file.set_crc32c(Crc32c(content));
    EXPECT_TRUE(storage_->WriteCheckpointIndex(checkpoint_index).ok());
    return checkpoint_index;
  }

  // The same, but the process dies when everything except the directory is synced.
  void SaveButForTheLastSync(const v1::CheckpointRef& ref) {
    const v1::CheckpointIndex checkpoint_index = Save(ref, "content");
    const auto write_again = [&] {
      ASSERT_TRUE(storage_->Remove(ref).ok());
      ASSERT_TRUE(
          storage_->WriteFile(ref, checkpoint_index.files(0).name(), absl::Cord("content")).ok());
    };

    write_again();
    const int before = files_.operations();
    ASSERT_TRUE(storage_->WriteCheckpointIndex(checkpoint_index).ok());
    const int last = files_.operations() - before - 1;

    write_again();
    files_.FailAfter(last);
    ASSERT_FALSE(storage_->WriteCheckpointIndex(checkpoint_index).ok());
    files_.FailNever();
    ASSERT_TRUE(ReadWholeCheckpoint(*storage_, ref).ok());
  }

  std::string Path(const v1::CheckpointRef& ref, const std::string& name) {
    return absl::StrCat("/store/", CheckpointDirectory(ref), "/", name);
  }
  void Overwrite(const std::string& path, const std::string& content) {
    ASSERT_TRUE(AtomicWriteFile(&files_, path, absl::Cord(content), "test").ok());
  }

  FakeFileSystem files_;
  std::unique_ptr<CheckpointStorage> storage_ = MakeLocalStorage(&files_, "/store", "a");
};

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

TEST_F(LocalStorageTest, NamesDamagedCheckpointAndUsesNextOlder) {
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
  EXPECT_EQ(point->checkpoint_index.checkpoint().step(), 10u);
  EXPECT_THAT(point->damaged, ElementsAre(HasSubstr("step-000000000040"), HasSubstr("3 bytes"),
                                          HasSubstr("CRC32C")));
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

TEST_F(LocalStorageTest, NamesAndIgnoresJunkAmongClaims) {
  ASSERT_TRUE(storage_->CreateClaim(MakeClaim(1)).ok());
  for (const char* junk : {"README", "1.json", "000000.json", "00000x.json", "000001.json~"}) {
    Overwrite(absl::StrCat("/store/claims/", junk), "junk");
  }
  Overwrite("/store/claims/000002.json.tmp-7-1", "a writer that died");
  Save(Ref(1, 10), "x");
  const auto point = FindRestorePoint(*storage_);
  ASSERT_TRUE(point.ok()) << point.status();
  EXPECT_TRUE(point->found);
  EXPECT_THAT(point->damaged, SizeIs(5));
  EXPECT_THAT(point->damaged, Contains(HasSubstr("README is not a claim and is ignored")));
}

TEST_F(LocalStorageTest, ClaimFarAboveOthersIsAnErrorWithAdvice) {
  ASSERT_TRUE(storage_->CreateClaim(MakeClaim(1)).ok());
  ASSERT_TRUE(storage_->CreateClaim(MakeClaim(UINT64_MAX)).ok());
  Save(Ref(1, 10), "x");
  const absl::Status status = FindRestorePoint(*storage_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("18446744073709551615.json"));
  EXPECT_THAT(status.message(), HasSubstr("Remove this claim"));
}

TEST_F(LocalStorageTest, CheckpointsWithoutClaimsAreAnErrorWithAdvice) {
  Save(Ref(1, 10), "x");
  for (int claims = 0; claims < 2; ++claims) {
    if (claims == 1) {
      ASSERT_TRUE(storage_->CreateClaim(MakeClaim(1)).ok());
      Save(Ref(2, 20), "x");
    }
    const absl::Status status = FindRestorePoint(*storage_).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(status.message(), HasSubstr("claims were removed"));
    EXPECT_THAT(status.message(), HasSubstr("restoreFrom"));
  }
}

TEST_F(LocalStorageTest, NamesAllCheckpointsIfNoneIsWhole) {
  ASSERT_TRUE(storage_->CreateClaim(MakeClaim(1)).ok());
  Save(Ref(1, 10), "x");
  Overwrite(Path(Ref(1, 10), "manifest.json"), "{");
  const absl::Status status = FindRestorePoint(*storage_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("attempt-0001-step-000000000010 is damaged"));
}

TEST_F(LocalStorageTest, MissingParentWithoutOtherCheckpointsIsAnError) {
  ASSERT_TRUE(storage_->CreateClaim(MakeClaim(1)).ok());
  EXPECT_FALSE(FindRestorePoint(*storage_)->found) << "the job died before its first checkpoint";
  ASSERT_TRUE(storage_->CreateClaim(MakeClaim(2, Ref(1, 10))).ok());
  const absl::Status status = FindRestorePoint(*storage_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("attempt 2 began with attempt-0001-step-000000000010"));
  v1::Claim end = MakeClaim(3);
  end.set_end(true);
  ASSERT_TRUE(storage_->CreateClaim(end).ok());
  EXPECT_FALSE(FindRestorePoint(*storage_)->found) << "a finished job needs no checkpoint";
}

TEST_F(LocalStorageTest, TriesAttemptOfDamagedClaimThenTheOneBelow) {
  ASSERT_TRUE(storage_->CreateClaim(MakeClaim(1)).ok());
  ASSERT_TRUE(storage_->CreateClaim(MakeClaim(2, Ref(1, 10))).ok());
  Save(Ref(1, 10), "x");
  Overwrite("/store/claims/000002.json", "");
  auto point = FindRestorePoint(*storage_);
  ASSERT_TRUE(point.ok()) << point.status();
  EXPECT_EQ(point->checkpoint_index.checkpoint().step(), 10u);
  EXPECT_THAT(point->damaged, ElementsAre(HasSubstr("000002.json")));
  Save(Ref(2, 20), "x");
  point = FindRestorePoint(*storage_);
  EXPECT_EQ(point->checkpoint_index.checkpoint().step(), 20u);
  EXPECT_EQ(RemoveReplaced(*storage_, Ref(1, 10), 1).code(), absl::StatusCode::kFailedPrecondition)
      << "a damaged claim is a claim";
}

TEST_F(LocalStorageTest, RejectsNewerFormatByNumberAndDoesNotSkipIt) {
  ASSERT_TRUE(storage_->CreateClaim(MakeClaim(1)).ok());
  Save(Ref(1, 10), "x");
  Save(Ref(1, 20), "x");
  Overwrite(Path(Ref(1, 20), "manifest.json"), "{\"format_version\": 99, \"colour\": \"red\"}");
  EXPECT_EQ(FindRestorePoint(*storage_).status().code(), absl::StatusCode::kUnimplemented);
  Overwrite("/store/claims/000002.json", "{\"format_version\": 99}");
  EXPECT_EQ(storage_->ReadClaims().status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(storage_->ReadClaims().status().message(), HasSubstr("99"));
}

// Files as versions before the checksums wrote them.
constexpr char kOldClaim[] = R"({
 "format_version": 1,
 "attempt": "1",
 "term": {
  "counter": "1",
  "coordinator": "77"
 },
 "time": "2026-11-01T10:00:00.5+00:00"
}
)";
constexpr char kOldIndex[] = R"({
 "format_version": 1,
 "job": "team/first/u1",
 "checkpoint": {
  "attempt": "1",
  "step": "10"
 },
 "mode": "ASYNCHRONOUS",
 "samples": "40",
 "ledger": {
  "applied": [
   {
    "end": "40"
   }
  ],
  "updates": "10"
 },
 "files": [
  {
   "name": "partition-00000.safetensors",
   "bytes": "1",
   "crc32c": 2839306131
  }
 ],
 "time": "2026-11-01T10:00:01.5+00:00"
}
)";

class OldFormatTest : public LocalStorageTest {
 protected:
  OldFormatTest() {
    EXPECT_TRUE(files_.CreateDirectories("/store/claims").ok());
    EXPECT_TRUE(files_.CreateDirectories("/store/attempt-0001-step-000000000010").ok());
    Overwrite("/store/claims/000001.json", kOldClaim);
    Overwrite("/store/owner", "team/first/u1\n");
    Overwrite(Path(Ref(1, 10), "partition-00000.safetensors"), "x");
    Overwrite(Path(Ref(1, 10), "manifest.json"), kOldIndex);
  }
  absl::Status ReadIndexText(const std::string& from, const std::string& to) {
    const std::string text = absl::StrReplaceAll(kOldIndex, {{from, to}});
    EXPECT_NE(text, kOldIndex) << from;
    Overwrite(Path(Ref(1, 10), "manifest.json"), text);
    return ReadWholeCheckpoint(*storage_, Ref(1, 10)).status();
  }
};

TEST_F(OldFormatTest, IsReadAndUsed) {
  EXPECT_TRUE(storage_->Own("team/first/u2").ok());
  EXPECT_EQ(storage_->Own("team/second/u1").code(), absl::StatusCode::kFailedPrecondition);
  const auto point = FindRestorePoint(*storage_);
  ASSERT_TRUE(point.ok()) << point.status();
  ASSERT_TRUE(point->found) << absl::StrJoin(point->damaged, "; ");
  EXPECT_THAT(point->damaged, IsEmpty());
  EXPECT_EQ(point->checkpoint_index.ledger().applied(0).end(), 40u);
}

TEST_F(OldFormatTest, RenamedKeyOrContradictoryValuesAreDamage) {
  const std::pair<const char*, const char*> edits[] = {
      {"\"ledger\"", "\"lidger\""},
      {"\"mode\"", "\"modd\""},
      {"\"updates\": \"10\"", "\"updates\": \"11\""},
      {"\"end\": \"40\"", "\"end\": \"18446744073709551615\""},
      {"\"end\": \"40\"", "\"end\": \"41\""},
      {"\"samples\": \"40\"", "\"samples\": \"42\""},
      {"\"mode\": \"ASYNCHRONOUS\"", "\"mode\": 7"},
      {"\"name\": \"partition-00000.safetensors\"", "\"name\": \"../x\""},
      {"team", "te\xFFm"},
      {"\"time\"", "\"crc32c\": \"00000000\",\n \"time\""}};
  for (const auto& [from, to] : edits) {
    const absl::Status status = ReadIndexText(from, to);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << to << ": " << status;
  }
}

TEST(ChecksumTest, DetectsEveryFlippedBitAndTruncationOfClaimAndIndex) {
  v1::Claim claim = MakeClaim(3, Ref(2, 10));
  claim.mutable_term()->set_counter(4);
  claim.set_time("2026-11-01T10:00:00.5+00:00");
  const std::string whole = ClaimToJson(claim);
  ASSERT_TRUE(ClaimFromJson(whole).ok()) << ClaimFromJson(whole).status() << whole;
  EXPECT_EQ(ClaimFromJson(whole)->parent().step(), 10u);
  for (size_t bit = 0; bit < whole.size() * 8; ++bit) {
    std::string flipped = whole;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_EQ(ClaimFromJson(flipped).status().code(), absl::StatusCode::kDataLoss)
        << "bit " << bit << ": " << flipped;
  }
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_EQ(ClaimFromJson(whole.substr(0, size)).status().code(), absl::StatusCode::kDataLoss);
  }
}

TEST(ChecksumTest, RejectsDeepNestingBeforeParsing) {
  const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');
  const absl::Status status = CheckpointIndexFromJson(deep).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("nested deeper"));
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

TEST_F(LocalStorageTest, ProbeLeavesOnlyDirectories) {
  ASSERT_TRUE(storage_->Probe().ok());
  EXPECT_THAT(*files_.List("/store"), ElementsAre("claims"));
}

}  // namespace
}  // namespace sluice
