#ifndef SLUICE_SERVICES_COMMON_IO_TEMPORARY_DIRECTORY_H_
#define SLUICE_SERVICES_COMMON_IO_TEMPORARY_DIRECTORY_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice {

// A directory under $TMPDIR (default /tmp) that no other process uses, not even one with the same
// id in another container, and that only its user may read. The destructor removes it with its
// content.
class TemporaryDirectory {
 public:
  // The directory's name begins with `prefix`. An error names the parent directory.
  static absl::StatusOr<std::unique_ptr<TemporaryDirectory>> Make(absl::string_view prefix);

  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  // Absolute if $TMPDIR is.
  const std::string& path() const { return path_; }

 private:
  explicit TemporaryDirectory(std::string path) : path_(std::move(path)) {}

  const std::string path_;
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_COMMON_IO_TEMPORARY_DIRECTORY_H_
