// Manifests with one mistake each, and the expected message. Local checks and API servers are
// tested with the same list.
#ifndef SLUICE_SERVICES_MANIFEST_TESTING_INVALID_MANIFESTS_H_
#define SLUICE_SERVICES_MANIFEST_TESTING_INVALID_MANIFESTS_H_

#include <string>
#include <vector>

namespace sluice::api {

struct InvalidManifest {
  std::string name;  // of the case: letters, digits, underscores
  std::string yaml;
  // The only problem, as "line:column: path: message".
  std::string problem;
  // A mistake that does not exist in JSON, or that an API server reports in its own words: kubectl
  // rejects it, not the schema.
  bool syntax = false;
};

// A valid manifest; each of InvalidManifests() changes one place of it.
std::string ValidManifest();
std::vector<InvalidManifest> InvalidManifests();

}  // namespace sluice::api

#endif  // SLUICE_SERVICES_MANIFEST_TESTING_INVALID_MANIFESTS_H_
