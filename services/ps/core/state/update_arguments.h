// The arguments of a step or an asynchronous update, equal on each shard that holds a part of it.
#ifndef SLUICE_SERVICES_PS_CORE_STATE_UPDATE_ARGUMENTS_H_
#define SLUICE_SERVICES_PS_CORE_STATE_UPDATE_ARGUMENTS_H_

#include <cstdint>

#include "proto/control.pb.h"
#include "proto/frame.pb.h"
#include "proto/job.pb.h"
#include "services/ps/core/base/rules.h"
#include "services/ps/core/state/block_update.h"

namespace sluice::ps {

// Whether closing a step requires a number that spans shards.
bool NeedsNorms(const v1::JobSpec& job);

// The factor by which PyTorch's clip_grad_norm_ multiplies gradients: max_norm / (norm + 1e-6), at
// most 1.
double ClipFactor(double max_norm, double square_sum);

// The weight of a contribution in the mean over the step: that of a push that completes a
// partition.
double WeightOf(const ShardRules& rules, const v1::Push& push);

// By what a sum of gradients of this weight is multiplied.
double GradientScale(const v1::JobSpec& job, double weight);

// Whether gradients are divided by their weight, and there is none: then they are not gradients.
bool IsWeightless(const v1::JobSpec& job, double weight);

// A shard's record of an update that it applies.
v1::ClockRecord RecordOf(uint64_t worker, const v1::Apply& apply);

// The gradient is not finite, and the job skips such updates.
bool IsSkipped(const v1::JobSpec& job, const v1::ClockRecord& record);

// `staged`: scales and ordinal, as known when the update was staged.
UpdateArguments ArgumentsFor(const v1::JobSpec& job, UpdateArguments staged,
                             const v1::ClockRecord& record);

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_CORE_STATE_UPDATE_ARGUMENTS_H_
