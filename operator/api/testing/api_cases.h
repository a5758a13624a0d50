// Manifests for a real API server, and what it must answer: the examples of the field table and the
// list of invalid manifests, in one form. A server with the custom resource is held to the same
// examples as `sluice validate`.
#ifndef SLUICE_OPERATOR_API_TESTING_API_CASES_H_
#define SLUICE_OPERATOR_API_TESTING_API_CASES_H_

#include <string>
#include <vector>

namespace sluice::api {

struct ApiCase {
  std::string name;  // distinct: letters, digits, `_`, `-`, `.`
  std::string manifest;
  // The job as it was before; empty: the case is a creation.
  std::string before;
  bool accepted = false;
  // Of a refusal: all of these stand in the answer. The first is the field's path, where the server
  // names one.
  std::vector<std::string> words;
};

std::vector<ApiCase> ApiCases();

}  // namespace sluice::api

#endif  // SLUICE_OPERATOR_API_TESTING_API_CASES_H_
