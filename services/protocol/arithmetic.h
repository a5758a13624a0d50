// The arithmetic that decides a synchronous job's bits: the field `isa` of checkpoint indexes.
#ifndef SLUICE_SERVICES_PROTOCOL_ARITHMETIC_H_
#define SLUICE_SERVICES_PROTOCOL_ARITHMETIC_H_

#include <string>

#include "proto/job.pb.h"

namespace sluice {

struct MachineArithmetic {
  std::string build;
  std::string instructions;  // the newest set that the machine has, of those that kernels know
};

// The same in every call of a process.
MachineArithmetic ThisMachine();

// The build; the kernels that the job fixes for its workers, or else the machine's instructions, as
// workers choose kernels for theirs; and the number of a worker's threads if the job fixes it
// (FixedThreads). The numbers that workers choose themselves are not known.
std::string JobArithmetic(const MachineArithmetic& machine, const v1::TrainingSpec& training);

}  // namespace sluice

#endif  // SLUICE_SERVICES_PROTOCOL_ARITHMETIC_H_
