// "Did you mean": the best of some names for one that is none of them.
#ifndef SLUICE_OPERATOR_API_SUGGEST_H_
#define SLUICE_OPERATOR_API_SUGGEST_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace sluice::api {

// The index of the candidate that `name` most likely stands for; -1 where none is near. Case, `_`
// and `-` do not count; otherwise as many edits (insert, delete, replace, swap of neighbours) as a
// third of the name's length are near.
int ClosestName(absl::string_view name, const std::vector<std::string>& candidates);

}  // namespace sluice::api

#endif  // SLUICE_OPERATOR_API_SUGGEST_H_
