// Whether each of a job's steps can be computed by a model that needs several samples at once.

#ifndef SLUICE_SERVICES_PROTOCOL_SAMPLES_SMALLEST_BATCH_H_
#define SLUICE_SERVICES_PROTOCOL_SAMPLES_SMALLEST_BATCH_H_

#include "absl/status/status.h"
#include "proto/control.pb.h"
#include "proto/job.pb.h"

namespace sluice {

// INVALID_ARGUMENT names the module, the first step that would fail, and the settings that help.
// The coordinator gives no worker fewer samples of a step than the model needs, and asynchronous
// updates are joined; so a step fails only if it, or a microbatch that is computed by itself, is
// too small.
absl::Status CheckSmallestBatch(const v1::JobSpec& job, const v1::Ready& ready);

}  // namespace sluice

#endif  // SLUICE_SERVICES_PROTOCOL_SAMPLES_SMALLEST_BATCH_H_
