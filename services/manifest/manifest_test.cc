#include "services/manifest/manifest.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <fstream>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "services/manifest/codec.h"
#include "services/manifest/field_table.h"
#include "services/manifest/testing/invalid_manifests.h"

namespace sluice::api {
namespace {

using ::testing::HasSubstr;

std::string ProblemsOf(const std::string& yaml) {
  std::string text;
  for (const Problem& problem : ParseManifest(yaml, {}).problems) {
    absl::StrAppend(&text, text.empty() ? "" : "\n", problem.ToString(""));
  }
  return text;
}

TrainingJob MustParse(const std::string& yaml, const std::string& base = "") {
  ParsedManifest parsed = ParseManifest(yaml, base);
  EXPECT_TRUE(parsed.ok()) << ProblemsOf(yaml);
  return parsed.job;
}

std::string With(const std::string& from, const std::string& to) {
  return absl::StrReplaceAll(ValidManifest(), {{from, to}});
}

// A directory for files of this test.
std::string Directory() {
  std::string directory = ::testing::TempDir();
  while (directory.back() == '/') directory.pop_back();
  return directory;
}

class InvalidManifestTest : public ::testing::TestWithParam<InvalidManifest> {};

TEST_P(InvalidManifestTest, IsRejectedWithPlaceAndReason) {
  ASSERT_NE(GetParam().yaml, ValidManifest());
  std::string problem = ProblemsOf(GetParam().yaml);
  // Without a file name, no "file:" precedes the place.
  if (!problem.empty() && problem[0] == ':') problem.erase(0, 1);
  EXPECT_EQ(problem, GetParam().problem) << GetParam().yaml;
}

INSTANTIATE_TEST_SUITE_P(All, InvalidManifestTest, ::testing::ValuesIn(InvalidManifests()),
                         [](const auto& info) { return info.param.name; });

TEST(Manifest, FillsInDefaultsOfAMinimalManifest) {
  const v1::JobSpec spec = MustParse(ValidManifest()).spec;
  EXPECT_EQ(spec.name(), "job");
  EXPECT_EQ(spec.namespace_(), "default");
  EXPECT_EQ(spec.uid(), "");
  EXPECT_EQ(spec.model().device(), "cpu");
  EXPECT_EQ(spec.model().dtype(), v1::DATA_TYPE_UNSPECIFIED);
  EXPECT_FALSE(spec.data().no_shuffle());
  EXPECT_FALSE(spec.data().has_evaluation());
  EXPECT_EQ(spec.optimizer().learning_rate(), 1e-3);
  EXPECT_EQ(spec.training().mode(), v1::SYNCHRONOUS);
  EXPECT_EQ(spec.training().global_batch_size(), 64);
  EXPECT_EQ(spec.training().microbatch_size(), 4);
  EXPECT_EQ(spec.training().steps(), 100);
  EXPECT_EQ(spec.training().epochs(), 0);
  EXPECT_FALSE(spec.training().bit_exact());
  EXPECT_EQ(spec.parameter_server().partitions(), 64);
  EXPECT_EQ(spec.checkpoint().interval_seconds(), 300);
  EXPECT_EQ(spec.checkpoint().max_to_keep(), 3);
  EXPECT_EQ(spec.timeouts().suspect(), 1);
  EXPECT_EQ(spec.timeouts().heartbeat_timeout(), 5);
  EXPECT_EQ(spec.backoff_limit(), 6);
}

TEST(Manifest, OptimizersHaveTheDefaultsOfPyTorch) {
  const v1::OptimizerSpec adam = MustParse(With("SGD", "Adam")).spec.optimizer();
  EXPECT_EQ(adam.learning_rate(), 1e-3);
  EXPECT_EQ(adam.beta1(), 0.9);
  EXPECT_EQ(adam.beta2(), 0.999);
  EXPECT_EQ(adam.eps(), 1e-8);
  EXPECT_EQ(adam.weight_decay(), 0);
  EXPECT_EQ(MustParse(With("SGD", "AdamW")).spec.optimizer().weight_decay(), 1e-2);
  const v1::OptimizerSpec adagrad = MustParse(With("SGD", "Adagrad")).spec.optimizer();
  EXPECT_EQ(adagrad.learning_rate(), 1e-2);
  EXPECT_EQ(adagrad.eps(), 1e-10);
}

TEST(Manifest, ACheckpointIntervalInStepsReplacesTheDefaultInSeconds) {
  const v1::JobSpec spec =
      MustParse(With("  worker:", "  checkpoint: {intervalSteps: 50}\n  worker:")).spec;
  EXPECT_EQ(spec.checkpoint().interval_steps(), 50);
  EXPECT_EQ(spec.checkpoint().interval_seconds(), 0);
}

TEST(Manifest, IntegersMayBeWrittenAsNumbers) {
  EXPECT_EQ(MustParse(With("steps: 100", "steps: 1e4")).spec.training().steps(), 10000);
  EXPECT_EQ(MustParse(With("steps: 100", "steps: 20.0")).spec.training().steps(), 20);
}

TEST(Manifest, RelativePathsAreRelativeToTheDirectoryOfTheManifest) {
  const TrainingJob job = MustParse(
      absl::StrReplaceAll(With("path: /data", "path: ../data/mnist"),
                          {{"  worker:", "  checkpoint: {storage: {path: ckpt}}\n  worker:"}}),
      "/home/me/jobs");
  EXPECT_EQ(job.spec.data().source().path(), "/home/me/data/mnist");
  EXPECT_EQ(job.spec.checkpoint().directory(), "/home/me/jobs/ckpt");
  EXPECT_EQ(MustParse(ValidManifest(), "/home").spec.data().source().path(), "/data");
}

constexpr char kForClusters[] = R"(apiVersion: sluice.dev/v1alpha1
kind: TrainingJob
metadata: {name: job}
spec:
  image: registry.example.com/sluice:v1
  model: {name: mlp}
  data: {format: IDX, source: {path: /data/mnist, volume: {claimName: datasets}}}
  optimizer: {name: SGD}
  training: {steps: 100}
  worker:
    replicas: 2
    template:
      metadata: {labels: {team: vision}}
      spec:
        priorityClassName: batch
        tolerations: [{key: spot, operator: Exists}]
        containers: [{name: worker, resources: {limits: {cpu: "1", memory: 1Gi}}, tty: no, stdin: }]
        terminationGracePeriodSeconds: 30
  checkpoint: {storage: {type: PersistentVolumeClaim, claimName: checkpoints}}
  nodeFailure: {tolerationSeconds: 5}
)";

TEST(Manifest, KeepsClusterFieldsUnchanged) {
  const TrainingJob job = MustParse(kForClusters, "/home/me");
  EXPECT_EQ(job.cluster["worker"]["template"], nlohmann::json::parse(R"({
    "metadata": {"labels": {"team": "vision"}},
    "spec": {"priorityClassName": "batch", "terminationGracePeriodSeconds": 30,
             "tolerations": [{"key": "spot", "operator": "Exists"}],
             "containers": [{"name": "worker", "tty": false,
                             "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}]}})"));
  EXPECT_FALSE(job.cluster["worker"].contains("replicas"));
  EXPECT_EQ(job.cluster["checkpoint"]["storage"], nlohmann::json({{"claimName", "checkpoints"}}));
  EXPECT_EQ(job.cluster["nodeFailure"]["forceDeleteAfterSeconds"], 10);
  EXPECT_EQ(ToJson(FromJson(ToJson(job))), ToJson(job));
  EXPECT_EQ(ToJson(job)["spec"]["checkpoint"]["storage"]["type"], "PersistentVolumeClaim");
}

TEST(Manifest, ListsClusterFieldsThatOneMachineIgnores) {
  EXPECT_THAT(ClusterFields(MustParse(kForClusters)),
              ::testing::ElementsAre("spec.image", "spec.data.source.volume",
                                     "spec.worker.template", "spec.checkpoint.storage.claimName",
                                     "spec.nodeFailure.tolerationSeconds"));
  EXPECT_THAT(ClusterFields(MustParse(ValidManifest())), ::testing::IsEmpty());
  // Its checkpoints are in the job's own directory.
  EXPECT_EQ(MustParse(kForClusters).spec.checkpoint().directory(), "");
}

TEST(Manifest, NamesAnInvalidNumberInAPodTemplate) {
  EXPECT_THAT(
      ProblemsOf(With("  worker:", "  worker:\n    template: {spec: {hostNetwork: [010]}}")),
      HasSubstr("spec.worker.template.spec.hostNetwork[0]: must be in decimal"));
}

TEST(Manifest, AcceptsAJobReadBackFromACluster) {
  const std::string yaml =
      With("  name: job",
           "  name: job\n  uid: abc\n  resourceVersion: \"5\"\n  generation: 2\n"
           "  managedFields: [{manager: kubectl}]") +
      "status: {summary: running, conditions: []}\n";
  EXPECT_EQ(ProblemsOf(yaml), "");
}

TEST(Manifest, KeepsWrittenFieldsWithoutDefaultsAndServerFields) {
  const ParsedManifest parsed = ParseManifest(
      "apiVersion: sluice.dev/v1alpha1\n"
      "kind: TrainingJob\n"
      "metadata: {name: job, uid: abc, generation: 2, labels: {team: vision}}\n"
      "spec:\n"
      "  model: {name: mlp}\n"
      "  data: {format: IDX, source: {path: data/idx}}\n"
      "  optimizer: {name: SGD, learningRate: 0.1}\n"
      "  training: {steps: 10}\n"
      "  worker: {template: {spec: {tolerations: [{key: spot, value: yes}]}}}\n"
      "status: {summary: running}\n",
      {});
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed.written, nlohmann::json::parse(R"({
    "apiVersion": "sluice.dev/v1alpha1", "kind": "TrainingJob",
    "metadata": {"name": "job", "labels": {"team": "vision"}},
    "spec": {"model": {"name": "mlp"}, "data": {"format": "IDX", "source": {"path": "data/idx"}},
             "optimizer": {"name": "SGD", "learningRate": 0.1}, "training": {"steps": 10},
             "worker": {"template": {"spec": {"tolerations": [{"key": "spot", "value": true}]}}}}
  })"));
}

TEST(Manifest, ReportsProblemsInOrderUpToABound) {
  std::string yaml = absl::StrReplaceAll(
      ValidManifest(),
      {{"name: mlp", "nam: mlp"}, {"steps: 100", "steps: x"}, {"name: SGD", "name: Sgd"}});
  EXPECT_EQ(ParseManifest(yaml, {}).problems.size(), 3);
  EXPECT_THAT(ProblemsOf(yaml), ::testing::ContainsRegex("nam: (.|\n)*Sgd(.|\n)*steps: must"));
  for (int i = 0; i < 50; ++i) absl::StrAppend(&yaml, "unknown", i, ": 1\n");
  EXPECT_EQ(ParseManifest(yaml, {}).problems.size(), kMaxProblems);
}

TEST(Manifest, ChecksRulesOnlyIfTheirFieldsAreValid) {
  // The end is missing only because its name is misspelt.
  EXPECT_EQ(ParseManifest(With("steps: 100", "stpes: 100"), {}).problems.size(), 1);
}

TEST(Manifest, RejectsAnOversizedTextWithoutParsing) {
  EXPECT_THAT(ProblemsOf(std::string(kMaxManifestBytes + 1, '[')),
              HasSubstr("at most 1048576 bytes"));
}

constexpr char kClaim[] =
    "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: checkpoints}\n";

TEST(Manifest, ObjectsOfOtherKindsMayBeBesideTheJob) {
  for (const std::string& yaml : {absl::StrCat(kClaim, "---\n", ValidManifest()),
                                  absl::StrCat(ValidManifest(), "---\n", kClaim)}) {
    const ParsedManifest parsed = ParseManifest(yaml, {});
    ASSERT_TRUE(parsed.ok()) << ProblemsOf(yaml);
    EXPECT_EQ(parsed.job.spec.name(), "job");
    EXPECT_EQ(parsed.written["kind"], "TrainingJob");
    ASSERT_EQ(parsed.others.size(), 1);
    EXPECT_EQ(parsed.others[0].kind, "PersistentVolumeClaim");
  }
  EXPECT_EQ(ProblemsOf(kClaim), ":2:1: kind: must be TrainingJob, not \"PersistentVolumeClaim\"");
  const std::string misspelt = "---\napiVersion: sluice.dev/v1alpha1\nkind: Trainingjob\n";
  EXPECT_THAT(ProblemsOf(absl::StrCat(ValidManifest(), misspelt)),
              HasSubstr("kind: must be TrainingJob, not \"Trainingjob\""));
}

// `sluice run --cluster` creates the job alone.
TEST(Manifest, ObjectsOfOtherKindsAreRefusedForAClusterWithTheirLine) {
  const std::string path = Directory() + "/claim_and_job.yaml";
  std::ofstream(path) << ValidManifest() << "---\n" << kClaim;
  EXPECT_TRUE(ReadManifest(path).ok());
  const absl::Status refused = ReadClusterManifest(path).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("claim_and_job.yaml:21:1: sluice applies only the TrainingJob, and a "
                        "PersistentVolumeClaim begins here"));
}

TEST(Manifest, NamesTheEncodingOfATextThatIsNotUtf8) {
  std::string wide = "\xFF\xFE";
  for (const char c : std::string(ValidManifest())) wide += {c, '\0'};
  EXPECT_THAT(ProblemsOf(wide), HasSubstr("is UTF-16: should be UTF-8"));
}

TEST(Manifest, TablesMayListThousandsOfColumns) {
  const auto problems = [](int numeric, int categorical, bool overlap = false) {
    nlohmann::json csv = {{"labelColumn", "y"}};
    for (int i = 0; i < numeric; ++i) csv["numericColumns"].push_back(absl::StrCat("n", i));
    for (int i = 0; i < categorical; ++i) csv["categoricalColumns"].push_back(absl::StrCat("c", i));
    if (overlap) csv["categoricalColumns"].back() = csv["numericColumns"].back();
    nlohmann::json job = MinimalManifest();
    job["spec"]["data"] = {{"format", "CSV"}, {"source", {{"path", "/t.csv"}}}, {"csv", csv}};
    return ProblemsOf(job.dump());
  };
  EXPECT_EQ(problems(4096, 1024), "");
  EXPECT_THAT(problems(4097, 0), HasSubstr("at most 4096 items, not 4097"));
  EXPECT_THAT(problems(1, 1025), HasSubstr("at most 1024 items, not 1025"));
  EXPECT_THAT(problems(4096, 1024, true), HasSubstr("either numeric or categorical, not both"));
}

TEST(Manifest, ConvertsBetweenJsonAndJobWithoutLoss) {
  for (const char* optimizer : {"SGD", "Adagrad", "Adam", "AdamW", "Add"}) {
    const TrainingJob job = MustParse(With("SGD", optimizer));
    const TrainingJob again = FromJson(ToJson(job));
    EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(job.spec, again.spec))
        << job.spec.DebugString() << again.spec.DebugString();
  }
}

TEST(Manifest, ReadsJsonOfTheWrongShapeAsAnEmptyJob) {
  for (const char* text : {"null", "[]", "3", R"({"spec":[],"metadata":5})",
                           R"({"spec":{"model":{"name":3,"dimensions":[1]},"data":{"synthetic":7},
                              "optimizer":{"betas":"x","groups":{"a":1}},"training":{"steps":-5}}})"}) {
    const TrainingJob job = FromJson(nlohmann::json::parse(text));
    EXPECT_EQ(job.spec.training().steps(), 0) << text;
    EXPECT_EQ(job.spec.model().name(), "") << text;
  }
}

// Deletes, duplicates and replaces pieces of a valid manifest at random. Every result is accepted
// or rejected with a reason; an accepted one can be converted and read back.
TEST(Manifest, HandlesMutatedTexts) {
  const std::string pieces[] = {":",  "\n",     "  ",   "- ",   "[",     "]",    "{",    "}",
                                "*a", "&a ",    "\"",   "'",    "#",     "|",    ">",    "---\n",
                                "? ", "!!int ", "%",    "@",    "`",     "\t",   "\xff", "0",
                                "-1", "1e999",  "null", "<<: ", "steps", "\r\n", ","};
  std::mt19937 random(20240501);
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  int accepted = 0, refused = 0;
  for (int round = 0; round < 10000; ++round) {
    std::string text = ValidManifest();
    for (size_t change = below(3) + 1; change > 0; --change) {
      const size_t at = below(text.size());
      const size_t length = std::min(below(12) + 1, text.size() - at);
      switch (below(4)) {
        case 0:
          text.erase(at, length);
          break;
        case 1:
          text.insert(at, text.substr(at, length));
          break;
        case 2:
          text.insert(at, pieces[below(std::size(pieces))]);
          break;
        default:
          text[at] = static_cast<char>(' ' + below(95));
      }
      if (text.empty()) text = "x";
    }
    const ParsedManifest parsed = ParseManifest(text, {});
    if (!parsed.ok()) {
      ++refused;
      for (const Problem& problem : parsed.problems) ASSERT_FALSE(problem.message.empty()) << text;
      continue;
    }
    ++accepted;
    const TrainingJob again = FromJson(ToJson(parsed.job));
    ASSERT_TRUE(google::protobuf::util::MessageDifferencer::Equals(parsed.job.spec, again.spec))
        << text;
  }
  // Both outcomes really occur.
  EXPECT_GT(accepted, 50);
  EXPECT_GT(refused, 2500);
}

TEST(ReadManifest, NamesFileAndPlace) {
  const std::string path = Directory() + "/bad.yaml";
  std::ofstream(path) << With("steps: 100", "stpes: 100");
  const absl::Status status = ReadManifest(path).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(),
            path + ":15:5: spec.training.stpes: unknown field; did you mean `steps`?");
}

TEST(ReadManifest, ResolvesRelativePathsAgainstTheFilesDirectory) {
  const std::string directory = Directory();
  std::ofstream(directory + "/good.yaml") << With("path: /data", "path: data");
  const absl::StatusOr<TrainingJob> job = ReadManifest(directory + "/good.yaml");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->spec.data().source().path(), directory + "/data");
}

TEST(ReadManifest, AppliesTheSameRulesToValuesOfFlags) {
  const std::string directory = Directory();
  const std::string path = directory + "/flags.yaml";
  std::ofstream(path) << absl::StrReplaceAll(
      ValidManifest(),
      {{"path: /data", "path: data"}, {"steps: 100", "steps: 1e2\n    seed: 9007199254740993"}});
  const std::vector<Override> three = {{"--shards 3", "spec.parameterServer.replicas", 3},
                                       {"--workers 5", "spec.worker.replicas", 5}};
  const absl::StatusOr<TrainingJob> job = ReadManifest(path, three);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->spec.parameter_server().replicas(), 3u);
  EXPECT_EQ(job->spec.worker().replicas(), 5u);
  EXPECT_EQ(job->spec.data().source().path(), directory + "/data");
  EXPECT_EQ(job->spec.training().steps(), 100u);
  EXPECT_EQ(job->spec.training().seed(), 9007199254740993u);

  const std::vector<Override> many = {{"--shards 70", "spec.parameterServer.replicas", 70}};
  const absl::Status refused = ReadManifest(path, many).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr(path + ": spec.parameterServer"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("(with --shards 70)"));
}

TEST(ReadManifest, ValueOfFlagDoesNotChangeAliasesOfItsField) {
  const std::string path = Directory() + "/aliases.yaml";
  std::ofstream(path) << With("Server:\n    replicas: 1\n  worker:\n    replicas: 1",
                              "Server: &two\n    replicas: 2\n  worker: *two");
  const std::vector<Override> override = {{"--workers 5", "spec.worker.replicas", 5}};
  const absl::StatusOr<TrainingJob> job = ReadManifest(path, override);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->spec.worker().replicas(), 5u);
  EXPECT_EQ(job->spec.parameter_server().replicas(), 2u);
}

TEST(ReadManifest, ReportsErrorsOfTheFile) {
  const std::string directory = Directory();
  const absl::Status missing = ReadManifest(directory + "/none.yaml").status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("none.yaml: No such file"));
  EXPECT_THAT(std::string(ReadManifest(directory).status().message()), HasSubstr("is a directory"));
}

}  // namespace
}  // namespace sluice::api
