// Reads whole files, compressed or not.
#ifndef SLUICE_SERVICES_WORKER_DATA_FILE_H_
#define SLUICE_SERVICES_WORKER_DATA_FILE_H_

#include <string>

#include "absl/status/statusor.h"

namespace sluice {

// Larger content is refused with ResourceExhausted, because it must fit into memory.
inline constexpr uint64_t kMaxFileBytes = uint64_t{16} << 30;

// The content of a file; of a gzip file (recognized by its content, not by its name) the
// decompressed content. NotFound, PermissionDenied, InvalidArgument (a directory), DataLoss
// (truncated, wrong checksum); messages begin with the path.
absl::StatusOr<std::string> ReadFile(const std::string& path);

// The same for a text: InvalidArgument if it is in UTF-16 or UTF-32, as some programs save files.
absl::StatusOr<std::string> ReadTextFile(const std::string& path);

}  // namespace sluice

#endif  // SLUICE_SERVICES_WORKER_DATA_FILE_H_
