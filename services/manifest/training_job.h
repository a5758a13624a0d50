// A TrainingJob as Sluice uses it: the settings that go to every process of the job, and those that
// only concern the management of processes.
#ifndef SLUICE_SERVICES_MANIFEST_TRAINING_JOB_H_
#define SLUICE_SERVICES_MANIFEST_TRAINING_JOB_H_

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "proto/job.pb.h"

namespace sluice::api {

constexpr char kApiVersion[] = "sluice.dev/v1alpha1";
constexpr char kKind[] = "TrainingJob";

// Defaults of spec.training: the global batch, and the microbatches into which one is divided,
// enough to balance a few workers of different speed.
inline constexpr int kDefaultGlobalBatchSize = 64;
inline constexpr int kDefaultMicrobatches = 16;

struct TrainingJob {
  // With name and namespace, and all defaults filled in. If `checkpoint.directory` is empty, the
  // backend chooses it (`sluice run`: .sluice/<name>/checkpoints).
  v1::JobSpec spec;

  std::map<std::string, std::string> labels;
  std::map<std::string, std::string> annotations;
  std::string image;  // clusters only; empty: the operator's default
  bool suspend = false;
  // The job fails when it has been active for longer than this.
  std::optional<int64_t> active_deadline_seconds;
  // The cluster-only part of the manifest's `spec` (templates, claims, policies): only those
  // fields, at their places, with their defaults.
  nlohmann::json cluster = nlohmann::json::object();
};

}  // namespace sluice::api

#endif  // SLUICE_SERVICES_MANIFEST_TRAINING_JOB_H_
