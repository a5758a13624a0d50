// What may be changed in the manifest of a job that has begun.
#ifndef SLUICE_OPERATOR_LOCAL_RESUME_H_
#define SLUICE_OPERATOR_LOCAL_RESUME_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "operator/api/training_job.h"

namespace sluice::local {

struct ManifestChange {
  std::string path;    // "spec.training.steps"
  std::string before;  // as JSON; "(unset)"
  std::string after;
  bool allowed = false;  // the job may go on with it
};

// Every field that differs, in the order of their names. What a checkpoint depends on (model, data,
// optimizer, batches, seed) must stay as it was; how much is trained, by how many processes, and
// what is watched and saved meanwhile may change.
std::vector<ManifestChange> CompareJobs(const api::TrainingJob& before,
                                        const api::TrainingJob& after);

}  // namespace sluice::local

#endif  // SLUICE_OPERATOR_LOCAL_RESUME_H_
