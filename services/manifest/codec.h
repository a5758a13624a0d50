// Converts a TrainingJob to JSON, the form in which API servers store it, and back.
//
// The table of fields says where each value is in the job (Field::proto), so a new field of the
// manifest and of v1::JobSpec needs no code here.
#ifndef SLUICE_SERVICES_MANIFEST_CODEC_H_
#define SLUICE_SERVICES_MANIFEST_CODEC_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "services/manifest/training_job.h"

namespace sluice::api {

// `object` has passed the table's checks and has their defaults (validate.h, or an API server). A
// field that is nevertheless missing or of another type has its default, so no object from an API
// server can do harm. Defaults that depend on other fields are filled in here, in `object`:
// move a tree that is not needed any more. `spec.uid` comes from metadata.uid.
TrainingJob FromJson(nlohmann::json object);

// All fields that have a value. FromJson(ToJson(job)) equals `job` if FromJson made it.
nlohmann::json ToJson(const TrainingJob& job);

// The cluster-only fields ("spec.worker.template") that the job sets to a value other than the
// default; in the table's order. `sluice run` ignores these fields.
std::vector<std::string> ClusterFields(const TrainingJob& job);

}  // namespace sluice::api

#endif  // SLUICE_SERVICES_MANIFEST_CODEC_H_
