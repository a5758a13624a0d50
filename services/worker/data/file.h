// Files read whole, compressed or not.
#ifndef SLUICE_SERVICES_WORKER_DATA_FILE_H_
#define SLUICE_SERVICES_WORKER_DATA_FILE_H_

#include <string>

#include "absl/status/statusor.h"

namespace sluice {

// Larger content is refused with ResourceExhausted: it has to lie in memory.
inline constexpr uint64_t kMaxFileBytes = uint64_t{16} << 30;

// The content of a file; of a gzip file (told by its content, not by its name) what was compressed.
// NotFound, PermissionDenied, InvalidArgument (a folder), DataLoss (truncated, wrong checksum);
// messages begin with the path.
absl::StatusOr<std::string> ReadFile(const std::string& path);

}  // namespace sluice

#endif  // SLUICE_SERVICES_WORKER_DATA_FILE_H_
