#ifndef SLUICE_SERVICES_COMMON_TEMPORARY_DIRECTORY_H_
#define SLUICE_SERVICES_COMMON_TEMPORARY_DIRECTORY_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice {

// A folder under $TMPDIR (/tmp without it) that no other process has, not even one of the same id
// in another container, and that only its user may read. Removed with what is in it at the end.
class TemporaryDirectory {
 public:
  // `prefix` begins the folder's name. An error names the folder under which none can be made.
  static absl::StatusOr<std::unique_ptr<TemporaryDirectory>> Make(absl::string_view prefix);

  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::string& path() const { return path_; }

 private:
  explicit TemporaryDirectory(std::string path) : path_(std::move(path)) {}

  const std::string path_;
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_COMMON_TEMPORARY_DIRECTORY_H_
