#ifndef SLUICE_SERVICES_PS_OPTIMIZER_SCHEDULE_H_
#define SLUICE_SERVICES_PS_OPTIMIZER_SCHEDULE_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/job.pb.h"

namespace sluice {

// The factor for the learning rate at a step, counted from 0 (synchronous: the version that the
// update reads; asynchronous: the update's ordinal). A function of the step alone.
//
// With W = warmup_steps:
//   step < W   (step + 1) / W, so the first step is not wasted and step W - 1 has the full rate
//   else, with t = step - W, and T = total_steps - W where the type has total_steps:
//     CONSTANT         start_factor for t < T, then 1; without total_steps always 1
//     STEP             gamma ^ floor(t / step_size)
//     MULTI_STEP       gamma ^ (number of milestones up to t; one that is there twice counts twice)
//     EXPONENTIAL      gamma ^ t
//     LINEAR           from start_factor to end_factor in T steps, then end_factor
//     POLYNOMIAL       (1 - t / T) ^ power, then 0
//     COSINE           min_factor + (1 - min_factor) (1 + cos(pi t / T)) / 2; min_factor from t = T
//                      on (SGDR, arXiv:1608.03983, without restarts)
//     COSINE_RESTARTS  the same in each cycle: of restart_steps, and restart_multiple times more
//                      each time
//     ONE_CYCLE        up from 1 / initial_divisor to 1 and down to 1 / initial_divisor /
//                      final_divisor at t = T - 1, which is kept (L. Smith, N. Topin,
//                      arXiv:1708.07120)
//     POINTS           linear between two points; that of the nearest point outside of them.
//                      Two points of one step are a jump
//     SEQUENTIAL       that of the last part whose milestone is at most t, at t - milestone
//     CHAINED          the product of the parts' factors
//
// These are PyTorch's formulas. Some of PyTorch's schedulers multiply the previous rate instead,
// and so gather rounding errors; the formula is what they approximate.
//
// `schedule` must have passed ValidateSchedule.
double ScheduleFactor(const v1::Schedule& schedule, uint64_t step);

// The momentum (beta1) at a step; none if the schedule does not change it.
std::optional<double> ScheduleMomentum(const v1::Schedule& schedule, uint64_t step);

// INVALID_ARGUMENT names the field that is out of range, below `path`.
absl::Status ValidateSchedule(const v1::Schedule& schedule,
                              absl::string_view path = "optimizer.schedule");

}  // namespace sluice

#endif  // SLUICE_SERVICES_PS_OPTIMIZER_SCHEDULE_H_
