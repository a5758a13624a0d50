// Describes fields of the table in words; for the reference and for explanations.
#ifndef SLUICE_SERVICES_MANIFEST_PRINT_FIELD_TEXT_H_
#define SLUICE_SERVICES_MANIFEST_PRINT_FIELD_TEXT_H_

#include <string>

#include "services/manifest/field_table.h"

namespace sluice::api {

// "integer", "list of strings", "map of integers".
std::string TypeText(const SchemaNode& node);

// "at least 1, at most 1024"; empty if any value of the type is allowed.
std::string BoundsText(const Field& field);

// "64", "`Synchronous`", or in words; empty if there is no default.
std::string DefaultText(const Field& field);

}  // namespace sluice::api

#endif  // SLUICE_SERVICES_MANIFEST_PRINT_FIELD_TEXT_H_
