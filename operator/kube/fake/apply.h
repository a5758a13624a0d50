#ifndef SLUICE_OPERATOR_KUBE_FAKE_APPLY_H_
#define SLUICE_OPERATOR_KUBE_FAKE_APPLY_H_

#include <map>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "operator/kube/object.h"

namespace sluice::kube {

// The fields (JSON pointers of leaves) that each manager of an object has applied.
using FieldOwners = std::map<std::string, std::set<std::string>>;

// The core of server-side apply: sets the fields of `applied` in `object`, removes fields that
// `manager` applied before and no longer applies (unless another manager owns them), and records
// the owners. Lists are leaves, which is stricter than the API server's merging of lists by key.
// Aborted (and nothing changed): another manager owns a field with another value, and `force` is
// not set.
absl::Status Apply(const Json& applied, const std::string& manager, bool force, Json* object,
                   FieldOwners* owners);

}  // namespace sluice::kube

#endif  // SLUICE_OPERATOR_KUBE_FAKE_APPLY_H_
