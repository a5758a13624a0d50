// The arguments of a job's processes, the same on one machine and in a cluster.
#ifndef SLUICE_OPERATOR_POLICY_PROCESS_ARGUMENTS_H_
#define SLUICE_OPERATOR_POLICY_PROCESS_ARGUMENTS_H_

#include <string>
#include <vector>

#include "operator/policy/policy.h"

namespace sluice::policy {

// The facts that a process needs to take part in a job. A backend adds where the process finds its
// credentials, serves its metrics and writes its log.
struct ProcessArguments {
  // The coordinator's.
  std::string job_file;
  std::string storage;  // of checkpoints
  // For shards and workers.
  std::string job;          // FullJobName
  std::string coordinator;  // host:port
  int threads = 0;
  // host:port to listen on, and the host that shards tell others; empty: the program's default.
  std::string listen;
  std::string advertise;
};

// The arguments of the replica's program.
std::vector<std::string> ArgumentsOf(const Replica& replica, const ProcessArguments& process);

}  // namespace sluice::policy

#endif  // SLUICE_OPERATOR_POLICY_PROCESS_ARGUMENTS_H_
