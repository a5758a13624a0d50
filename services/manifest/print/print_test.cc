#include "services/manifest/print/print.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "services/manifest/field_table.h"
#include "services/manifest/manifest.h"
#include "services/manifest/print/yaml_writer.h"
#include "services/manifest/testing/example_manifests.h"
#include "services/manifest/testing/invalid_manifests.h"

namespace sluice::api {
namespace {

using ::testing::HasSubstr;

TrainingJob MustParse(const std::string& yaml) {
  ParsedManifest parsed = ParseManifest(yaml, "/jobs");
  for (const Problem& problem : parsed.problems)
    ADD_FAILURE() << problem.ToString("") << "\n" << yaml;
  return parsed.job;
}

void ExpectSameJob(const TrainingJob& a, const TrainingJob& b) {
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(a.spec, b.spec))
      << a.spec.DebugString() << b.spec.DebugString();
  EXPECT_EQ(a.labels, b.labels);
  EXPECT_EQ(a.annotations, b.annotations);
  EXPECT_EQ(a.image, b.image);
  EXPECT_EQ(a.suspend, b.suspend);
  EXPECT_EQ(a.active_deadline_seconds, b.active_deadline_seconds);
  EXPECT_EQ(a.cluster, b.cluster);
}

// Uses every field that the smallest manifest leaves out.
constexpr char kRich[] = R"(
apiVersion: sluice.dev/v1alpha1
kind: TrainingJob
metadata:
  name: rich
  namespace: team-a
  labels: {team: vision, "on": "yes"}
  annotations: {note: "a: b # c"}
spec:
  image: registry.example.com/sluice:v0.1
  model: {type: TorchScript, path: net.pt, dtype: float64, device: "cuda:0"}
  data:
    format: CSV
    source: {path: train.csv.gz}
    normalize: {mean: [0, 0.5], std: [1, 2]}
    csv: {labelColumn: "3", numericColumns: ["0", "1"], categoricalColumns: ["2"], header: false,
          delimiter: "\t", categories: Index, standardize: true, regression: true}
    shuffle: false
    partitioning: Shared
    maxSamples: 100
    classes: 3
    evaluation: {source: {path: /data/test.csv}, intervalSteps: 10, intervalSeconds: 0.5, maxSamples: 5}
  loss: mse
  optimizer:
    name: AdamW
    betas: [0.5, 0.75]
    eps: 1e-6
    amsgrad: true
    clipNorm: 2
    schedule: {type: Step, stepSize: 10, warmupSteps: 3}
    groups:
    - {patterns: ["*.bias", a], weightDecay: 0}
    - {patterns: [b], learningRate: 1e-5, weightDecay: 1}
  training:
    mode: BoundedStaleness
    boundedStaleness: {maxStaleness: 4}
    globalBatchSize: 32
    microbatchSize: 8
    epochs: 3
    seed: 9007199254740993
    aggregation: Sum
    nonFinite: Skip
    compression: {push: BFloat16, pull: Float16}
    threads: 2
    target: {metric: loss, goal: AtMost, value: 0.1}
  parameterServer: {replicas: 2, partitions: 16}
  worker:
    replicas: 3
    template: {spec: {nodeSelector: {disk: fast}}}
  checkpoint: {storage: {path: ckpt}, intervalSteps: 100, maxToKeep: 2, restoreFrom: ../other}
  backoffLimit: 0
  timeouts: {heartbeatTimeoutSeconds: 10}
  suspend: true
  activeDeadlineSeconds: 3600
  debug: {stepDelaySeconds: 0.25}
)";

TEST(ToManifestYaml, WritesEveryFieldWithItsValueInTheOrderOfTheReference) {
  EXPECT_EQ(ToManifestYaml(MustParse(kRich)), R"(apiVersion: sluice.dev/v1alpha1
kind: TrainingJob
metadata:
  name: rich
  namespace: team-a
  labels:
    "on": "yes"
    team: vision
  annotations:
    note: "a: b # c"
spec:
  image: "registry.example.com/sluice:v0.1"
  model:
    type: TorchScript
    path: /jobs/net.pt
    dtype: float64
    device: "cuda:0"
    embeddings: Rows
  data:
    format: CSV
    source:
      path: /jobs/train.csv.gz
    normalize:
      mean: [0, 0.5]
      std: [1, 2]
    shuffle: false
    partitioning: Shared
    maxSamples: 100
    classes: 3
    csv:
      labelColumn: "3"
      numericColumns: ["0", "1"]
      categoricalColumns: ["2"]
      categories: Index
      standardize: true
      regression: true
      header: false
      delimiter: "\t"
    evaluation:
      source:
        path: /data/test.csv
      intervalSteps: 10
      intervalSeconds: 0.5
      maxSamples: 5
  loss: mse
  optimizer:
    name: AdamW
    learningRate: 0.001
    weightDecay: 0.01
    betas: [0.5, 0.75]
    eps: 1e-06
    amsgrad: true
    clipNorm: 2
    schedule:
      type: Step
      warmupSteps: 3
      stepSize: 10
      gamma: 0.1
    groups:
      - patterns: ["*.bias", a]
        weightDecay: 0
      - patterns: [b]
        learningRate: 1e-05
        weightDecay: 1
  training:
    mode: BoundedStaleness
    boundedStaleness:
      maxStaleness: 4
    globalBatchSize: 32
    microbatchSize: 8
    lastBatch: Keep
    epochs: 3
    seed: 9007199254740993
    determinism: Default
    aggregation: Sum
    nonFinite: Skip
    execution: Worker
    compression:
      push: BFloat16
      pull: Float16
      errorFeedback: false
    sync: None
    threads: 2
    target:
      metric: loss
      goal: AtMost
      value: 0.1
  parameterServer:
    replicas: 2
    partitions: 16
    copies: 2
    copyMegabytesPerSecond: 150
  worker:
    replicas: 3
    template:
      spec:
        nodeSelector:
          disk: fast
  checkpoint:
    storage:
      type: Local
      path: /jobs/ckpt
    intervalSteps: 100
    maxToKeep: 2
    restoreFrom: /other
  backoffLimit: 0
  timeouts:
    heartbeatSeconds: 0.5
    suspectSeconds: 1
    heartbeatTimeoutSeconds: 10
    pauseSeconds: 5
    initializationSeconds: 120
    evaluationSeconds: 600
    suspendCheckpointSeconds: 60
  suspend: true
  activeDeadlineSeconds: 3600
  cleanPodPolicy: Running
  nodeFailure:
    tolerationSeconds: 10
    forceDeleteAfterSeconds: 10
  networkPolicy: Enabled
  debug:
    stepDelaySeconds: 0.25
    verifyGradients: false
)");
}

TEST(ToManifestYaml, FillsInFieldsThatAMinimalManifestOmits) {
  const std::string text = ToManifestYaml(MustParse(ValidManifest()));
  EXPECT_THAT(text, HasSubstr("    learningRate: 0.001\n"));
  EXPECT_THAT(text, HasSubstr("    microbatchSize: 4\n"));
  EXPECT_THAT(text, HasSubstr("    intervalSeconds: 300\n"));
  EXPECT_THAT(text, ::testing::Not(HasSubstr("betas")));
}

TEST(ToManifestYaml, ReadsBackAsTheSameJob) {
  for (const std::string& yaml : {std::string(kRich), ValidManifest()}) {
    const TrainingJob job = MustParse(yaml);
    ExpectSameJob(job, MustParse(ToManifestYaml(job)));
  }
}

TEST(ToManifestYaml, EveryExampleOfTheTableReadsBackAsTheSameJob) {
  for (const Field& field : Fields()) {
    for (const Example& example : field.examples) {
      const TrainingJob job = MustParse(ManifestWith(field, example.yaml));
      ExpectSameJob(job, MustParse(ToManifestYaml(job)));
    }
  }
}

TEST(ToManifestYaml, LosesNoFieldOfTheTable) {
  int compared = 0;
  for (const Field& field : Fields()) {
    const ParsedManifest without = ParseManifest(ManifestWith(field, ""), {});
    if (!without.ok()) continue;  // required, by itself or by a rule
    for (const Example& example : field.examples) {
      const std::string& fallback = field.default_json;
      if (fallback == example.yaml || fallback == absl::StrCat("\"", example.yaml, "\"")) continue;
      EXPECT_NE(ToManifestYaml(MustParse(ManifestWith(field, example.yaml))),
                ToManifestYaml(without.job))
          << field.path;
      ++compared;
    }
  }
  EXPECT_GT(compared, 50);
}

TEST(YamlString, ReadsBackUnchanged) {
  EXPECT_EQ(YamlString("net.pt"), "net.pt");
  EXPECT_EQ(YamlString("/a/b-c_d"), "/a/b-c_d");
  for (const char* text :
       {"", "yes", "1", "1e3", "null", "- a", "-", "a: b", "#", "\t", "'", "...", "*"}) {
    EXPECT_EQ(YamlString(text)[0], '"') << text;
  }
}

TEST(BlockYaml, NumbersAreShortAndExact) {
  EXPECT_EQ(BlockYaml({{"a", 0.001}, {"b", 1e-8}, {"c", 0.1 + 0.2}, {"d", 9007199254740993}}),
            "a: 0.001\nb: 1e-08\nc: 0.30000000000000004\nd: 9007199254740993\n");
}

TEST(ManifestTemplate, IsValidAndCommentedForEachModelAndDataFormat) {
  const std::vector<std::string> numbers = {"", "/usr/share/datasets/fashion-mnist", "table.csv",
                                            "table.csv.gz", "synthetic"};
  const std::vector<std::string> words = {"", "words.txt", "words.txt.gz", "wiki.valid.tokens",
                                          "synthetic"};
  for (const char* model :
       {"convnet", "mnist-net", "mlp", "lstm-lm", "linear", "logistic", "additive", "my/net.pt"}) {
    for (const std::string& data : model == std::string("lstm-lm") ? words : numbers) {
      // This model predicts numbers, and images have no numeric labels.
      if (model == std::string("linear") && data == numbers[1]) continue;
      TemplateOptions options;
      options.name = "mine";
      options.model = model;
      options.data = data;
      options.label_column = "yes";
      const absl::StatusOr<std::string> text = ManifestTemplate(options);
      ASSERT_TRUE(text.ok()) << text.status();
      EXPECT_EQ(MustParse(*text).spec.name(), "mine");
      EXPECT_THAT(*text, HasSubstr("  # "));
    }
  }
}

TEST(ManifestTemplate, NamesEveryModelAndGivesALanguageModelText) {
  TemplateOptions options;
  EXPECT_THAT(ManifestTemplate(options).value(),
              HasSubstr("# convnet, mnist-net, mlp, lstm-lm, linear, logistic, additive\n"));
  options.model = "lstm-lm";
  const v1::DataSpec random = MustParse(ManifestTemplate(options).value()).spec.data();
  EXPECT_EQ(random.format(), v1::DataSpec::SYNTHETIC);
  EXPECT_GT(random.synthetic().vocabulary(), 0u);
  options.data = "words.txt";
  const v1::DataSpec text = MustParse(ManifestTemplate(options).value()).spec.data();
  EXPECT_EQ(text.format(), v1::DataSpec::TEXT);
  EXPECT_GT(text.text().sequence_length(), 0u);
}

TEST(ManifestTemplate, GivesARegressionModelNumbersToPredict) {
  TemplateOptions options;
  options.model = "linear";
  const v1::DataSpec made_up = MustParse(ManifestTemplate(options).value()).spec.data();
  EXPECT_EQ(made_up.format(), v1::DataSpec::SYNTHETIC);
  EXPECT_EQ(made_up.synthetic().classes(), 0u);
  options.data = "table.csv";
  options.label_column = "price";
  EXPECT_TRUE(MustParse(ManifestTemplate(options).value()).spec.data().csv().regression());
}

TEST(ManifestTemplate, IsNamedAfterItsDataOrModel) {
  const auto name = [](const char* model, const char* data) {
    TemplateOptions options;
    options.model = model;
    options.data = data;
    options.label_column = "y";
    return MustParse(ManifestTemplate(options).value()).spec.name();
  };
  EXPECT_EQ(name("convnet", ""), "fashion-mnist");
  EXPECT_EQ(name("convnet", "synthetic"), "convnet");
  EXPECT_EQ(name("lstm-lm", ""), "lstm-lm");
  EXPECT_EQ(name("additive", ""), "additive");
  EXPECT_EQ(name("nets/Wide_Net.pt", "synthetic"), "wide-net");
  EXPECT_EQ(name("mlp", "data/My_Table (2).csv.gz"), "my-table-2");
  EXPECT_EQ(name("mlp", "/data/mnist/"), "mnist");
  EXPECT_EQ(name("mlp", "..."), "job");
}

TEST(ManifestTemplate, RejectsOptionsThatNoManifestCanHave) {
  TemplateOptions options;
  options.name = "My Job";
  EXPECT_THAT(std::string(ManifestTemplate(options).status().message()),
              HasSubstr("metadata.name: must be lower-case"));
  options = {};
  options.model = "resnet";
  EXPECT_THAT(std::string(ManifestTemplate(options).status().message()),
              HasSubstr("spec.model.name"));
  options = {};
  options.data = "words.txt";
  EXPECT_THAT(std::string(ManifestTemplate(options).status().message()),
              HasSubstr("`lstm-lm` takes words"));
  options = {};
  options.data = "table.csv";
  EXPECT_THAT(std::string(ManifestTemplate(options).status().message()),
              HasSubstr("column to predict with --label-column"));
  options = {};
  options.data = "table.parquet";
  EXPECT_THAT(std::string(ManifestTemplate(options).status().message()),
              HasSubstr(".parquet files cannot be read"));
  options = {};
  options.model = "linear";
  options.data = "/usr/share/datasets/fashion-mnist";
  EXPECT_THAT(std::string(ManifestTemplate(options).status().message()),
              HasSubstr("linear predicts numbers"));
}

TEST(ReferenceMarkdown, HasEveryFieldAndEveryRule) {
  const std::string text = ReferenceMarkdown();
  for (const Field& field : Fields()) {
    if (absl::EndsWith(field.path, "]") || absl::EndsWith(field.path, "}")) continue;
    const std::string leaf = field.path.substr(field.path.rfind('.') + 1);
    EXPECT_THAT(text, HasSubstr("| `" + leaf + "` |")) << field.path;
  }
  for (const Rule& rule : Rules()) EXPECT_THAT(text, HasSubstr(rule.message));
  EXPECT_THAT(text, HasSubstr("## spec.optimizer.groups[]"));
}

TEST(ReferenceMarkdown, MarksClusterOnlyFields) {
  const std::string text = ReferenceMarkdown();
  EXPECT_THAT(text, HasSubstr("| `progressDeadlineSeconds` | integer |  | *Clusters only.* A job"));
  EXPECT_THAT(text, HasSubstr("## spec.failurePolicy\n\n*Clusters only.* Exceptions"));
  EXPECT_THAT(text, HasSubstr("| `steps` | integer |  | Train for"));
}

TEST(ExplainField, PrintsLikeKubectlExplain) {
  EXPECT_EQ(ExplainField("spec.training.steps").value(), R"(KIND:     TrainingJob
VERSION:  sluice.dev/v1alpha1
FIELD:    spec.training.steps <integer>

DESCRIPTION:
  Train for this many steps (in other modes than Synchronous: updates). Either
  this or `epochs`.

ALLOWED:
  at least 1

EXAMPLE:
  steps: 10000

RULES:
  `steps` or `epochs` is required: how long to train
)");
}

TEST(ExplainField, HasTheFieldsWithTheirDefaultsBeforeTheRules) {
  const std::string text = ExplainField("spec.training").value();
  EXPECT_LT(text.find("\nFIELDS:\n"), text.find("\nRULES:\n"));
  EXPECT_NE(text.find("\nRULES:\n"), std::string::npos);
  EXPECT_THAT(text, HasSubstr("    Default: `Synchronous`\n"));
}

TEST(ExplainField, FindsFieldsByAbbreviatedPaths) {
  const std::string wanted = ExplainField("spec.training").value();
  for (const char* path :
       {"training", "stj.spec.training", "trainingjob.spec.training", "TrainingJob.training"}) {
    EXPECT_EQ(ExplainField(path).value(), wanted) << path;
  }
  EXPECT_THAT(wanted, HasSubstr("RULES:"));
  EXPECT_THAT(wanted, HasSubstr("  globalBatchSize <integer>\n"));
  EXPECT_THAT(ExplainField("").value(), HasSubstr("  spec <object> required\n"));
  EXPECT_THAT(ExplainField("optimizer.groups.patterns").value(), HasSubstr("<list of strings>"));
  EXPECT_EQ(ExplainField("optimizer.groups[0].patterns").value(),
            ExplainField("optimizer.groups.patterns").value());
}

TEST(ExplainField, NamesFieldsSimilarToAnUnknownOne) {
  const absl::Status status = ExplainField("spec.training.stpes").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("did you mean spec.training.steps?"));
}

}  // namespace
}  // namespace sluice::api
