// The kernels with which the libraries of workers compute. Each library chooses those of the newest
// instructions that the processor has, and kernels of different instructions round differently, so
// a BitExact job fixes them for all of its workers.
#ifndef SLUICE_SERVICES_PROTOCOL_KERNELS_H_
#define SLUICE_SERVICES_PROTOCOL_KERNELS_H_

#include <string>
#include <utility>
#include <vector>

#include "proto/job.pb.h"
#include "proto/model.pb.h"

namespace sluice {

using Kernels = v1::TrainingSpec::Kernels;

// The kernels of the job's workers, never unspecified; NATIVE: they are not fixed.
Kernels KernelsOf(const v1::TrainingSpec& training);

// The number of threads of each of the job's workers; 0: the job does not fix it. With BitExact it
// is 1 by default.
int FixedThreads(const v1::TrainingSpec& training);

// As in a manifest: "Native", "x86-64-v3".
std::string KernelsName(Kernels kernels);

using Variables = std::vector<std::pair<std::string, std::string>>;

// The variables of the environment by which the libraries are told. Each library reads its own
// once, when it is loaded or first computes. Empty for NATIVE.
Variables KernelVariables(Kernels kernels);

// Those of a program that computes in a worker's place, and the number of its threads; empty if the
// job does not fix its kernels.
Variables ProgramVariables(const v1::TrainingSpec& training, int threads);

// "kernels x86-64-v3; LibTorch 1.13.1, OpenBLAS 0.3.21; 1 thread". Texts that came from another
// process are cut.
std::string EnvironmentText(const v1::Environment& environment);

// Whether workers of the two environments compute the same bits, as far as is known. LibTorch and
// PyTorch of one version are the same library.
bool SameBits(const v1::Environment& a, const v1::Environment& b);

}  // namespace sluice

#endif  // SLUICE_SERVICES_PROTOCOL_KERNELS_H_
