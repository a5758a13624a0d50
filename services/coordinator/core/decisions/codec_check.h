#ifndef SLUICE_SERVICES_COORDINATOR_CORE_DECISIONS_CODEC_CHECK_H_
#define SLUICE_SERVICES_COORDINATOR_CORE_DECISIONS_CODEC_CHECK_H_

#include "absl/status/status.h"
#include "proto/job.pb.h"
#include "proto/model.pb.h"

namespace sluice::coordinator {

// Checks, before training, that the job's codecs can encode the model's parameters: if a codec were
// silently not used, the user would only notice it by the traffic. INVALID_ARGUMENT names the
// parameter and the field.
absl::Status CheckCodecs(const v1::TrainingSpec& training, const v1::TensorTable& table);

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_CORE_DECISIONS_CODEC_CHECK_H_
