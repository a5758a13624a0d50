// The custom resource `trainingjobs.sluice.dev`, made from the table of fields.
//
// What the table says of one value becomes the structural schema (types, bounds, defaults,
// enumerations); what it says of several, or of a text's form, becomes CEL rules with the table's
// own words; what is fixed for the life of a job becomes CEL rules on updates. So `kubectl apply`
// refuses what `sluice validate` refuses, and says the same.
#ifndef SLUICE_OPERATOR_API_CRD_CRD_H_
#define SLUICE_OPERATOR_API_CRD_CRD_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace sluice::api {

// The CustomResourceDefinition (apiextensions.k8s.io/v1), keys in the order in which people read.
nlohmann::ordered_json CustomResourceDefinition();

// The same as YAML.
std::string CustomResourceDefinitionYaml();

// Rules on updates: what is fixed, by the object that holds it.
struct FixedField {
  std::string scope;  // "spec.model"
  std::string field;  // "name"
  std::string cel;
  std::string message;
};
std::vector<FixedField> FixedFields();

}  // namespace sluice::api

#endif  // SLUICE_OPERATOR_API_CRD_CRD_H_
