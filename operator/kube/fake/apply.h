#ifndef SLUICE_OPERATOR_KUBE_FAKE_APPLY_H_
#define SLUICE_OPERATOR_KUBE_FAKE_APPLY_H_

#include <map>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "operator/kube/object.h"

namespace sluice::kube {

// Which fields (JSON pointers of leaves) each manager of an object has applied.
using FieldOwners = std::map<std::string, std::set<std::string>>;

// The heart of server-side apply: sets in `object` what `applied` says, removes what `manager` said
// before and says no longer (unless another manager owns it), and records who owns what. Lists are
// leaves, which is stricter than the API server's merging of lists by key. Aborted (and nothing
// changed): another manager owns a field with another value, and `force` is not set.
absl::Status Apply(const Json& applied, const std::string& manager, bool force, Json* object,
                   FieldOwners* owners);

}  // namespace sluice::kube

#endif  // SLUICE_OPERATOR_KUBE_FAKE_APPLY_H_
