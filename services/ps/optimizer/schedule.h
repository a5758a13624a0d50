#ifndef SLUICE_SERVICES_PS_OPTIMIZER_SCHEDULE_H_
#define SLUICE_SERVICES_PS_OPTIMIZER_SCHEDULE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "proto/job.pb.h"

namespace sluice {

// The factor for the learning rate at a step, counted from 0 (synchronous: the version that the
// update reads; asynchronous: the update's ordinal).
//
// With W = warmup_steps:
//   step < W   (step + 1) / W, so the first step is not wasted and step W - 1 has the full rate
//   else, with t = step - W:
//     CONSTANT  1
//     STEP      gamma ^ floor(t / step_size), as torch.optim.lr_scheduler.StepLR
//     COSINE    min_factor + (1 - min_factor) (1 + cos(pi t / T)) / 2, T = total_steps - W;
//               min_factor from t = T on (SGDR, arXiv:1608.03983, without restarts)
//
// `schedule` must have passed ValidateSchedule.
double ScheduleFactor(const v1::Schedule& schedule, uint64_t step);

// INVALID_ARGUMENT names the field that is out of range: STEP needs step_size > 0 and a finite
// gamma > 0, COSINE needs total_steps > warmup_steps and min_factor within [0, 1].
absl::Status ValidateSchedule(const v1::Schedule& schedule);

}  // namespace sluice

#endif  // SLUICE_SERVICES_PS_OPTIMIZER_SCHEDULE_H_
