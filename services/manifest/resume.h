// Which fields of the manifest of a started job may be changed. The rows of the table say it
// (Change in field_table.h).
#ifndef SLUICE_SERVICES_MANIFEST_RESUME_H_
#define SLUICE_SERVICES_MANIFEST_RESUME_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "proto/job.pb.h"
#include "services/manifest/field_table.h"
#include "services/manifest/training_job.h"

namespace sluice::api {

struct ManifestChange {
  std::string path;    // "spec.training.steps"
  std::string before;  // as JSON; "(unset)"
  std::string after;
  bool allowed = false;  // the job may continue with the change
  Change change = Change::kFixed;
};

// Every field that differs, ordered by name.
std::vector<ManifestChange> CompareJobs(const TrainingJob& before, const TrainingJob& after);

// The part of the job's manifest that a checkpoint records: the fields that it depends on, the
// job's length and the rates, as {"spec": {...}}. FromJson reads it.
nlohmann::json RecordedSettings(const v1::JobSpec& job);

}  // namespace sluice::api

#endif  // SLUICE_SERVICES_MANIFEST_RESUME_H_
