#ifndef SLUICE_SERVICES_EXECUTION_STAGE_LIMITS_H_
#define SLUICE_SERVICES_EXECUTION_STAGE_LIMITS_H_

#include <cstddef>

namespace sluice::stage {

// The largest request or reply of the service Stage: the numbers between two layers for one batch.
// gRPC fails a call with a larger message with RESOURCE_EXHAUSTED.
inline constexpr size_t kMaxStageMessageBytes = size_t{512} << 20;

}  // namespace sluice::stage

#endif  // SLUICE_SERVICES_EXECUTION_STAGE_LIMITS_H_
