// What the command line prints about TrainingJobs: a first manifest, a job in normal form, the
// reference of all fields.
#ifndef SLUICE_OPERATOR_API_PRINT_PRINT_H_
#define SLUICE_OPERATOR_API_PRINT_PRINT_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "operator/api/training_job.h"

namespace sluice::api {

struct TemplateOptions {
  // Empty: after the data, or after the model where the data is made up.
  std::string name;
  // A built-in model ("mnist-net"), or the path of a TorchScript file (anything that ends in .pt or
  // .pth).
  std::string model = "convnet";
  // A folder with IDX files, a .csv or .txt file (also .gz), or "synthetic". Empty: the images of
  // dataset-fashion-mnist; for a language model, "synthetic".
  std::string data;
  // Column to predict; wanted for CSV.
  std::string label_column;
  // The other columns of the CSV file, where its header was read: those of numbers and those of
  // names. Both empty: not known.
  std::vector<std::string> numeric_columns, categorical_columns;
};

// The commented manifest of `sluice init`: short, valid, and trains as it is where the data exists.
// INVALID_ARGUMENT for a name, model or data that no manifest could have, with the reason.
absl::StatusOr<std::string> ManifestTemplate(const TemplateOptions& options);

// The job as a manifest with every field that has a value, defaults included, in the order of the
// reference. Parsing the text gives the same job again.
std::string ToManifestYaml(const TrainingJob& job);

// The whole reference as Markdown: every field with type, default, bounds, example; every rule
// across fields.
std::string ReferenceMarkdown();

// One field ("spec.training", "training.steps", "trainingjob.spec.training") like `kubectl
// explain`: type, description, default, rules, and the fields below it. Empty: the TrainingJob.
// NOT_FOUND names fields of similar name.
absl::StatusOr<std::string> ExplainField(absl::string_view path);

}  // namespace sluice::api

#endif  // SLUICE_OPERATOR_API_PRINT_PRINT_H_
