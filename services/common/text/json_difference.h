// The differences between two JSON objects, field by field.
#ifndef SLUICE_SERVICES_COMMON_TEXT_JSON_DIFFERENCE_H_
#define SLUICE_SERVICES_COMMON_TEXT_JSON_DIFFERENCE_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace sluice {

// A field that differs, or that only one side has.
struct JsonDifference {
  std::string path;  // "spec.training.steps"
  // Null: the object does not have the field.
  const nlohmann::json* before;
  const nlohmann::json* after;
};

// Ordered by path. Objects are compared member by member, also where only one side has the object.
// So are arrays of as many objects ("groups[1].momentum"); other arrays are compared as a whole.
// `path` is the path of the two objects; empty: they are the root. The result points into both,
// which must outlive it. Recurses as deep as they are nested.
std::vector<JsonDifference> JsonDifferences(const std::string& path, const nlohmann::json& before,
                                            const nlohmann::json& after);

}  // namespace sluice

#endif  // SLUICE_SERVICES_COMMON_TEXT_JSON_DIFFERENCE_H_
