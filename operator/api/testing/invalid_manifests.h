// Manifests with one mistake each, and what must be said about it. Local checks and API servers are
// held to the same list.
#ifndef SLUICE_OPERATOR_API_TESTING_INVALID_MANIFESTS_H_
#define SLUICE_OPERATOR_API_TESTING_INVALID_MANIFESTS_H_

#include <string>
#include <vector>

namespace sluice::api {

struct InvalidManifest {
  std::string name;  // of the case: letters, digits, underscores
  std::string yaml;
  // The only problem, as "line:column: path: message".
  std::string problem;
  // A mistake that is gone once the text is JSON, or that an API server words by itself; kubectl
  // and not the schema refuses it.
  bool syntax = false;
};

// A valid manifest, of which each of InvalidManifests() changes one place.
std::string ValidManifest();
std::vector<InvalidManifest> InvalidManifests();

}  // namespace sluice::api

#endif  // SLUICE_OPERATOR_API_TESTING_INVALID_MANIFESTS_H_
