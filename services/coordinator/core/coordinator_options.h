#ifndef SLUICE_SERVICES_COORDINATOR_CORE_COORDINATOR_OPTIONS_H_
#define SLUICE_SERVICES_COORDINATOR_CORE_COORDINATOR_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "proto/common.pb.h"
#include "proto/job.pb.h"

namespace sluice::coordinator {

struct CoordinatorOptions {
  v1::JobSpec job;
  uint64_t incarnation = 0;  // of this coordinator; random, not 0
  // Found at the start; they become events of the job.
  std::vector<std::string> warnings;
  // Name of a checkpoint's directory in the storage (services/checkpoint).
  std::function<std::string(const v1::CheckpointRef&)> checkpoint_directory;
  std::string build;  // recorded in manifests
  std::string isa;    // recorded in manifests
};

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_CORE_COORDINATOR_OPTIONS_H_
