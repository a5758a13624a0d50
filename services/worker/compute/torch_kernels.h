// The kernels of LibTorch and of the libraries below it. No LibTorch type appears in this header.
#ifndef SLUICE_SERVICES_WORKER_COMPUTE_TORCH_KERNELS_H_
#define SLUICE_SERVICES_WORKER_COMPUTE_TORCH_KERNELS_H_

#include <set>
#include <string>

#include "absl/status/status.h"
#include "proto/job.pb.h"
#include "proto/model.pb.h"
#include "services/protocol/kernels.h"

namespace sluice {

// Makes LibTorch and its OpenBLAS or MKL compute with the kernels that the job fixes, whatever the
// environment says, and without oneDNN; does nothing if the job fixes none. Before LibTorch
// computes anything. UNIMPLEMENTED names the instructions that the processor lacks, or the library
// that computes with other kernels and cannot be changed.
absl::Status FixTorchKernels(const v1::TrainingSpec& training);

// The environment in effect. Workers report it; with BitExact theirs must agree (SameBits).
v1::Environment TorchEnvironment(const v1::TrainingSpec& training, int threads);

// UNIMPLEMENTED unless `instructions`, those of a processor, are enough for the kernels.
absl::Status CheckInstructions(Kernels kernels, const std::set<std::string>& instructions);

}  // namespace sluice

#endif  // SLUICE_SERVICES_WORKER_COMPUTE_TORCH_KERNELS_H_
