// The common parts of all objects of a TrainingJob. Pure.
#ifndef SLUICE_OPERATOR_RECONCILER_OWNED_H_
#define SLUICE_OPERATOR_RECONCILER_OWNED_H_

#include <string>

#include "operator/kube/object.h"
#include "operator/reconciler/observed_job.h"

namespace sluice::reconciler {

// An object of that name in the job's namespace, with the job's labels. It is deleted with the job;
// a foreground deletion of the job waits for it.
kube::Json MakeOwned(const kube::ResourceType& type, const ObservedJob& job,
                     const std::string& name);

}  // namespace sluice::reconciler

#endif  // SLUICE_OPERATOR_RECONCILER_OWNED_H_
