#ifndef SLUICE_SERVICES_COORDINATOR_CODEC_CHECK_H_
#define SLUICE_SERVICES_COORDINATOR_CODEC_CHECK_H_

#include "absl/status/status.h"
#include "proto/job.pb.h"
#include "proto/model.pb.h"

namespace sluice::coordinator {

// Whether the job's codecs can carry the model's parameters. Asked before training: a codec that
// was wanted and silently not used would be found out by a network bill. INVALID_ARGUMENT names the
// parameter and the field.
absl::Status CheckCodecs(const v1::TrainingSpec& training, const v1::TensorTable& table);

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_CODEC_CHECK_H_
