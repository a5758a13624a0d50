// Manifests for a real API server, and the expected answers: the examples of the field table and
// the list of invalid manifests, in one form. A server with the custom resource is tested with the
// same examples as `sluice validate`.
#ifndef SLUICE_SERVICES_MANIFEST_TESTING_API_CASES_H_
#define SLUICE_SERVICES_MANIFEST_TESTING_API_CASES_H_

#include <string>
#include <vector>

namespace sluice::api {

struct ApiCase {
  std::string name;  // distinct: letters, digits, `_`, `-`, `.`
  std::string manifest;
  // The job before the change; empty: the case is a creation.
  std::string before;
  bool accepted = false;
  // For a refusal: the answer contains all of these. The first is the field's path, if the server
  // names one.
  std::vector<std::string> words;
};

std::vector<ApiCase> ApiCases();

}  // namespace sluice::api

#endif  // SLUICE_SERVICES_MANIFEST_TESTING_API_CASES_H_
