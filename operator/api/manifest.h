// Reads the manifest of a TrainingJob (sluice.dev/v1alpha1) from YAML or JSON.
//
// Intuition. A manifest goes through four steps, each with a file of its own: text to a tree that
// knows lines and columns (yaml_document.h), tree to a checked JSON object with all defaults
// (validate.h, which knows of fields only what field_table.h says), JSON to the job that every
// process receives (codec.h). An object that comes from a Kubernetes API server has been through
// the first three there and starts at the last.
//
// All problems of a manifest are found at once, each with its place and with what would be right.
#ifndef SLUICE_OPERATOR_API_MANIFEST_H_
#define SLUICE_OPERATOR_API_MANIFEST_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "operator/api/problem.h"
#include "operator/api/training_job.h"

namespace sluice::api {

// A larger manifest is refused unread.
constexpr size_t kMaxManifestBytes = 1 << 20;
// No more problems than these are reported.
constexpr size_t kMaxProblems = 20;

struct ManifestSource {
  // Goes in front of every problem: "job.yaml:7:3: ...".
  std::string file;
  // Relative paths in the manifest (data, model, checkpoints) are taken relative to this folder.
  // Empty: they stay as they are.
  std::string base_directory;
};

// The job of the one TrainingJob in `text`, every default filled in; `spec.uid` is left empty. On
// failure `problems` is not empty and sorted by place. Never throws, whatever the text; takes time
// linear in its size. Reads no files: whether data and models exist is not checked here.
struct ParsedManifest {
  TrainingJob job;  // meaningless unless ok()
  // What the text itself says, without defaults: what is applied to a cluster, so that nobody comes
  // to own fields that he never wrote. Of what an API server adds to objects nothing is kept.
  nlohmann::json written;
  std::vector<Problem> problems;

  bool ok() const { return problems.empty(); }
};
ParsedManifest ParseManifest(absl::string_view text, const ManifestSource& source);

// Reads the file; relative paths are relative to its folder. Errors: NOT_FOUND, PERMISSION_DENIED
// or another code of the file system, naming the file; INVALID_ARGUMENT with one line for each
// problem ("job.yaml:7:3: spec.training.stpes: ...").
absl::StatusOr<TrainingJob> ReadManifest(const std::string& path);

// A field that a flag sets in place of the manifest.
struct Override {
  std::string flag;   // as it was given, "--shards 3"; goes behind what is wrong with the result
  std::string field;  // with dots, "spec.parameterServer.replicas"
  nlohmann::json value;
};

// As above, with these fields' values instead of what the manifest says of them. What follows from
// them follows from the new values, and the same rules hold. A problem that the manifest itself has
// not is told with the flags instead of a place.
absl::StatusOr<TrainingJob> ReadManifest(const std::string& path,
                                         absl::Span<const Override> overrides);

// The same for a cluster: paths stay as they are, for they are those of pods.
absl::StatusOr<ParsedManifest> ReadClusterManifest(const std::string& path);

}  // namespace sluice::api

#endif  // SLUICE_OPERATOR_API_MANIFEST_H_
