// A TrainingJob as JSON, the form in which API servers hold it, and back.
#ifndef SLUICE_OPERATOR_API_CODEC_H_
#define SLUICE_OPERATOR_API_CODEC_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "operator/api/training_job.h"

namespace sluice::api {

// `object` has passed the table's checks and has their defaults (validate.h, or an API server); a
// field that is missing or of another type all the same counts as unset, so that nothing an API
// server sends can do harm. Defaults that depend on other fields are filled in here: those of the
// optimizer's options, of microbatchSize, of the checkpoint's interval. `spec.uid` comes from
// metadata.uid.
TrainingJob FromJson(const nlohmann::json& object);

// Every field that has a value. FromJson(ToJson(job)) is `job`, if FromJson made it.
nlohmann::json ToJson(const TrainingJob& job);

// What the job says that only clusters know of ("spec.worker.template"), where it differs from the
// default; in the table's order. `sluice run` sets these fields aside.
std::vector<std::string> ClusterFields(const TrainingJob& job);

}  // namespace sluice::api

#endif  // SLUICE_OPERATOR_API_CODEC_H_
