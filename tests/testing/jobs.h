// Jobs that several tests start from.

#ifndef SLUICE_TESTS_TESTING_JOBS_H_
#define SLUICE_TESTS_TESTING_JOBS_H_

#include <string>

#include "proto/job.pb.h"

namespace sluice::testing {

// Synchronous, one shard, one worker, SGD 0.1, short timers; model and data are the caller's.
v1::JobSpec BaseJob();

// A new empty folder for a test's files, under TEST_TMPDIR.
std::string NewFolder(const std::string& name);

}  // namespace sluice::testing

#endif  // SLUICE_TESTS_TESTING_JOBS_H_
