// Jobs that several tests start from.

#ifndef SLUICE_TESTS_TESTING_JOBS_H_
#define SLUICE_TESTS_TESTING_JOBS_H_

#include <cstdint>
#include <string>

#include "proto/job.pb.h"

namespace sluice::testing {

// Synchronous, one shard, one worker, SGD 0.1, short timers; model and data are the caller's.
v1::JobSpec BaseJob();

// A small linear regression with two workers, of `delay` seconds a step.
v1::JobSpec LinearJob(uint64_t steps, double delay);

// A new empty folder for a test's files, under TEST_TMPDIR.
std::string NewFolder(const std::string& name);

// What a file holds; nothing if it is not there.
std::string Contents(const std::string& path);

}  // namespace sluice::testing

#endif  // SLUICE_TESTS_TESTING_JOBS_H_
