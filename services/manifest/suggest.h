// "Did you mean": finds the known name closest to an unknown one.
#ifndef SLUICE_SERVICES_MANIFEST_SUGGEST_H_
#define SLUICE_SERVICES_MANIFEST_SUGGEST_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace sluice::api {

// The index of the candidate that `name` most likely means; -1 if none is close. Case, `_` and `-`
// do not count; otherwise a candidate is close if the number of edits (insert, delete, replace,
// swap of neighbours) is at most a third of the name's length.
int ClosestName(absl::string_view name, const std::vector<std::string>& candidates);

}  // namespace sluice::api

#endif  // SLUICE_SERVICES_MANIFEST_SUGGEST_H_
