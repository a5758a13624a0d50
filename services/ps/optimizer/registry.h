#ifndef SLUICE_SERVICES_PS_OPTIMIZER_REGISTRY_H_
#define SLUICE_SERVICES_PS_OPTIMIZER_REGISTRY_H_

#include <memory>

#include "proto/job.pb.h"
#include "services/ps/optimizer/optimizer.h"

// The update rules behind MakeOptimizer, one source file each. Each takes a spec whose values have
// been checked.
namespace sluice::optimizer_internal {

// With momentum, also Nesterov's.
std::unique_ptr<Optimizer> MakeSgd(const v1::OptimizerSpec& spec);
// Divides an element's gradient by the root of the sum of its squared gradients.
std::unique_ptr<Optimizer> MakeAdagrad(const v1::OptimizerSpec& spec);
// The average gradient by the root of the average squared gradient, corrected for their start at 0.
std::unique_ptr<Optimizer> MakeAdam(const v1::OptimizerSpec& spec);  // AdamW too
// Gradients divided by the root of their average square.
std::unique_ptr<Optimizer> MakeRmsprop(const v1::OptimizerSpec& spec);
// Adam with Nesterov's momentum.
std::unique_ptr<Optimizer> MakeNadam(const v1::OptimizerSpec& spec);
// Adam, whose first steps are not adaptive while the average square is too uncertain.
std::unique_ptr<Optimizer> MakeRadam(const v1::OptimizerSpec& spec);
// Adam with the largest magnitude in place of the average square.
std::unique_ptr<Optimizer> MakeAdamax(const v1::OptimizerSpec& spec);
// The gradient times the root of the average squared step over that of the average squared
// gradient.
std::unique_ptr<Optimizer> MakeAdadelta(const v1::OptimizerSpec& spec);
// The sign of an average gradient: every element moves by the same amount.
std::unique_ptr<Optimizer> MakeLion(const v1::OptimizerSpec& spec);
// w + gradient: for values that workers have updated themselves, and for tests.
std::unique_ptr<Optimizer> MakeAdd();

}  // namespace sluice::optimizer_internal

#endif  // SLUICE_SERVICES_PS_OPTIMIZER_REGISTRY_H_
