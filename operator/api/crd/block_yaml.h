// Writes JSON as block YAML, with keys in their order: for objects that people read and apply.
#ifndef SLUICE_OPERATOR_API_CRD_BLOCK_YAML_H_
#define SLUICE_OPERATOR_API_CRD_BLOCK_YAML_H_

#include <nlohmann/json.hpp>
#include <string>

namespace sluice::api {

// `value` is an object. Ends with a line break.
std::string BlockYaml(const nlohmann::ordered_json& value);

}  // namespace sluice::api

#endif  // SLUICE_OPERATOR_API_CRD_BLOCK_YAML_H_
