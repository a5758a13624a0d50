#include "services/manifest/testing/invalid_manifests.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace sluice::api {
namespace {

constexpr char kValid[] = R"(apiVersion: sluice.dev/v1alpha1
kind: TrainingJob
metadata:
  name: job
spec:
  model:
    name: mlp
  data:
    format: IDX
    source:
      path: /data
  optimizer:
    name: SGD
  training:
    steps: 100
  parameterServer:
    replicas: 1
  worker:
    replicas: 1
)";

// One place of the valid manifest in other words.
InvalidManifest Change(std::string name, const std::string& from, const std::string& to,
                       std::string problem, bool syntax = false) {
  return {std::move(name), absl::StrReplaceAll(kValid, {{from, to}}), std::move(problem), syntax};
}

void AddShapeCases(std::vector<InvalidManifest>* cases) {
  cases->push_back(Change("unknown_field", "    steps: 100", "    steps: 100\n    seeds: 3",
                          "16:5: spec.training.seeds: unknown field; did you mean `seed`?"));
  cases->push_back(Change("other_spelling", "    name: SGD", "    name: SGD\n    lr: 0.1",
                          "14:5: spec.optimizer.lr: unknown field; did you mean `learningRate`?"));
  cases->push_back(Change(
      "snake_case", "    steps: 100", "    steps: 100\n    global_batch_size: 3",
      "16:5: spec.training.global_batch_size: unknown field; did you mean `globalBatchSize`?"));
  cases->push_back(Change("field_of_another_object", "    replicas: 1\n  worker",
                          "    replicas: 1\n    maxStaleness: 1\n  worker",
                          "18:5: spec.parameterServer.maxStaleness: unknown field; `maxStaleness` "
                          "belongs in `spec.training.boundedStaleness`"));
  cases->push_back(Change("unlike_anything", "    replicas: 1\n  worker",
                          "    replicas: 1\n    zzz: 1\n  worker",
                          "18:5: spec.parameterServer.zzz: unknown field; `spec.parameterServer` "
                          "has replicas, minReplicas, maxReplicas, partitions, copies, "
                          "copyMegabytesPerSecond, template"));
  cases->push_back(Change("top_level_field", "kind: TrainingJob", "kind: TrainingJob\nspecs: {}",
                          "3:1: specs: unknown field; did you mean `spec`?"));
  cases->push_back(Change("not_built_yet", "    replicas: 1\n  worker",
                          "    replicas: 1\n    balance: true\n  worker",
                          "18:5: spec.parameterServer.balance: unknown field; "
                          "`spec.parameterServer` has replicas, minReplicas, maxReplicas, "
                          "partitions, copies, copyMegabytesPerSecond, template"));
  cases->push_back(
      Change("missing_field", "    name: SGD", "    learningRate: 1",
             "12:3: spec.optimizer.name: is required, but missing; e.g. `name: Adam`"));
  cases->push_back(Change("missing_object", "  optimizer:\n    name: SGD\n", "",
                          "5:1: spec.optimizer: is required, but missing"));
  cases->push_back(
      Change("missing_name", "  name: job", "  namespace: team-a",
             "3:1: metadata.name: is required, but missing; e.g. `name: fashion-mnist`"));
  cases->push_back(Change("no_value", "    steps: 100", "    steps: 100\n    epochs:",
                          "16:5: spec.training.epochs: has no value; give one or leave it out",
                          true));
  cases->push_back(Change("null_object", "  worker:\n    replicas: 1", "  worker: null",
                          "18:3: spec.worker: has no value; give one or leave it out", true));
  cases->push_back(
      Change("other_version", "sluice.dev/v1alpha1", "sluice.dev/v2",
             "1:1: apiVersion: must be sluice.dev/v1alpha1, not the string \"sluice.dev/v2\""));
  cases->push_back(Change("other_kind", "kind: TrainingJob", "kind: Deployment",
                          "2:1: kind: must be TrainingJob, not \"Deployment\"", true));
  cases->push_back(Change("kind_in_other_case", "kind: TrainingJob", "kind: Trainingjob",
                          "2:1: kind: must be TrainingJob, not \"Trainingjob\"", true));
  cases->push_back(Change("missing_kind", "kind: TrainingJob\n", "",
                          "1:1: kind: is required, but missing; e.g. `kind: TrainingJob`", true));
  cases->push_back({"second_document", absl::StrCat(kValid, "---\n", kValid),
                    "21:1: a second TrainingJob begins here; put it in a separate file", true});
  cases->push_back({"other_document", absl::StrCat(kValid, "---\nkind: Secret\n"),
                    "21:1: kind: must be TrainingJob, not \"Secret\"", true});
}

void AddYamlCases(std::vector<InvalidManifest>* cases) {
  cases->push_back({"empty", "", "the manifest is empty; `sluice init` writes one", true});
  cases->push_back(
      {"a_string", "hello", "1:1: a TrainingJob is a map, not the string \"hello\"", true});
  cases->push_back({"a_list", "- a\n- b\n", "1:1: a TrainingJob is a map, not a list", true});
  cases->push_back(Change("twice", "    steps: 100", "    steps: 100\n    steps: 200",
                          "16:5: steps: given twice; first on line 15", true));
  cases->push_back(Change("indentation", "    steps: 100", "    steps: 100\n   seed: 1",
                          "16:4: not valid YAML: the line is not indented like the lines around "
                          "it",
                          true));
  cases->push_back(Change("tab", "    steps: 100", "    steps: 100\n\tseed: 1",
                          "16:1: not valid YAML: the line is indented with a tab; YAML allows only "
                          "spaces",
                          true));
  cases->push_back(Change("open_bracket", "name: job", "name: job\n  labels: [a",
                          "6:5: not valid YAML: a `[` of this line or one above it is not closed",
                          true));
  cases->push_back(Change("open_quote", "name: job", "name: \"job",
                          "20:1: not valid YAML: a quoted string is not closed", true));
  cases->push_back(Change("two_colons", "name: job", "name: job: a",
                          "4:12: not valid YAML: a `:` is not allowed here: quote a value that "
                          "contains one, and begin a new line for each field",
                          true));
  cases->push_back(Change("unknown_alias", "name: job", "name: *job",
                          "4:9: not valid YAML: the referenced anchor is not defined", true));
  cases->push_back(Change("tag", "name: job", "name: !secret job",
                          "4:9: YAML tags like !secret are not supported; leave it out", true));
  cases->push_back(Change("control_character", "name: job", "name: j\x01ob",
                          "4:10: not text: an invalid UTF-8 sequence or a control character",
                          true));
  cases->push_back({"utf16", std::string("\xff\xfek\0i\0n\0d\0", 10),
                    "is UTF-16: should be UTF-8; save it as UTF-8, or convert it with `iconv -f "
                    "UTF-16 -t UTF-8`",
                    true});
  cases->push_back(Change("not_utf8", "name: job", "name: \xc3(",
                          "4:9: not text: an invalid UTF-8 sequence or a control character", true));
}

void AddTypeCases(std::vector<InvalidManifest>* cases) {
  cases->push_back(
      Change("string_for_integer", "steps: 100", "steps: many",
             "15:5: spec.training.steps: must be an integer, not the string \"many\""));
  cases->push_back(Change("quoted_integer", "steps: 100", "steps: \"100\"",
                          "15:5: spec.training.steps: must be an integer, not the string \"100\""));
  cases->push_back(Change("fraction_for_integer", "steps: 100", "steps: 1.5",
                          "15:5: spec.training.steps: must be an integer, not the number 1.5"));
  cases->push_back(Change("too_large_integer", "steps: 100", "steps: 99999999999999999999",
                          "15:5: spec.training.steps: must be an integer of at most 64 bits"));
  cases->push_back(Change("octal", "steps: 100", "steps: 0100",
                          "15:5: spec.training.steps: must be in decimal, without leading zeros; "
                          "this is the number 0100",
                          true));
  cases->push_back(Change("list_for_integer", "steps: 100", "steps: [100]",
                          "15:5: spec.training.steps: must be an integer, not a list"));
  cases->push_back(
      Change("number_for_name", "name: job", "name: 17",
             "4:3: metadata.name: must be a string, not the number 17; put it in quotes"));
  cases->push_back(Change(
      "boolean_for_string", "path: /data", "path: yes",
      "11:7: spec.data.source.path: must be a string, not the boolean yes; put it in quotes"));
  cases->push_back(
      Change("string_for_boolean", "format: IDX", "format: IDX\n    shuffle: \"true\"",
             "10:5: spec.data.shuffle: must be true or false, not the string \"true\""));
  cases->push_back(
      Change("string_for_number", "name: SGD", "name: SGD\n    learningRate: high",
             "14:5: spec.optimizer.learningRate: must be a number, not the string \"high\""));
  cases->push_back(Change(
      "infinity", "name: SGD", "name: SGD\n    learningRate: .inf",
      "14:5: spec.optimizer.learningRate: must be a finite decimal number, not the number .inf",
      true));
  cases->push_back(Change(
      "not_a_number", "name: SGD", "name: SGD\n    learningRate: .nan",
      "14:5: spec.optimizer.learningRate: must be a finite decimal number, not the number .nan",
      true));
  cases->push_back(Change("scalar_for_object", "  model:\n    name: mlp", "  model: mlp",
                          "6:3: spec.model: must be a map of fields, not the string \"mlp\""));
  cases->push_back(Change("map_for_list", "name: SGD", "name: SGD\n    groups: {patterns: [a]}",
                          "14:5: spec.optimizer.groups: must be a list, not a map"));
}

void AddValueCases(std::vector<InvalidManifest>* cases) {
  cases->push_back(Change("too_small", "steps: 100", "steps: 0",
                          "15:5: spec.training.steps: must be at least 1, not 0"));
  cases->push_back(Change("too_large", "  parameterServer:\n    replicas: 1",
                          "  parameterServer:\n    replicas: 2000",
                          "17:5: spec.parameterServer.replicas: must be at most 1024, not 2000"));
  cases->push_back(Change("no_workers", "  worker:\n    replicas: 1", "  worker:\n    replicas: 0",
                          "19:5: spec.worker.replicas: must be at least 1, not 0"));
  cases->push_back(Change("not_positive", "name: SGD", "name: SGD\n    clipNorm: 0",
                          "14:5: spec.optimizer.clipNorm: must be more than 0, not 0"));
  cases->push_back(Change("case_of_value", "steps: 100", "steps: 100\n    mode: synchronous",
                          "16:5: spec.training.mode: must be one of Synchronous, Asynchronous, "
                          "BoundedStaleness, not the string \"synchronous\"; did you mean "
                          "`Synchronous`?"));
  cases->push_back(Change("unknown_model", "name: mlp", "name: vgg16",
                          "7:5: spec.model.name: must be one of convnet, mnist-net, mlp, lstm-lm, "
                          "linear, logistic, additive, not the string \"vgg16\""));
  cases->push_back(Change("bad_name", "name: job", "name: My_Job",
                          "4:3: metadata.name: must be lower-case letters, digits and `-`, with a "
                          "letter or digit at both ends; this is the string \"My_Job\""));
  cases->push_back(Change("long_name", "name: job", "name: " + std::string(53, 'a'),
                          "4:3: metadata.name: must have at most 50 characters, not 53"));
  cases->push_back(Change("empty_path", "path: /data", "path: \"\"",
                          "11:7: spec.data.source.path: must not be empty"));
  for (const char* path : {"~/data", "$HOME/data"}) {
    cases->push_back(Change(path[0] == '~' ? "home" : "variable", "path: /data",
                            absl::StrCat("path: ", path),
                            absl::StrCat("11:7: spec.data.source.path: must not begin with `~` or "
                                         "`$`, which are not expanded; write the whole path; this "
                                         "is the string \"",
                                         path, "\"")));
  }
  cases->push_back(Change("too_few_items", "name: SGD", "name: Adam\n    betas: [0.9]",
                          "14:5: spec.optimizer.betas: must have at least 2 items, not 1"));
  cases->push_back(Change("item_out_of_range", "name: SGD", "name: Adam\n    betas: [0.9, 1.5]",
                          "14:18: spec.optimizer.betas[1]: must be less than 1, not 1.5"));
  cases->push_back(Change("group_without_patterns", "name: SGD",
                          "name: SGD\n    groups:\n    - learningRate: 1",
                          "15:7: spec.optimizer.groups[0].patterns: is required, but missing"));
}

// The valid manifest with evaluations, and this change.
InvalidManifest WithEvaluation(std::string name, const std::string& evaluation,
                               const std::string& from, const std::string& to,
                               std::string problem) {
  return {std::move(name),
          absl::StrReplaceAll(
              kValid,
              {{"path: /data\n", absl::StrCat("path: /data\n    evaluation: {source: {path: /t}",
                                              evaluation, "}\n")},
               {from, to}}),
          std::move(problem)};
}

void AddDecisionCases(std::vector<InvalidManifest>* cases) {
  const std::string steps = ", intervalSteps: 5";
  cases->push_back(Change("plateau_without_evaluation", "name: SGD",
                          "name: SGD\n    plateau: {metric: loss}",
                          "14:5: spec.optimizer.plateau: `plateau` needs `data.evaluation` with "
                          "`intervalSteps` (or, in other modes than Synchronous, "
                          "`intervalSeconds`)"));
  cases->push_back(WithEvaluation("plateau_that_increases", steps, "name: SGD",
                                  "name: SGD\n    plateau: {metric: loss, factor: 1.5}",
                                  "15:29: spec.optimizer.plateau.factor: must be less than 1, "
                                  "not 1.5"));
  cases->push_back(WithEvaluation(
      "plateau_without_metric", steps, "name: SGD", "name: SGD\n    plateau: {patience: 2}",
      "15:5: spec.optimizer.plateau.metric: is required, but missing; e.g. "
      "`metric: loss`"));
  cases->push_back(WithEvaluation(
      "own_metric_without_direction", steps, "steps: 100",
      "steps: 100\n    stopping: {metric: auc, patience: 2}",
      "17:5: spec.training.stopping.direction: a metric of the program's own needs `direction: "
      "Minimize` or `direction: Maximize`"));
  cases->push_back(WithEvaluation(
      "stopping_at_unknown_steps", ", intervalSeconds: 5", "steps: 100",
      "steps: 100\n    stopping: {metric: loss, patience: 2}",
      "17:5: spec.training.stopping: in `mode: Synchronous` `stopping` needs `data.evaluation` "
      "with `intervalSteps` and without `intervalSeconds`: training waits at steps that are known "
      "before"));
  cases->push_back(WithEvaluation(
      "stopping_without_patience", steps, "steps: 100", "steps: 100\n    stopping: {metric: loss}",
      "17:5: spec.training.stopping.patience: is required, but missing; e.g. "
      "`patience: 3`"));
  cases->push_back(WithEvaluation(
      "best_of_none", steps,
      "  worker:", "  checkpoint:\n    keepBest: {metric: loss, count: 0}\n  worker:",
      "20:30: spec.checkpoint.keepBest.count: must be at least 1, "
      "not 0"));
  cases->push_back(Change("best_without_evaluation",
                          "  worker:", "  checkpoint:\n    keepBest: {metric: loss}\n  worker:",
                          "19:5: spec.checkpoint.keepBest: `keepBest` needs `data.evaluation` with "
                          "`intervalSteps` (or, in other modes than Synchronous, "
                          "`intervalSeconds`)"));
  cases->push_back(WithEvaluation("best_by_path", steps, "  worker:",
                                  "  checkpoint:\n    keepBest: {metric: val/auc}\n  worker:",
                                  "20:16: spec.checkpoint.keepBest.metric: must be a metric's "
                                  "name: letters, digits and `_`, first a letter; this is the "
                                  "string \"val/auc\""));
}

void AddSyncCases(std::vector<InvalidManifest>* cases) {
  cases->push_back(Change(
      "sync_of_builtin_model", "steps: 100", "steps: 100\n    sync: BatchNorm",
      "6:3: spec.model.type: `sync: BatchNorm` is for `model: {type: Custom}` with a PyTorch "
      "module in Python: the built-in models have no batch norm, and that of a TorchScript "
      "file cannot be replaced. Train the module in Python, or leave `training.sync` out"));
  cases->push_back(Change("sync_of_other_layers", "steps: 100", "steps: 100\n    sync: LayerNorm",
                          "16:5: spec.training.sync: must be one of None, BatchNorm, not the "
                          "string \"LayerNorm\""));
}

void AddRuleCases(std::vector<InvalidManifest>* cases) {
  cases->push_back(
      Change("no_end", "steps: 100", "seed: 1",
             "14:3: spec.training.steps: `steps` or `epochs` is required: how long to train"));
  cases->push_back(Change("two_ends", "steps: 100", "steps: 100\n    epochs: 2",
                          "16:5: spec.training.epochs: give `steps` or `epochs`, not both"));
  cases->push_back(Change("large_microbatch", "steps: 100", "steps: 100\n    microbatchSize: 65",
                          "16:5: spec.training.microbatchSize: `microbatchSize` must be at most "
                          "`globalBatchSize` (default 64)"));
  cases->push_back(Change("uneven_bit_exact", "steps: 100",
                          "steps: 100\n    determinism: BitExact\n    globalBatchSize: 100",
                          "16:5: spec.training.determinism: BitExact needs `globalBatchSize` to be "
                          "`microbatchSize` times a power of two, at most 65536 (if "
                          "`microbatchSize` is unset: a multiple of 16, or a power of two)"));
  cases->push_back(Change("asynchronous_bit_exact", "steps: 100",
                          "steps: 100\n    determinism: BitExact\n    mode: Asynchronous",
                          "16:5: spec.training.determinism: BitExact is for `mode: Synchronous`"));
  cases->push_back(Change(
      "staleness_without_mode", "steps: 100", "steps: 100\n    boundedStaleness: {maxStaleness: 2}",
      "16:5: spec.training.boundedStaleness: `boundedStaleness` is required for "
      "`mode: BoundedStaleness`, and only allowed with it"));
  cases->push_back(
      Change("mode_without_staleness", "steps: 100", "steps: 100\n    mode: BoundedStaleness",
             "14:3: spec.training.boundedStaleness: `boundedStaleness` is required for "
             "`mode: BoundedStaleness`, and only allowed with it"));
  cases->push_back(Change("option_of_another_optimizer", "name: SGD",
                          "name: SGD\n    betas: [0.9, 0.99]",
                          "14:5: spec.optimizer.betas: `betas` is an option of Adam, AdamW, NAdam, "
                          "RAdam, Adamax and Lion "
                          "only; leave it out"));
  cases->push_back(
      Change("dampening_for_adam", "name: SGD", "name: Adam\n    dampening: 0.1",
             "14:5: spec.optimizer.dampening: `dampening` is an option of SGD only; leave it out"));
  cases->push_back(Change("nesterov_alone", "name: SGD", "name: SGD\n    nesterov: true",
                          "14:5: spec.optimizer.nesterov: Nesterov momentum needs `momentum` above "
                          "0 and no `dampening`"));
  cases->push_back(
      Change("option_of_another_group", "name: SGD",
             "name: SGD\n    groups:\n    - {patterns: [a], name: Adam, momentum: 0.9}",
             "14:5: spec.optimizer.groups: `momentum` is an option of SGD and RMSprop only; leave "
             "it out of "
             "the groups of other optimizers"));
  cases->push_back(
      Change("part_without_gamma", "name: SGD",
             "name: SGD\n    schedule:\n      type: Chained\n      parts:\n"
             "      - type: Exponential",
             "17:9: spec.optimizer.schedule.parts[0].gamma: Exponential needs `gamma`, "
             "the factor of each step"));
  cases->push_back(Change("schedule_of_group", "name: SGD",
                          "name: SGD\n    groups:\n    - patterns: [a]\n      schedule:\n"
                          "        type: Cosine\n        totalSteps: 5\n        gamma: 0.5",
                          "19:9: spec.optimizer.groups[0].schedule.gamma: `gamma` is for `type: "
                          "Exponential, Step and MultiStep`"));
  cases->push_back(Change("milestones_without_parts", "name: SGD",
                          "name: SGD\n    schedule: {type: Sequential, milestones: [5]}",
                          "14:5: spec.optimizer.schedule.parts: `parts` is required for `type: "
                          "Sequential and Chained`, and only allowed with these"));
  cases->push_back(
      Change("momentum_of_adagrad", "name: SGD",
             "name: Adagrad\n    schedule: {type: OneCycle, totalSteps: 9, "
             "cycleMomentum: {}}",
             "14:47: spec.optimizer.schedule.cycleMomentum: `cycleMomentum` needs SGD or "
             "RMSprop with a `momentum`, Adam, AdamW, RAdam, Adamax or Lion"));
  AddDecisionCases(cases);
  AddSyncCases(cases);
  cases->push_back(Change("csv_without_label", "format: IDX", "format: CSV",
                          "8:3: spec.data.csv: CSV data needs `csv` with the `labelColumn`"));
  cases->push_back(Change(
      "no_source", "    source:\n      path: /data\n", "",
      "8:3: spec.data.source: IDX, CSV and Text data need `source`, e.g. {path: /data/train.csv}"));
  cases->push_back(Change("target_without_evaluation", "steps: 100",
                          "steps: 100\n    target: {metric: accuracy, goal: AtLeast, value: 98}",
                          "16:5: spec.training.target: a target needs `data.evaluation` with "
                          "`intervalSteps` or `intervalSeconds`"));
  cases->push_back(Change("more_shards_than_partitions", "  parameterServer:\n    replicas: 1",
                          "  parameterServer:\n    replicas: 8\n    partitions: 4",
                          "18:5: spec.parameterServer.partitions: each shard needs at least one "
                          "partition: `partitions` (default 64) must be at least `replicas`"));
  cases->push_back(Change("more_shards_than_default_partitions",
                          "  parameterServer:\n    replicas: 1",
                          "  parameterServer:\n    replicas: 100",
                          "16:3: spec.parameterServer.partitions: each shard needs at least one "
                          "partition: `partitions` (default 64) must be at least `replicas`"));
  cases->push_back(Change("two_checkpoint_intervals", "  worker:",
                          "  checkpoint: {intervalSteps: 10, intervalSeconds: 60}\n  worker:",
                          "18:35: spec.checkpoint.intervalSeconds: at most one of `intervalSteps` "
                          "and `intervalSeconds` may be given"));
  cases->push_back(Change("torchscript_without_path", "name: mlp", "type: TorchScript",
                          "6:3: spec.model.path: a TorchScript model needs `path`, the file that "
                          "torch.jit.save wrote"));
  cases->push_back(
      Change("rare_heartbeats", "  worker:", "  timeouts: {heartbeatSeconds: 4}\n  worker:",
             "18:14: spec.timeouts.heartbeatSeconds: `heartbeatSeconds` must be at most half of "
             "`heartbeatTimeoutSeconds`, otherwise every process would seem lost"));
}

}  // namespace

std::string ValidManifest() { return kValid; }

std::vector<InvalidManifest> InvalidManifests() {
  std::vector<InvalidManifest> cases;
  AddShapeCases(&cases);
  AddYamlCases(&cases);
  AddTypeCases(&cases);
  AddValueCases(&cases);
  AddRuleCases(&cases);
  return cases;
}

}  // namespace sluice::api
