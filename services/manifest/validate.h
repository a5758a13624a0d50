// Checks a manifest's tree against the field table, and fills in the table's defaults, in place.
#ifndef SLUICE_SERVICES_MANIFEST_VALIDATE_H_
#define SLUICE_SERVICES_MANIFEST_VALIDATE_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "services/manifest/problem.h"
#include "services/manifest/yaml_document.h"

namespace sluice::api {

struct ValidatedObject {
  // The fields in the text, without those that an API server adds. Like `object`, complete only
  // without problems.
  nlohmann::json written;
  // With defaults, as an API server would hold it.
  nlohmann::json object;
  // Sorted by place.
  std::vector<Problem> problems;
};

// All problems of the TrainingJob `root`: unknown fields, types, bounds, missing fields, rules
// across fields (each one only if all the fields that it uses are valid by themselves). Fields that
// an API server adds to an object (status, uid, ...) are ignored. Relative paths are joined to
// `base_directory` unless that is empty.
ValidatedObject Validate(YamlValue root, const YamlTokens& tokens,
                         const std::string& base_directory);

}  // namespace sluice::api

#endif  // SLUICE_SERVICES_MANIFEST_VALIDATE_H_
