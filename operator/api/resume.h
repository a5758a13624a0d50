// Which fields of the manifest of a started job may be changed.
#ifndef SLUICE_OPERATOR_API_RESUME_H_
#define SLUICE_OPERATOR_API_RESUME_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "operator/api/training_job.h"

namespace sluice::api {

struct ManifestChange {
  std::string path;    // "spec.training.steps"
  std::string before;  // as JSON; "(unset)"
  std::string after;
  bool allowed = false;  // the job may continue with the change
};

// Every field that differs, ordered by name. Fields that a checkpoint depends on (model, data,
// optimizer, batches, seed) must stay the same; the length of training, learning rates, weight
// decays and schedules, the number of processes, evaluations and the intervals of checkpoints may
// change.
std::vector<ManifestChange> CompareJobs(const TrainingJob& before, const TrainingJob& after);

}  // namespace sluice::api

#endif  // SLUICE_OPERATOR_API_RESUME_H_
