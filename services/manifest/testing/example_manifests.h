// Manifests around the examples of the table. They are JSON, which is YAML; the value of a field's
// example is YAML that JSON text may contain in one place.
#ifndef SLUICE_SERVICES_MANIFEST_TESTING_EXAMPLE_MANIFESTS_H_
#define SLUICE_SERVICES_MANIFEST_TESTING_EXAMPLE_MANIFESTS_H_

#include <nlohmann/json.hpp>
#include <string>

#include "services/manifest/field_table.h"

namespace sluice::api {

// The minimal manifest after a JSON merge patch, which may be empty.
nlohmann::json PatchedManifest(const std::string& patch);

// The minimal manifest after the field's context, with `value` as the field; without the field if
// `value` is empty.
std::string ManifestWith(const Field& field, const std::string& value);

// The minimal manifest after the rule's context and, at its scope, the example.
std::string ManifestWith(const Rule& rule, const std::string& example);

}  // namespace sluice::api

#endif  // SLUICE_SERVICES_MANIFEST_TESTING_EXAMPLE_MANIFESTS_H_
