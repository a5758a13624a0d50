// How many processors a process may use. The system's number of processors ignores the CPU quota of
// a container: threads beyond it only wait for each other.
#ifndef SLUICE_SERVICES_COMMON_PROCESS_PROCESSORS_H_
#define SLUICE_SERVICES_COMMON_PROCESS_PROCESSORS_H_

#include <string>

#include "services/common/io/file_util.h"

namespace sluice {

// The processors that the system lets this process run on, and not more than the CPU quota of its
// control groups (cgroup v1 or v2), rounded up; at least 1. Reads files of /proc and /sys. Does not
// fail: a file that cannot be read is no limit.
int AvailableProcessors();

// The smallest CPU quota of the control groups that `membership` (the content of /proc/self/cgroup)
// names, and of the groups above them, in processors, rounded up; 0: no quota. `root` is where the
// control groups are mounted, /sys/fs/cgroup.
int ProcessorQuota(FileSystem* files, const std::string& membership, const std::string& root);

}  // namespace sluice

#endif  // SLUICE_SERVICES_COMMON_PROCESS_PROCESSORS_H_
