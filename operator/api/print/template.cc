// The manifest that `sluice init` writes.
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/substitute.h"
#include "operator/api/manifest.h"
#include "operator/api/print/print.h"
#include "operator/api/print/yaml_scalar.h"

namespace sluice::api {
namespace {

constexpr char kHead[] =
    R"(# A training job. `sluice run FILE` trains it on this machine, `sluice validate FILE` checks it, and
# `sluice explain FIELD` says what a field means.
apiVersion: sluice.dev/v1alpha1
kind: TrainingJob
metadata:
  name: $0

spec:
)";

constexpr char kTail[] = R"(
  training:
    # Synchronous: the result does not depend on how many workers there are, or on which of them crash.
    # Others: Asynchronous, BoundedStaleness.
    mode: Synchronous
    globalBatchSize: 64   # samples of a step, over all workers
    epochs: 5             # or steps
    seed: 1

  parameterServer:
    replicas: 2           # shards, which hold the parameters
  worker:
    replicas: 2           # processes that compute gradients

  checkpoint:
    intervalSteps: 500    # the newest 3 are kept; after a crash, or Ctrl-C, the job goes on from there
)";

bool IsTorchScript(const std::string& model) {
  return absl::EndsWith(model, ".pt") || absl::EndsWith(model, ".pth");
}
bool IsCsv(const std::string& data) {
  return absl::EndsWith(data, ".csv") || absl::EndsWith(data, ".csv.gz");
}

std::string ModelSection(const TemplateOptions& options) {
  if (IsTorchScript(options.model)) {
    return absl::Substitute(
        "  model:\n"
        "    type: TorchScript     # a module that torch.jit.save wrote\n"
        "    path: $0\n"
        "  loss: crossEntropy      # others: nll, mse, binaryCrossEntropyWithLogits\n",
        YamlString(options.model));
  }
  return absl::Substitute(
      "  model:\n    name: $0         # convnet, mnist-net, mlp, linear, logistic, or a "
      "TorchScript "
      "file\n",
      YamlString(options.model));
}

std::string DataSection(const TemplateOptions& options) {
  if (options.model == "additive") {
    return "  data:\n    format: Synthetic     # this model takes none: samples are only counted\n";
  }
  if (options.data == "synthetic") {
    return "  data:\n"
           "    format: Synthetic     # made up, always the same; others: IDX, CSV\n"
           "    synthetic: {samples: 10000, shape: [1, 28, 28], classes: 10}\n"
           "    evaluation:\n"
           "      intervalSteps: 200\n";
  }
  if (IsCsv(options.data)) {
    return absl::Substitute(
        "  data:\n"
        "    format: CSV\n"
        "    source:\n"
        "      path: $0            # relative paths are relative to this file's folder\n"
        "    csv:\n"
        "      labelColumn: $1     # the column to predict\n"
        "      standardize: true\n"
        "      # categoricalColumns: [...]   all columns but the label count as numbers, unless "
        "listed\n"
        "      # numericColumns: [...]\n"
        "    # evaluation:\n"
        "    #   source: {path: test.csv}\n"
        "    #   intervalSteps: 200\n",
        YamlString(options.data), YamlString(options.label_column));
  }
  return absl::Substitute(
      "  data:\n"
      "    format: IDX           # the files of MNIST and Fashion-MNIST; others: CSV, Synthetic\n"
      "    source:\n"
      "      path: $0\n"
      "    evaluation:           # on the test images of the same folder\n"
      "      intervalSteps: 200\n",
      YamlString(options.data));
}

std::string OptimizerSection(const TemplateOptions& options) {
  if (options.model == "additive") return "\n  optimizer:\n    name: Add\n";
  return "\n  optimizer:\n"
         "    name: Adam            # SGD, Adagrad, Adam, AdamW; options as in PyTorch\n"
         "    learningRate: 1e-3\n";
}

}  // namespace

absl::StatusOr<std::string> ManifestTemplate(const TemplateOptions& options) {
  const bool csv = options.model != "additive" && IsCsv(options.data);
  if (csv && options.label_column.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.data, ": name the column to predict as well"));
  }
  const std::string text =
      absl::StrCat(absl::Substitute(kHead, YamlString(options.name)), ModelSection(options),
                   DataSection(options), OptimizerSection(options), kTail);
  const ParsedManifest parsed = ParseManifest(text, {});
  if (parsed.ok()) return text;
  const Problem& problem = parsed.problems[0];
  return absl::InvalidArgumentError(absl::StrCat(problem.path, ": ", problem.message));
}

}  // namespace sluice::api
