// The fuzz targets: one function for each parser of input from outside.
//
// A function takes any bytes. It returns whether the parser accepted them, and ends the process
// (SLUICE_CHECK, a sanitizer) if the parser breaks a promise of its header. It reads and writes no
// file of the machine and keeps no state between calls, so that one input alone reproduces a
// finding.
//
// Two programs call the functions. //tests/fuzz:fuzzer uses libFuzzer; tools/fuzz.sh builds and
// runs it. //tests/fuzz:corpus_test is an ordinary test that runs the seeds, the seeds with small
// changes, and the inputs of past findings.
#ifndef SLUICE_TESTS_FUZZ_FUZZ_TARGET_H_
#define SLUICE_TESTS_FUZZ_FUZZ_TARGET_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace sluice::fuzz {

struct FuzzTarget {
  const char* name;
  // True: the parser accepted the input.
  bool (*run)(absl::string_view input);
  // Makes inputs that the parser accepts, with the product's own encoders; null: the seeds are the
  // files in seeds/<name>.
  std::vector<std::string> (*seeds)();
  // Longer inputs are not tried.
  size_t max_bytes;
  // The parser's sources, separated by spaces, on which `tools/fuzz.sh --coverage` reports.
  const char* sources;
};

// Every target, in the order of the tables in the *_targets.cc files.
std::vector<FuzzTarget> AllTargets();

// The tables.
std::vector<FuzzTarget> WireTargets();
std::vector<FuzzTarget> StorageTargets();
std::vector<FuzzTarget> DataTargets();
std::vector<FuzzTarget> JobTargets();
std::vector<FuzzTarget> KubeTargets();
std::vector<FuzzTarget> CoordinatorTargets();
std::vector<FuzzTarget> ShardTargets();
std::vector<FuzzTarget> CopiesTargets();

}  // namespace sluice::fuzz

#endif  // SLUICE_TESTS_FUZZ_FUZZ_TARGET_H_
