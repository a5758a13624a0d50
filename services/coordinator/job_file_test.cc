#include "services/coordinator/job_file.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(JobFile, ReadsBackWhatWasWritten) {
  const auto file = ParseJobFile(
      R"({"name": "a", "training": {"mode": "ASYNCHRONOUS", "steps": "12345678901234567"},
          "model": {"dimensions": {"in": "8"}}, "backoff_limit": 3})");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(file->unknown_fields, IsEmpty());
  EXPECT_EQ(file->job.training().mode(), v1::ASYNCHRONOUS);
  EXPECT_EQ(file->job.training().steps(), 12345678901234567u);
  EXPECT_EQ(file->job.model().dimensions().at("in"), 8);
  EXPECT_EQ(file->job.backoff_limit(), 3u);
}

TEST(JobFile, NamesAndIgnoresFieldsOfNewerRelease) {
  const auto file = ParseJobFile(
      R"({"name": "a", "newThing": {"deep": [1]},
          "training": {"steps": "9", "newRate": 0.5},
          "model": {"stages": [{"layers": ["conv1"]}, {"device": "cpu", "newPlace": "here"}]}})");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(file->unknown_fields,
              ElementsAre("model.stages[1].newPlace", "newThing", "training.newRate"));
  EXPECT_EQ(file->job.training().steps(), 9u);
  EXPECT_EQ(file->job.model().stages_size(), 2);
  EXPECT_EQ(file->job.model().stages(1).device(), "cpu");
}

TEST(JobFile, RejectsValueOfNewerReleaseByName) {
  for (const char* mode : {R"("ELASTIC")", "77"}) {
    const auto file = ParseJobFile(
        absl::StrCat(R"({"name": "a", "newThing": 1, "training": {"mode": )", mode, "}}"));
    EXPECT_TRUE(absl::IsFailedPrecondition(file.status())) << file.status();
    EXPECT_THAT(file.status().message(), HasSubstr("training.mode"));
    EXPECT_THAT(file.status().message(), HasSubstr(mode));
  }
}

TEST(JobFile, ContentThatIsNotAJobIsAnError) {
  for (const char* text : {"", "nonsense", "[]", R"({"name": 7, "training": 3})",
                           R"({"training": {"steps": "many"}})", "{\"name\": \"\xff\"}"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseJobFile(text).status())) << text;
  }
}

}  // namespace
}  // namespace sluice::coordinator
