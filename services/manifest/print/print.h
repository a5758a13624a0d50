// The command line's output about TrainingJobs: a first manifest, a job in normal form, the
// reference of all fields.
#ifndef SLUICE_SERVICES_MANIFEST_PRINT_PRINT_H_
#define SLUICE_SERVICES_MANIFEST_PRINT_PRINT_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "services/manifest/training_job.h"

namespace sluice::api {

struct TemplateOptions {
  // Empty: named after the data, or after the model if the data is synthetic.
  std::string name;
  // A built-in model ("mnist-net"), or the path of a TorchScript file (any name that ends in .pt or
  // .pth).
  std::string model = "convnet";
  // A directory with IDX files, a .csv or .txt file (also .gz), or "synthetic". Empty: the images
  // of dataset-fashion-mnist; for a language model, "synthetic".
  std::string data;
  // The column to predict; required for CSV.
  std::string label_column;
  // The other columns of the CSV file, if its header was read: numeric ones and categorical ones.
  // Both empty: not known.
  std::vector<std::string> numeric_columns, categorical_columns;
};

// The commented manifest of `sluice init`: short, valid, and ready to train if the data exists.
// INVALID_ARGUMENT, with the reason, for a name, model or data that no manifest can have.
absl::StatusOr<std::string> ManifestTemplate(const TemplateOptions& options);

// The job as a manifest with every field that has a value, defaults included, in the order of the
// reference. Parsing the text gives the same job again.
std::string ToManifestYaml(const TrainingJob& job);

// The whole reference as Markdown: every field with type, default, bounds, example; every rule
// across fields.
std::string ReferenceMarkdown();

// One field ("spec.training", "training.steps", "trainingjob.spec.training") like `kubectl
// explain`: type, description, default, rules, and the fields below it. Empty: the TrainingJob.
// NOT_FOUND names fields with similar names.
absl::StatusOr<std::string> ExplainField(absl::string_view path);

}  // namespace sluice::api

#endif  // SLUICE_SERVICES_MANIFEST_PRINT_PRINT_H_
