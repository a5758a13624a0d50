#include "services/download/download_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/common/io/fake_file_system.h"
#include "services/common/status_macros.h"
#include "services/download/sha256.h"

namespace sluice {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kUrl[] = "http://host/words.txt";

std::string ChecksumOf(const std::string& content) {
  Sha256 checksum;
  checksum.Append(content);
  return checksum.Finish();
}

// Sends configured answers, in pieces, and fails when configured to.
class FakeWeb final : public HttpGet {
 public:
  struct Answer {
    std::string body;
    absl::Status end;  // after the body
  };

  absl::Status Get(const std::string&, const Sink& sink, const std::function<bool()>&) override {
    ++requests;
    Answer answer = answers.size() > 1 ? std::move(answers.front()) : answers.front();
    if (answers.size() > 1) answers.pop_front();
    constexpr size_t kPiece = 3;
    for (size_t at = 0; at < answer.body.size(); at += kPiece) {
      if (on_piece) on_piece();
      RETURN_IF_ERROR(sink(answer.body.substr(at, kPiece), answer.body.size()));
    }
    return answer.end;
  }

  std::deque<Answer> answers;  // the last one for ever
  std::function<void()> on_piece;
  int requests = 0;
};

class DownloadCacheTest : public ::testing::Test {
 protected:
  DownloadCache Make() {
    DownloadCache::Options options;
    options.directory = "/cache";
    options.try_lock =
        [this](const std::string& path) -> absl::StatusOr<DownloadCache::LockHandle> {
      if (!locked_.insert(path).second) return DownloadCache::LockHandle();
      return std::shared_ptr<int>(new int, [this, path](const int* held) {
        locked_.erase(path);
        delete held;
      });
    };
    options.sleep = [this](absl::Duration time) {
      clock_.Advance(time);
      if (on_sleep_) on_sleep_();
    };
    options.cancelled = [this] { return cancelled_; };
    options.say = [this](const std::string& text) { said_.push_back(text); };
    return DownloadCache(options, &files_, &web_, &clock_);
  }

  static WebAddress AddressOf(const std::string& content) {
    return {kUrl, ChecksumOf(content), "words.txt"};
  }
  static std::string PathOf(const std::string& content) {
    return absl::StrCat("/cache/", ChecksumOf(content), "/words.txt");
  }
  std::string Content(const std::string& path) {
    const absl::StatusOr<std::string> content = files_.Read(path, 1 << 20);
    return content.ok() ? *content : content.status().ToString();
  }
  std::vector<std::string> Kept(const std::string& content) {
    const auto names = files_.List(absl::StrCat("/cache/", ChecksumOf(content)));
    return names.ok() ? *names : std::vector<std::string>{};
  }

  FakeFileSystem files_;
  FakeWeb web_;
  FakeClock clock_;
  std::set<std::string> locked_;
  std::function<void()> on_sleep_;
  bool cancelled_ = false;
  std::vector<std::string> said_;
};

TEST_F(DownloadCacheTest, ChecksumsMatchTheStandard) {
  EXPECT_EQ(ChecksumOf("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST_F(DownloadCacheTest, DownloadsAFileOnce) {
  web_.answers = {{"some words", absl::OkStatus()}};
  for (int i = 0; i < 3; ++i) {
    const absl::StatusOr<std::string> path = Make().Fetch(AddressOf("some words"));
    ASSERT_TRUE(path.ok()) << path.status();
    EXPECT_EQ(*path, PathOf("some words"));
    EXPECT_EQ(Content(*path), "some words");
  }
  EXPECT_EQ(web_.requests, 1);
  EXPECT_THAT(locked_, IsEmpty());
}

TEST_F(DownloadCacheTest, CompleteFileSurvivesPowerCut) {
  web_.answers = {{"some words", absl::OkStatus()}};
  ASSERT_TRUE(Make().Fetch(AddressOf("some words")).ok());
  files_.CutPower();
  EXPECT_EQ(Content(PathOf("some words")), "some words");
}

TEST_F(DownloadCacheTest, PartialDownloadNeverBecomesTheFile) {
  web_.answers = {{"some words", absl::OkStatus()}};
  for (int operation = 0; operation < 20; ++operation) {
    files_.FailAfter(operation);
    const absl::StatusOr<std::string> path = Make().Fetch(AddressOf("some words"));
    files_.FailNever();
    const absl::StatusOr<bool> there = files_.Exists(PathOf("some words"));
    ASSERT_TRUE(there.ok());
    if (*there) {
      EXPECT_EQ(Content(PathOf("some words")), "some words") << operation;
    }
    files_.CutPower();
  }
  const absl::StatusOr<std::string> path = Make().Fetch(AddressOf("some words"));
  ASSERT_TRUE(path.ok()) << path.status();
  EXPECT_EQ(Content(*path), "some words");
}

TEST_F(DownloadCacheTest, RejectsAndRemovesAFileWithAnotherChecksum) {
  web_.answers = {{"other words", absl::OkStatus()}};
  const absl::Status status = Make().Fetch(AddressOf("some words")).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(kUrl));
  EXPECT_THAT(std::string(status.message()), HasSubstr(ChecksumOf("other words")));
  EXPECT_THAT(std::string(status.message()), HasSubstr(ChecksumOf("some words")));
  EXPECT_THAT(Kept("some words"), IsEmpty());
  EXPECT_EQ(web_.requests, 1);
}

TEST_F(DownloadCacheTest, RetriesFromTheBeginningAfterABrokenConnection) {
  web_.answers = {{"some", absl::UnavailableError("cut")}, {"some words", absl::OkStatus()}};
  const absl::StatusOr<std::string> path = Make().Fetch(AddressOf("some words"));
  ASSERT_TRUE(path.ok()) << path.status();
  EXPECT_EQ(Content(*path), "some words");
  EXPECT_THAT(said_, Contains(HasSubstr("cut")));
}

TEST_F(DownloadCacheTest, GivesUpAfterMaxTriesWithAdvice) {
  web_.answers = {{"", absl::UnavailableError(absl::StrCat(kUrl, ": not reached"))}};
  const absl::Status status = Make().Fetch(AddressOf("some words")).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(kUrl));
  EXPECT_THAT(std::string(status.message()), HasSubstr("https_proxy"));
  EXPECT_EQ(web_.requests, 3);
  EXPECT_THAT(Kept("some words"), IsEmpty());
}

TEST_F(DownloadCacheTest, DoesNotRetryARefusal) {
  web_.answers = {{"", absl::NotFoundError(absl::StrCat(kUrl, ": 404"))}};
  const absl::Status status = Make().Fetch(AddressOf("some words")).status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("Check the address"));
  EXPECT_EQ(web_.requests, 1);
}

TEST_F(DownloadCacheTest, FullDiskErrorNamesTheDirectory) {
  web_.answers = {{"some words", absl::OkStatus()}};
  files_.SetCapacity(5);
  const absl::Status status = Make().Fetch(AddressOf("some words")).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(kUrl));
  EXPECT_THAT(std::string(status.message()), HasSubstr("Free space in /cache"));
  EXPECT_THAT(Kept("some words"), IsEmpty());
}

TEST_F(DownloadCacheTest, SecondProcessWaitsForTheFirst) {
  locked_.insert(absl::StrCat("/cache/", ChecksumOf("some words"), ".lock"));
  int slept = 0;
  on_sleep_ = [&] {
    if (++slept < 3) return;
    auto file = files_.Create(PathOf("some words"), false);
    ASSERT_TRUE(file.ok() && (*file)->Append("some words").ok());
    locked_.clear();
  };
  const absl::StatusOr<std::string> path = Make().Fetch(AddressOf("some words"));
  ASSERT_TRUE(path.ok()) << path.status();
  EXPECT_EQ(web_.requests, 0);
  EXPECT_THAT(said_,
              ElementsAre(HasSubstr("Another process is downloading http://host/words.txt")));
}

TEST_F(DownloadCacheTest, OverwritesThePartialFileOfADeadProcess) {
  ASSERT_TRUE(files_.CreateDirectories(absl::StrCat("/cache/", ChecksumOf("some words"))).ok());
  auto part = files_.Create(PathOf("some words") + ".part", false);
  ASSERT_TRUE(part.ok() && (*part)->Append("some words that are old").ok());
  web_.answers = {{"some words", absl::OkStatus()}};
  const absl::StatusOr<std::string> path = Make().Fetch(AddressOf("some words"));
  ASSERT_TRUE(path.ok()) << path.status();
  EXPECT_EQ(Content(*path), "some words");
  EXPECT_THAT(Kept("some words"), ElementsAre("words.txt"));
}

TEST_F(DownloadCacheTest, ReportsProgress) {
  web_.answers = {{"0123456789ab", absl::OkStatus()}};
  web_.on_piece = [&] { clock_.Advance(absl::Seconds(3)); };
  ASSERT_TRUE(Make().Fetch(AddressOf("0123456789ab")).ok());
  EXPECT_THAT(said_, ElementsAre(HasSubstr("Downloading http://host/words.txt to /cache/"),
                                 HasSubstr("words.txt: 50 % of"), HasSubstr("words.txt: 100 %")));
}

TEST_F(DownloadCacheTest, WaitingForTheLockCanBeCancelled) {
  locked_.insert(absl::StrCat("/cache/", ChecksumOf("some words"), ".lock"));
  on_sleep_ = [&] { cancelled_ = true; };
  EXPECT_TRUE(absl::IsCancelled(Make().Fetch(AddressOf("some words")).status()));
}

TEST_F(DownloadCacheTest, EnvironmentSetsTheDirectory) {
  std::map<std::string, std::string> variables;
  const auto variable = [&](const char* name) { return variables[name]; };
  EXPECT_EQ(CacheDirectory(variable), "");
  variables["HOME"] = "/home/me";
  EXPECT_EQ(CacheDirectory(variable), "/home/me/.cache/sluice");
  variables["XDG_CACHE_HOME"] = "/caches";
  EXPECT_EQ(CacheDirectory(variable), "/caches/sluice");
  variables["SLUICE_CACHE"] = "/big";
  EXPECT_EQ(CacheDirectory(variable), "/big");
}

TEST_F(DownloadCacheTest, LockHasOneHolderUntilItIsReleased) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/download.lock");
  absl::StatusOr<DownloadCache::LockHandle> first = FlockFile(path);
  ASSERT_TRUE(first.ok());
  EXPECT_NE(*first, nullptr);
  EXPECT_EQ(*FlockFile(path), nullptr);
  first->reset();
  EXPECT_NE(*FlockFile(path), nullptr);
}

}  // namespace
}  // namespace sluice
