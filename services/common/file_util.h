#ifndef SLUICE_SERVICES_COMMON_FILE_UTIL_H_
#define SLUICE_SERVICES_COMMON_FILE_UTIL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"

namespace sluice {

// A file that is being written.
class WritableFile {
 public:
  virtual ~WritableFile() = default;  // closes; what was not synced may be lost
  virtual absl::Status Append(absl::string_view bytes) = 0;
  // The content is durable when this returns (its name is not: SyncDirectory).
  virtual absl::Status Sync() = 0;
  virtual absl::Status Close() = 0;
};

// The seam for everything that a process does with files. Any thread; blocks for the disk. Every
// error names the path: NOT_FOUND, ALREADY_EXISTS, PERMISSION_DENIED, RESOURCE_EXHAUSTED (disk
// full, quota), UNAVAILABLE (the disk's own errors), INVALID_ARGUMENT, FAILED_PRECONDITION.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // Makes an empty file or truncates it. `exclusive`: ALREADY_EXISTS if it is there.
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path,
                                                               bool exclusive) = 0;
  // The whole file, to which `path` may be a symbolic link. RESOURCE_EXHAUSTED if it is longer than
  // `max_bytes`, of which no more is read. FAILED_PRECONDITION, at once, if it is no regular file:
  // a pipe, a device, a socket or a folder.
  virtual absl::StatusOr<std::string> Read(const std::string& path, size_t max_bytes) = 0;
  // Replaces `to`.
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  // A second name; ALREADY_EXISTS if `to` is there. Of two callers at once exactly one succeeds.
  virtual absl::Status Link(const std::string& from, const std::string& to) = 0;
  virtual absl::Status Remove(const std::string& path) = 0;
  // Makes the folder and its parents; OK if it is there. The new names are durable.
  virtual absl::Status CreateDirectories(const std::string& path) = 0;
  // Removes an empty folder.
  virtual absl::Status RemoveDirectory(const std::string& path) = 0;
  // Names made, replaced or removed in the folder before are durable when this returns.
  virtual absl::Status SyncDirectory(const std::string& path) = 0;
  // Names in a folder, sorted, without . and ..
  virtual absl::StatusOr<std::vector<std::string>> List(const std::string& path) = 0;
  virtual absl::StatusOr<bool> Exists(const std::string& path) = 0;
  // Of a regular file; FAILED_PRECONDITION if it is none.
  virtual absl::StatusOr<uint64_t> Size(const std::string& path) = 0;
};

// The machine's.
std::unique_ptr<FileSystem> MakeRealFileSystem();

// The folder of a path ("." if it has none) and its last part.
std::string DirectoryOf(absl::string_view path);
std::string FileNameOf(absl::string_view path);
std::string JoinPath(absl::string_view directory, absl::string_view name);

// Replaces the file: whoever reads it, also after a power cut, sees the old content or the new,
// whole. Durable when this returns OK; on error it is the one or the other. Writes
// `path`.tmp-<suffix> beside it; `suffix` keeps concurrent writers apart.
absl::Status AtomicWriteFile(FileSystem* files, const std::string& path, const absl::Cord& content,
                             absl::string_view suffix);

// Makes the file with that content if there is none: it appears whole and durable, or not at all.
// ALREADY_EXISTS: somebody else's stands there, unchanged. After another error it may be there or
// not: read it. Of many callers at once exactly one gets OK.
absl::Status ExclusiveCreateFile(FileSystem* files, const std::string& path,
                                 const absl::Cord& content, absl::string_view suffix);

}  // namespace sluice

#endif  // SLUICE_SERVICES_COMMON_FILE_UTIL_H_
