#ifndef SLUICE_SERVICES_PS_OPTIMIZER_REGISTRY_H_
#define SLUICE_SERVICES_PS_OPTIMIZER_REGISTRY_H_

#include <memory>

#include "proto/job.pb.h"
#include "services/ps/optimizer/optimizer.h"

// The update rules behind MakeOptimizer, one source file each. Each takes a spec whose values have
// been checked.
namespace sluice::optimizer_internal {

std::unique_ptr<Optimizer> MakeSgd(const v1::OptimizerSpec& spec);
std::unique_ptr<Optimizer> MakeAdagrad(const v1::OptimizerSpec& spec);
std::unique_ptr<Optimizer> MakeAdam(const v1::OptimizerSpec& spec);  // AdamW too
std::unique_ptr<Optimizer> MakeRmsprop(const v1::OptimizerSpec& spec);
std::unique_ptr<Optimizer> MakeNadam(const v1::OptimizerSpec& spec);
std::unique_ptr<Optimizer> MakeRadam(const v1::OptimizerSpec& spec);
std::unique_ptr<Optimizer> MakeAdamax(const v1::OptimizerSpec& spec);
std::unique_ptr<Optimizer> MakeAdadelta(const v1::OptimizerSpec& spec);
std::unique_ptr<Optimizer> MakeLion(const v1::OptimizerSpec& spec);
std::unique_ptr<Optimizer> MakeAdd();

}  // namespace sluice::optimizer_internal

#endif  // SLUICE_SERVICES_PS_OPTIMIZER_REGISTRY_H_
