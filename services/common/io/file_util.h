#ifndef SLUICE_SERVICES_COMMON_IO_FILE_UTIL_H_
#define SLUICE_SERVICES_COMMON_IO_FILE_UTIL_H_

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

// A file that is being written. One thread at a time. After an error its content is unknown.
class WritableFile {
 public:
  virtual ~WritableFile() = default;  // closes; unsynced data may be lost
  virtual absl::Status Append(absl::string_view bytes) = 0;
  // The content is durable when this returns (its name only after SyncDirectory).
  virtual absl::Status Sync() = 0;
  virtual absl::Status Close() = 0;
};

// The interface for all of a process's file operations, which tests replace. Any thread; blocks for
// the disk. Every error names the path: NOT_FOUND, ALREADY_EXISTS, PERMISSION_DENIED,
// RESOURCE_EXHAUSTED (disk full, quota), UNAVAILABLE (the disk's own errors), INVALID_ARGUMENT,
// FAILED_PRECONDITION.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // Makes an empty file or truncates an existing one. `exclusive`: ALREADY_EXISTS if it exists.
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path,
                                                               bool exclusive) = 0;
  // The whole file, to which `path` may be a symbolic link. RESOURCE_EXHAUSTED if it is longer than
  // `max_bytes`, without reading more than that. FAILED_PRECONDITION, at once, if it is not a
  // regular file but a pipe, a device, a socket or a directory.
  virtual absl::StatusOr<std::string> Read(const std::string& path, size_t max_bytes) = 0;
  // Replaces `to` if it exists. Atomic; durable only after SyncDirectory.
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  // Makes a second name; ALREADY_EXISTS if `to` is another file. Of two concurrent callers exactly
  // one succeeds. (A network file system that has lost an answer repeats the request, and finds
  // that `to` is a name of `from`.)
  virtual absl::Status Link(const std::string& from, const std::string& to) = 0;
  // Removes a file's name, and the file with its last name. NOT_FOUND: there is none.
  virtual absl::Status Remove(const std::string& path) = 0;
  // Makes the directory and its parents; OK if it exists. The new names are durable.
  virtual absl::Status CreateDirectories(const std::string& path) = 0;
  // Removes an empty directory.
  virtual absl::Status RemoveDirectory(const std::string& path) = 0;
  // Names that were made, replaced or removed in the directory before are durable when this
  // returns.
  virtual absl::Status SyncDirectory(const std::string& path) = 0;
  // Names in a directory, sorted, without . and ..
  virtual absl::StatusOr<std::vector<std::string>> List(const std::string& path) = 0;
  virtual absl::StatusOr<bool> Exists(const std::string& path) = 0;
  // The size of a regular file; FAILED_PRECONDITION if it is not one.
  virtual absl::StatusOr<uint64_t> Size(const std::string& path) = 0;
};

// The machine's file system.
std::unique_ptr<FileSystem> MakeRealFileSystem();

// The directory of a path ("." if it has none) and its last part.
std::string DirectoryOf(absl::string_view path);
std::string FileNameOf(absl::string_view path);
std::string JoinPath(absl::string_view directory, absl::string_view name);

// Replaces the file: a reader, even after a power cut, sees either all of the old content or all of
// the new. Durable when this returns OK; after an error the file has one or the other. Writes
// `path`.tmp-<suffix> beside it; `suffix` keeps concurrent writers apart.
absl::Status AtomicWriteFile(FileSystem* files, const std::string& path, const absl::Cord& content,
                             absl::string_view suffix);

// Whether the file's name is that of a temporary file of the functions here.
bool IsTemporaryName(absl::string_view name);

// Makes the file with that content if there is none: it appears complete and durable, or not at
// all. ALREADY_EXISTS: there is one, which is unchanged. After another error the file may exist or
// not: read it. Of many concurrent callers exactly one gets OK.
absl::Status ExclusiveCreateFile(FileSystem* files, const std::string& path,
                                 const absl::Cord& content, absl::string_view suffix);

}  // namespace sluice

#endif  // SLUICE_SERVICES_COMMON_IO_FILE_UTIL_H_
