// The samples are valid manifests, have the same training as the examples, and set the resources of
// their pods.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "services/manifest/manifest.h"

namespace sluice {
namespace {

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<std::filesystem::path> Samples() {
  std::vector<std::filesystem::path> samples;
  for (const auto& entry : std::filesystem::directory_iterator("k8s/samples")) {
    if (absl::StrContains(ReadFile(entry.path()), "kind: TrainingJob")) {
      samples.push_back(entry.path());
    }
  }
  return samples;
}

TEST(Samples, AreValidJobsWhosePodsSetRequestsAndLimits) {
  const std::vector<std::filesystem::path> samples = Samples();
  ASSERT_GE(samples.size(), 8);
  for (const std::filesystem::path& path : samples) {
    SCOPED_TRACE(path.string());
    const absl::StatusOr<api::TrainingJob> job = api::ReadManifest(path.string());
    ASSERT_TRUE(job.ok()) << job.status();
    for (const auto& [role, name] : std::vector<std::pair<std::string, std::string>>{
             {"coordinator", "coordinator"}, {"parameterServer", "ps"}, {"worker", "worker"}}) {
      SCOPED_TRACE(role);
      const nlohmann::json& container =
          job->cluster.at(role).at("template").at("spec").at("containers").at(0);
      EXPECT_EQ(container.at("name"), name);
      EXPECT_TRUE(container.at("resources").at("requests").contains("cpu"));
      EXPECT_TRUE(container.at("resources").at("requests").contains("memory"));
      EXPECT_TRUE(container.at("resources").at("limits").contains("memory"));
    }
  }
}

// A job without shared storage cannot be restored from a checkpoint, so it must not be.
TEST(Samples, KeepTheirCheckpointsOnAClaimOrAreNeverRestored) {
  for (const std::filesystem::path& path : Samples()) {
    SCOPED_TRACE(path.string());
    const absl::StatusOr<api::TrainingJob> job = api::ReadManifest(path.string());
    ASSERT_TRUE(job.ok()) << job.status();
    const bool claim = job->cluster.contains("checkpoint");
    EXPECT_TRUE(claim || job->spec.backoff_limit() == 0);
  }
}

TEST(Samples, HaveUniqueNamesAndBeginWithAComment) {
  std::vector<std::string> names;
  for (const std::filesystem::path& path : Samples()) {
    SCOPED_TRACE(path.string());
    EXPECT_TRUE(absl::StartsWith(ReadFile(path), "# "));
    const absl::StatusOr<api::TrainingJob> job = api::ReadManifest(path.string());
    ASSERT_TRUE(job.ok()) << job.status();
    names.push_back(job->spec.name());
  }
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::unique(names.begin(), names.end()), names.end());
}

// The fields that determine the training, except for the data set: samples and examples may train
// on different images of the same size.
std::string Training(const api::TrainingJob& job) {
  v1::JobSpec spec;
  *spec.mutable_model() = job.spec.model();
  for (v1::ModelSpec::Stage& stage : *spec.mutable_model()->mutable_stages()) stage.clear_device();
  *spec.mutable_data() = job.spec.data();
  spec.mutable_data()->mutable_source()->clear_path();
  spec.mutable_data()->clear_normalize();
  *spec.mutable_optimizer() = job.spec.optimizer();
  *spec.mutable_training() = job.spec.training();
  return spec.DebugString();
}

TEST(Samples, TrainAsTheExamplesDo) {
  for (const auto& [name, example] : std::vector<std::pair<std::string, std::string>>{
           {"additive-live", "additive-live"},
           {"additive-sharded", "additive-sharded"},
           {"lstm-random", "lstm-random"},
           {"mlp-random", "mlp-random"},
           {"mnist-asynchronous", "mnist-asynchronous"},
           {"mnist-synchronous", "mnist-synchronous"},
           {"pool", "pool"},
           {"queues", "queues"},
           {"server-execution", "server-stages"},
           {"staleness-rule", "staleness-rule"},
           {"stragglers", "stragglers"}}) {
    SCOPED_TRACE(name);
    const auto sample = api::ReadManifest(absl::StrCat("k8s/samples/", name, ".yaml"));
    const auto local = api::ReadManifest(absl::StrCat("examples/", example, ".yaml"));
    ASSERT_TRUE(sample.ok()) << sample.status();
    ASSERT_TRUE(local.ok()) << local.status();
    EXPECT_EQ(Training(*sample), Training(*local));
    EXPECT_EQ(sample->spec.worker().replicas(), local->spec.worker().replicas());
    EXPECT_EQ(sample->spec.parameter_server().replicas(),
              local->spec.parameter_server().replicas());
  }
}

// `helm test` runs it without claims.
TEST(Samples, TheJobOfHelmTestIsValid) {
  const absl::StatusOr<api::TrainingJob> job =
      api::ReadManifest("helm/sluice/files/helm_test_job.yaml");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->spec.backoff_limit(), 0);
}

}  // namespace
}  // namespace sluice
