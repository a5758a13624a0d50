// Files for tests that read data: small files made here, and the real data sets if the machine has
// them.
#ifndef SLUICE_SERVICES_WORKER_DATA_TESTING_DATA_FILES_H_
#define SLUICE_SERVICES_WORKER_DATA_TESTING_DATA_FILES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace sluice {

// A new directory for the running test's files.
std::string MakeTestDirectory();

// Writes a file, compressed if the name ends with ".gz", and returns its path.
std::string WriteTestFile(const std::string& directory, const std::string& name,
                          absl::string_view content);

// The header of an IDX file.
std::string IdxHeader(uint8_t type, const std::vector<uint32_t>& dimensions);

// IdxHeader of bytes, and these bytes.
std::string IdxOfBytes(const std::vector<uint32_t>& dimensions, const std::vector<uint8_t>& values);

// The directory of a data set, e.g. "mnist", "fashion-mnist" or "adult": in the environment
// variable SLUICE_DATA, in
// ../shared/data beside the repository, or where Debian's packages dataset-* install it. Empty if
// in none.
std::string FindDataDirectory(absl::string_view name);

}  // namespace sluice

// Ends the test with a message unless the machine has the data set.
#define SLUICE_SKIP_WITHOUT_DATA(name)                                        \
  if (::sluice::FindDataDirectory(name).empty()) {                            \
    GTEST_SKIP() << "no data set " << (name)                                  \
                 << " in SLUICE_DATA, ../shared/data or /usr/share/datasets"; \
  }                                                                           \
  static_assert(true, "")

#endif  // SLUICE_SERVICES_WORKER_DATA_TESTING_DATA_FILES_H_
