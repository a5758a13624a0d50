// Reads the manifest of a TrainingJob (sluice.dev/v1alpha1) from YAML or JSON.
//
// A manifest is converted in two steps: from text to a JSON tree with a table of places
// (yaml_document.h), which is checked and completed in place (validate.h, by the table of fields in
// field_table.h), and from JSON to the job that every process receives (codec.h). For an object
// from a Kubernetes API server, the server has done the first.
//
// All problems of a manifest are reported at once, each with its place and the expected value.
#ifndef SLUICE_SERVICES_MANIFEST_MANIFEST_H_
#define SLUICE_SERVICES_MANIFEST_MANIFEST_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "services/manifest/problem.h"
#include "services/manifest/training_job.h"

namespace sluice::api {

// A larger manifest is rejected without parsing.
constexpr size_t kMaxManifestBytes = 1 << 20;
// No more problems than these are reported.
constexpr size_t kMaxProblems = 20;

// A field that a flag sets instead of the manifest.
struct Override {
  std::string flag;   // as given, "--shards 3"; appended to problems of the result
  std::string field;  // with dots, "spec.parameterServer.replicas"
  uint64_t value = 0;
};

// An object of another kind in a manifest.
struct OtherObject {
  Place place;
  std::string kind;
};

// The job of the only TrainingJob in `text`, with all defaults filled in; `spec.uid` is empty. On
// failure `problems` is not empty and sorted by place. Never throws, whatever the text; takes time
// linear in its size. Reads no files: it does not check whether data and models exist.
//
// Relative paths in the manifest (data, model, checkpoints) are relative to `base_directory`;
// empty: they stay unchanged. With `overrides`, these values count instead of the manifest's:
// defaults that depend on them use the new values, and the same rules apply. A problem that the
// manifest itself does not have is reported with the flags instead of a place.
struct ParsedManifest {
  TrainingJob job;  // meaningless unless ok()
  // The fields in the text, without defaults: this is applied to a cluster, so that users do
  // not become owners of fields that they did not write. Fields that an API server adds are
  // dropped.
  nlohmann::json written;
  std::vector<OtherObject> others;  // beside the TrainingJob, such as a claim; not read
  std::vector<Problem> problems;

  bool ok() const { return problems.empty(); }
};
ParsedManifest ParseManifest(absl::string_view text, const std::string& base_directory,
                             absl::Span<const Override> overrides = {});

// Reads the file; relative paths are relative to its directory. Errors: NOT_FOUND,
// PERMISSION_DENIED or another code of the file system, naming the file; INVALID_ARGUMENT with one
// line for each problem ("job.yaml:7:3: spec.training.stpes: ...").
absl::StatusOr<TrainingJob> ReadManifest(const std::string& path,
                                         absl::Span<const Override> overrides = {});

// The same for a cluster: paths stay unchanged, because they are paths in pods, and objects of
// other kinds are refused, because nothing would create them.
absl::StatusOr<ParsedManifest> ReadClusterManifest(const std::string& path);

}  // namespace sluice::api

#endif  // SLUICE_SERVICES_MANIFEST_MANIFEST_H_
