// Which checkpoint a job continues from, also in a damaged storage, and the text of claims and
// checkpoint indexes.
#include "services/checkpoint/storage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "services/checkpoint/testing/storage_fixture.h"

namespace sluice {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

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

TEST_F(LocalStorageTest, CheckOfSizesFindsMissingShortAndLongFilesAndReadsNone) {
  ASSERT_TRUE(storage_->CreateClaim(MakeClaim(1)).ok());
  Save(Ref(1, 10), "flipped");
  Save(Ref(1, 20), "cut short");
  Save(Ref(1, 30), "long");
  Save(Ref(1, 40), "missing");
  Overwrite(Path(Ref(1, 10), "partition-00000.safetensors"), "fLipped");
  Overwrite(Path(Ref(1, 20), "partition-00000.safetensors"), "cut");
  Overwrite(Path(Ref(1, 30), "partition-00000.safetensors"), "longer");
  ASSERT_TRUE(files_.Remove(Path(Ref(1, 40), "partition-00000.safetensors")).ok());
  const auto point = FindRestorePoint(*storage_, FileCheck::kSizes);
  ASSERT_TRUE(point.ok()) << point.status();
  ASSERT_TRUE(point->found);
  EXPECT_EQ(point->checkpoint_index.checkpoint().step(), 10u);
  EXPECT_THAT(point->damaged, ElementsAre(HasSubstr("step-000000000040"),
                                          HasSubstr("is longer than the index's 4 bytes"),
                                          HasSubstr("has 3 bytes, not the index's 9")));
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

TEST_F(LocalStorageTest, DamagedCheckpointOfUnclaimedAttemptIsNamedAndPassedOver) {
  ASSERT_TRUE(storage_->CreateClaim(MakeClaim(1)).ok());
  Save(Ref(9, 90), "x");
  Overwrite(Path(Ref(9, 90), "manifest.json"), "");
  const absl::Status alone = FindRestorePoint(*storage_).status();
  EXPECT_EQ(alone.code(), absl::StatusCode::kFailedPrecondition) << "it would begin at zero";
  EXPECT_THAT(alone.message(), HasSubstr("claims were removed"));

  Save(Ref(1, 10), "x");
  const absl::StatusOr<RestorePoint> point = FindRestorePoint(*storage_);
  ASSERT_TRUE(point.ok()) << point.status();
  EXPECT_EQ(point->checkpoint_index.checkpoint().step(), 10u);
  EXPECT_THAT(point->damaged, ElementsAre(HasSubstr("attempt-0009-step-000000000090")));
  EXPECT_THAT(Names(point->passed_over), ElementsAre("9/90"));

  Save(Ref(8, 80), "x");
  EXPECT_THAT(FindRestorePoint(*storage_).status().message(), HasSubstr("claims were removed"))
      << "this one is whole";
}

// Files that users and tools leave in a directory, on a real file system.
class ForeignFilesTest : public ::testing::Test {
 protected:
  ForeignFilesTest() {
    EXPECT_TRUE(storage_->Probe().ok());
    EXPECT_TRUE(storage_->CreateClaim(MakeClaim(1)).ok());
    EXPECT_TRUE(
        storage_->WriteFile(Ref(1, 10), "partition-00000.safetensors", absl::Cord("x")).ok());
    v1::CheckpointIndex index;
    index.set_format_version(kCheckpointFormatVersion);
    *index.mutable_checkpoint() = Ref(1, 10);
    EXPECT_TRUE(storage_->WriteCheckpointIndex(index).ok());
  }

  static std::string NewDirectory() {
    std::string name = absl::StrCat(::testing::TempDir(), "/storageXXXXXX");
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    return name;
  }
  std::string Path(const std::string& name) const { return JoinPath(root_, name); }

  // The job continues from its checkpoint, and names `what`, if it is not empty.
  void ExpectContinues(const std::string& what) {
    EXPECT_TRUE(storage_->Probe().ok()) << storage_->Probe();
    const absl::StatusOr<RestorePoint> point = FindRestorePoint(*storage_);
    ASSERT_TRUE(point.ok()) << point.status();
    EXPECT_EQ(point->checkpoint_index.checkpoint().step(), 10u);
    if (!what.empty()) EXPECT_THAT(point->damaged, Contains(HasSubstr(what)));
    EXPECT_TRUE(storage_->RemoveIncomplete(100).ok());
  }

  const std::string root_ = NewDirectory();
  std::unique_ptr<FileSystem> files_ = MakeRealFileSystem();
  std::unique_ptr<CheckpointStorage> storage_ = MakeLocalStorage(files_.get(), root_, "test");
};

TEST_F(ForeignFilesTest, OtherKindsOfFilesNamedLikeACheckpointAreIgnored) {
  std::ofstream(Path("attempt-0001-step-000000000392")) << "a file";
  ASSERT_EQ(mkfifo(Path("attempt-0001-step-000000000393").c_str(), 0600), 0);
  ASSERT_EQ(
      symlink("attempt-0001-step-000000000394", Path("attempt-0001-step-000000000394").c_str()), 0);
  ASSERT_EQ(symlink("nowhere", Path("attempt-0001-step-000000000395").c_str()), 0);
  ASSERT_EQ(symlink("/dev/zero", Path("attempt-0007-step-000000000396").c_str()), 0);
  for (const char* const step : {"392", "393", "394", "396"}) ExpectContinues(step);
  EXPECT_TRUE(std::ifstream(Path("attempt-0001-step-000000000392")).good()) << "it is kept";
}

TEST_F(ForeignFilesTest, LinkOfUnclaimedAttemptToACheckpointIsPassedOver) {
  ASSERT_EQ(
      symlink("attempt-0001-step-000000000010", Path("attempt-0009-step-000000000900").c_str()), 0);
  ExpectContinues("attempt-0009-step-000000000900, of an attempt without a claim, is damaged");
}

TEST_F(ForeignFilesTest, LinkNamedLikeANewCheckpointDoesNotReplaceFilesOfAnotherOne) {
  ASSERT_EQ(
      symlink("attempt-0001-step-000000000010", Path("attempt-0001-step-000000000020").c_str()), 0);
  const absl::Status status =
      storage_->WriteFile(Ref(1, 20), "partition-00000.safetensors", absl::Cord("new"));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_EQ(*files_->Read(Path("attempt-0001-step-000000000010/partition-00000.safetensors"), 9),
            "x");
  EXPECT_TRUE(storage_->WriteFile(Ref(1, 10), "partition-00000.safetensors", absl::Cord("x")).ok())
      << "its own files may be written again";
  ASSERT_TRUE(AtomicWriteFile(files_.get(), Path("attempt-0001-step-000000000010/manifest.json"),
                              absl::Cord("damaged"), "t")
                  .ok());
  EXPECT_TRUE(storage_->WriteFile(Ref(1, 10), "partition-00000.safetensors", absl::Cord("x")).ok())
      << "also if its index is damaged";
}

// Reading must not wait for a writer of the pipe, or the test hangs here.
TEST_F(ForeignFilesTest, PipeAsIndexOfUnclaimedAttemptIsPassedOver) {
  ASSERT_EQ(mkdir(Path("attempt-0009-step-000000000900").c_str(), 0700), 0);
  ASSERT_EQ(mkfifo(Path("attempt-0009-step-000000000900/manifest.json").c_str(), 0600), 0);
  ExpectContinues("it is a pipe");
}

// Its number cannot be claimed any more, so it counts as claimed.
TEST_F(ForeignFilesTest, DanglingLinkNamedLikeAClaimIsADamagedClaim) {
  ASSERT_EQ(symlink("nowhere", Path("claims/000003.json").c_str()), 0);
  ExpectContinues("claims/000003.json: it is a link to a file that does not exist");
  const absl::StatusOr<std::vector<v1::Claim>> claims = storage_->ReadClaims();
  ASSERT_TRUE(claims.ok()) << claims.status();
  ASSERT_THAT(*claims, SizeIs(3));
  EXPECT_TRUE(IsDamaged(claims->back()));
  EXPECT_EQ(storage_->CreateClaim(MakeClaim(3)).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(storage_->CreateClaim(MakeClaim(4)).ok());
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

}  // namespace
}  // namespace sluice
