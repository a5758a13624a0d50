// Jobs that several tests build on.

#ifndef SLUICE_TESTS_TESTING_JOBS_H_
#define SLUICE_TESTS_TESTING_JOBS_H_

#include <cstdint>
#include <string>

#include "proto/job.pb.h"

namespace sluice::testing {

// Synchronous, one shard, one worker, SGD 0.1, short timers; the caller sets model and data.
v1::JobSpec BaseJob();

// A small linear regression with two workers, slowed down by `delay` seconds per step.
v1::JobSpec LinearJob(uint64_t steps, double delay);

// A new empty directory for a test's files, under TEST_TMPDIR.
std::string NewDirectory(const std::string& name);

// The content of a file; empty if it does not exist.
std::string Contents(const std::string& path);

}  // namespace sluice::testing

#endif  // SLUICE_TESTS_TESTING_JOBS_H_
