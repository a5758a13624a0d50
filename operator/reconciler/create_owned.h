// Creates a job's objects without touching foreign ones.
#ifndef SLUICE_OPERATOR_RECONCILER_CREATE_OWNED_H_
#define SLUICE_OPERATOR_RECONCILER_CREATE_OWNED_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "operator/kube/client.h"
#include "operator/kube/object.h"
#include "operator/reconciler/observed_job.h"

namespace sluice::reconciler {

// Creates `object`, or finds the one that the job has already (kube::CreateOrFind). The
// controller's uid shows whose object it is. ALREADY_EXISTS (NameTaken): a foreign object has the
// name; it is left as it is.
absl::StatusOr<kube::Json> CreateOwned(kube::Client* client, const kube::ResourceType& type,
                                       const ObservedJob& job, const kube::Json& object);

// ALREADY_EXISTS: names the object that has the name, and its apparent owner.
absl::Status NameTaken(const kube::ResourceType& type, const kube::Json& found,
                       const ObservedJob& job);

}  // namespace sluice::reconciler

#endif  // SLUICE_OPERATOR_RECONCILER_CREATE_OWNED_H_
