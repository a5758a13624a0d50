#include "services/manifest/job_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "services/manifest/field_table.h"
#include "services/manifest/manifest.h"
#include "services/manifest/testing/example_manifests.h"

namespace sluice::api {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(JobFile, HasEveryJobOfTheTablesExamplesToTheBit) {
  int jobs = 0;
  for (const Field& field : Fields()) {
    for (const Example& example : field.examples) {
      const ParsedManifest parsed = ParseManifest(ManifestWith(field, example.yaml), {});
      ASSERT_TRUE(parsed.ok()) << field.path;
      v1::JobSpec job = parsed.job.spec;
      job.set_uid("u1");
      job.set_tls(jobs % 2 == 0 ? v1::JobSpec::TLS_ENABLED : v1::JobSpec::TLS_DISABLED);
      const auto file = ParseJobFile(JobFileText(job));
      ASSERT_TRUE(file.ok()) << field.path << ": " << file.status();
      EXPECT_THAT(file->unknown_fields, IsEmpty());
      EXPECT_EQ(file->job.DebugString(), job.DebugString()) << field.path;
      ++jobs;
    }
  }
  EXPECT_GT(jobs, 100);
}

TEST(JobFile, IsInTheFormOfAManifest) {
  const ParsedManifest parsed = ParseManifest(MinimalManifest().dump(), {});
  const auto json = nlohmann::json::parse(JobFileText(parsed.job.spec, -1));
  EXPECT_EQ(json["spec"]["optimizer"]["name"], "SGD");
  EXPECT_EQ(json["spec"]["training"]["determinism"], "Default");
  EXPECT_FALSE(json["spec"].contains("tls"));
  EXPECT_TRUE(ParseManifest(JobFileText(parsed.job.spec), {}).ok());
}

TEST(JobFile, NamesAndIgnoresFieldsOfNewerRelease) {
  const auto file = ParseJobFile(
      R"({"metadata": {"name": "a", "uid": "u"}, "newThing": {"deep": [1]}, "spec": {
          "training": {"steps": 9, "newRate": 0.5}, "model": {"dimensions": {"in": 8},
          "stages": [{"layers": ["conv1"]}, {"device": "cpu", "newPlace": "here"}]}}})");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(file->unknown_fields,
              ElementsAre("newThing", "spec.model.stages[1].newPlace", "spec.training.newRate"));
  EXPECT_EQ(file->job.uid(), "u");
  EXPECT_EQ(file->job.training().steps(), 9u);
  EXPECT_EQ(file->job.model().dimensions().at("in"), 8);
  EXPECT_EQ(file->job.model().stages_size(), 2);
  EXPECT_EQ(file->job.model().stages(1).device(), "cpu");
}

TEST(JobFile, RejectsValueOfNewerReleaseByName) {
  const auto file = ParseJobFile(R"({"newThing": 1, "spec": {"training": {"mode": "Elastic"}}})");
  EXPECT_TRUE(absl::IsFailedPrecondition(file.status())) << file.status();
  EXPECT_THAT(file.status().message(), HasSubstr(R"(spec.training.mode: "Elastic")"));
  EXPECT_TRUE(
      absl::IsFailedPrecondition(ParseJobFile(R"({"spec": {"tls": "OfTomorrow"}})").status()));
}

TEST(JobFile, ContentThatIsNotAJobIsAnErrorThatNamesThePlace) {
  for (const auto& [text, problem] :
       {std::pair("", "not a TrainingJob"),
        {"nonsense", "not a TrainingJob"},
        {"[]", "not a TrainingJob"},
        {R"({"name": "a", "training": {}})", "`sluice render`"},
        {R"({"spec": 3})", "spec must be of type object"},
        {R"({"spec": {"training": {"mode": 77}}})", "spec.training.mode must be of type string"},
        {R"({"spec": {"training": {"steps": "9"}}})",
         "spec.training.steps must be of type integer"},
        {R"({"spec": {"training": {"steps": -1}}})", "spec.training.steps"},
        {R"({"spec": {"worker": {"replicas": 4294967297}}})",
         "spec.worker.replicas must be at most"},
        {R"({"spec": {"model": {"dimensions": {"in": []}}}})", "spec.model.dimensions.in must be"},
        {"{\"metadata\": \"\xff\"}", "UTF-8"}}) {
    const auto file = ParseJobFile(text);
    EXPECT_TRUE(absl::IsInvalidArgument(file.status())) << text;
    EXPECT_THAT(file.status().message(), HasSubstr(problem)) << text;
  }
}

}  // namespace
}  // namespace sluice::api
