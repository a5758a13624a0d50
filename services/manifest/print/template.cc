// The manifest that `sluice init` writes.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/strings/substitute.h"
#include "services/manifest/manifest.h"
#include "services/manifest/print/print.h"
#include "services/manifest/print/yaml_writer.h"

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
    # Synchronous: up to rounding, the same result for any number of workers, shards and crashes; with
    # `determinism: BitExact` to the bit. Others: Asynchronous, BoundedStaleness.
    mode: Synchronous
    globalBatchSize: 64   # samples of a step, over all workers
    epochs: 5             # or steps
    seed: 1

  parameterServer:
    replicas: 2           # shards, which hold the parameters
  worker:
    replicas: 2           # processes that compute gradients

  checkpoint:
    intervalSteps: 500    # the newest 3 are kept; after a crash, or Ctrl-C, the job resumes from there
)";

bool IsTorchScript(const std::string& model) {
  return absl::EndsWith(model, ".pt") || absl::EndsWith(model, ".pth");
}
bool IsCsv(const std::string& data) {
  return absl::EndsWith(data, ".csv") || absl::EndsWith(data, ".csv.gz");
}
bool IsText(const std::string& data) {
  return absl::EndsWith(data, ".txt") || absl::EndsWith(data, ".txt.gz");
}
bool IsLanguageModel(const std::string& model) { return model == "lstm-lm"; }
// Whether the model predicts a number, not a class.
bool IsRegression(const std::string& model) { return model == "linear"; }

// A manifest that can be trained without changes.
std::string DefaultData(const std::string& model) {
  return IsLanguageModel(model) || IsRegression(model) ? "synthetic"
                                                       : "/usr/share/datasets/fashion-mnist";
}

// The last part of a path without its extensions, as a valid name of a job: "data/My_Table.csv.gz"
// becomes "my-table".
std::string NameAfter(absl::string_view path) {
  while (absl::ConsumeSuffix(&path, "/")) {
  }
  path.remove_prefix(path.rfind('/') + 1);  // npos + 1 is 0
  path = path.substr(0, path.find('.', 1));
  std::string name;
  for (const char c : path) {
    if (absl::ascii_isalnum(c)) {
      name += absl::ascii_tolower(c);
    } else if (!name.empty() && name.back() != '-') {
      name += '-';
    }
  }
  name.resize(std::min(name.size(), size_t{40}));
  while (!name.empty() && name.back() == '-') name.pop_back();
  return name.empty() ? "job" : name;
}

std::string DefaultName(const TemplateOptions& options) {
  const bool made_up = options.data == "synthetic" || options.model == "additive";
  return NameAfter(made_up ? options.model : options.data);
}

// A line with its comment at a fixed column.
std::string Line(std::string text, absl::string_view comment) {
  constexpr size_t kCommentColumn = 26;
  text.resize(std::max(text.size() + 1, kCommentColumn), ' ');
  return absl::StrCat(text, "# ", comment, "\n");
}

std::string ModelSection(const TemplateOptions& options) {
  const std::string model = YamlString(options.model);
  if (IsTorchScript(options.model)) {
    return absl::StrCat("  model:\n",
                        Line("    type: TorchScript", "a module that torch.jit.save wrote"),
                        "    path: ", model, "\n",
                        Line("  loss: crossEntropy", "or nll, mse, binaryCrossEntropyWithLogits"));
  }
  const bool additive = options.model == "additive";
  return absl::StrCat("  model:\n",
                      Line(absl::StrCat("    name: ", model),
                           "convnet, mnist-net, mlp, lstm-lm, linear, logistic, additive"),
                      additive ? "    dimensions: {dim: 10}\n" : "");
}

std::string ListText(const std::vector<std::string>& names) {
  return absl::StrCat("[",
                      absl::StrJoin(names, ", ",
                                    [](std::string* out, const std::string& name) {
                                      // Inside brackets, more strings need quotes than elsewhere.
                                      out->append(nlohmann::json(name).dump());
                                    }),
                      "]");
}

std::string ColumnLines(const TemplateOptions& options) {
  if (options.categorical_columns.empty()) {
    return "      # All columns but the label are numbers, unless listed:\n"
           "      # numericColumns: [age]\n"
           "      # categoricalColumns: [city]\n";
  }
  return absl::StrCat("      numericColumns: ", ListText(options.numeric_columns),
                      "\n      categoricalColumns: ", ListText(options.categorical_columns), "\n");
}

std::string CsvSection(const TemplateOptions& options) {
  return absl::StrCat(
      "  data:\n    format: CSV\n    source:\n",
      Line(absl::StrCat("      path: ", YamlString(options.data)), "relative to this file"),
      "    csv:\n",
      Line(absl::StrCat("      labelColumn: ", YamlString(options.label_column)),
           "the column to predict"),
      IsRegression(options.model) ? Line("      regression: true", "it is a number, not a class")
                                  : "",
      Line("      standardize: true", "scales numbers to mean 0 and standard deviation 1"),
      ColumnLines(options),
      "    # evaluation:\n"
      "    #   source: {path: test.csv}\n"
      "    #   intervalSteps: 200\n");
}

std::string TextSection(const TemplateOptions& options) {
  return absl::StrCat(
      "  data:\n    format: Text\n    source:\n",
      Line(absl::StrCat("      path: ", YamlString(options.data)), "relative to this file"),
      "    text:\n", Line("      sequenceLength: 35", "words per sample"),
      Line("      vocabularySize: 10000", "the most frequent words; all others become one"),
      "    # evaluation:\n"
      "    #   source: {path: test.txt}\n"
      "    #   intervalSteps: 200\n");
}

std::string SyntheticSection(const TemplateOptions& options) {
  const bool words = IsLanguageModel(options.model);
  if (IsRegression(options.model)) {
    return absl::StrCat(
        "  data:\n", Line("    format: Synthetic", "generated; for a table with numbers: CSV"),
        "    synthetic: {samples: 10000, shape: [10], classes: 0}\n",
        Line("    evaluation:", "on more such samples"), "      intervalSteps: 200\n");
  }
  return absl::StrCat("  data:\n",
                      Line("    format: Synthetic", words ? "random words; for real ones: Text"
                                                          : "generated; others: IDX, CSV, Text"),
                      words ? "    synthetic: {samples: 10000, shape: [35], vocabulary: 10000}\n"
                            : "    synthetic: {samples: 10000, shape: [1, 28, 28], classes: 10}\n",
                      Line("    evaluation:", "on more such samples"),
                      "      intervalSteps: 200\n");
}

std::string DataSection(const TemplateOptions& options) {
  if (options.model == "additive") {
    return "  data:\n" +
           Line("    format: Synthetic", "this model uses no data: samples are only counted");
  }
  if (IsCsv(options.data)) return CsvSection(options);
  if (options.data == "synthetic") return SyntheticSection(options);
  if (IsLanguageModel(options.model) || IsText(options.data)) return TextSection(options);
  return absl::StrCat(
      "  data:\n", Line("    format: IDX", "MNIST-style IDX files; others: CSV, Text, Synthetic"),
      "    source:\n      path: ", YamlString(options.data), "\n",
      Line("    evaluation:", "on the test images of the same directory"),
      "      intervalSteps: 200\n");
}

std::string OptimizerSection(const TemplateOptions& options) {
  if (options.model == "additive") return "\n  optimizer:\n    name: Add\n";
  return absl::StrCat("\n  optimizer:\n",
                      Line("    name: Adam", "SGD, Adagrad, Adam, AdamW; options as in PyTorch"),
                      "    learningRate: 1e-3\n");
}

}  // namespace

absl::StatusOr<std::string> ManifestTemplate(const TemplateOptions& wanted) {
  TemplateOptions options = wanted;
  if (options.data.empty()) options.data = DefaultData(options.model);
  if (options.name.empty()) options.name = DefaultName(options);
  const bool csv = options.model != "additive" && IsCsv(options.data);
  if (csv && options.label_column.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.data, ": name the column to predict with --label-column"));
  }
  for (absl::string_view ending : {".parquet", ".json", ".jsonl", ".npz", ".npy", ".zip"}) {
    if (absl::EndsWith(options.data, ending)) {
      return absl::InvalidArgumentError(
          absl::StrCat(options.data, ": ", ending,
                       " files cannot be read; data is a directory with IDX files, a "
                       ".csv or .txt file (also .gz), or `synthetic`"));
    }
  }
  if (IsRegression(options.model) && !csv && options.data != "synthetic") {
    return absl::InvalidArgumentError(
        absl::StrCat(options.model, " predicts numbers, and ", options.data,
                     " has classes or words: use another model, a .csv file, or `synthetic`"));
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
