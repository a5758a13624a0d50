// The custom resource `trainingjobs.sluice.dev`, generated from the table of fields.
//
// The table's limits of a single value become the structural schema (types, bounds, defaults,
// enumerations); limits of several values, or of the form of a text, become CEL rules with the
// table's own messages; fields that are fixed for the life of a job become CEL rules on updates. So
// `kubectl apply` rejects what `sluice validate` rejects, with the same message.
#ifndef SLUICE_OPERATOR_CRD_CRD_H_
#define SLUICE_OPERATOR_CRD_CRD_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace sluice::api {

// The CustomResourceDefinition (apiextensions.k8s.io/v1), with keys in the order for readers.
nlohmann::ordered_json CustomResourceDefinition();

// The same as YAML.
std::string CustomResourceDefinitionYaml();

// Rules on updates: fixed fields, by the object that contains them.
struct FixedField {
  std::string scope;  // "spec.model"
  std::string field;  // "name"
  std::string cel;
  std::string message;
};
std::vector<FixedField> FixedFields();

}  // namespace sluice::api

#endif  // SLUICE_OPERATOR_CRD_CRD_H_
