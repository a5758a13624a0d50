// What the bits of a synchronous job's result depend on: the field `isa` of checkpoint indexes.
#ifndef SLUICE_SERVICES_PROTOCOL_ARITHMETIC_H_
#define SLUICE_SERVICES_PROTOCOL_ARITHMETIC_H_

#include <string>

#include "absl/strings/string_view.h"
#include "proto/job.pb.h"

namespace sluice {

// This build, and the instruction set that its kernels choose on this machine.
std::string MachineArithmetic();

// `machine`, a MachineArithmetic(), and the number of a worker's threads if the job sets it (with
// BitExact: 1 by default). The numbers that workers choose themselves are not known.
std::string JobArithmetic(absl::string_view machine, const v1::TrainingSpec& training);

}  // namespace sluice

#endif  // SLUICE_SERVICES_PROTOCOL_ARITHMETIC_H_
