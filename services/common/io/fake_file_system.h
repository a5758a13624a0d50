#ifndef SLUICE_SERVICES_COMMON_IO_FAKE_FILE_SYSTEM_H_
#define SLUICE_SERVICES_COMMON_IO_FAKE_FILE_SYSTEM_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "services/common/io/file_util.h"
#include "services/common/threads/mutex.h"

namespace sluice {

// A file system in memory that loses unsynced data in a power cut and fails on request. "/" exists;
// a file's directory must exist. Any thread.
class FakeFileSystem final : public FileSystem {
 public:
  FakeFileSystem();

  // Keeps only synced data: contents by Sync of the file, names by SyncDirectory of their
  // directory. Open files lose their unsynced content and can no longer be written.
  void CutPower();

  // How many bytes all files together may have; a write beyond it fails with RESOURCE_EXHAUSTED
  // after the part that fits is written.
  void SetCapacity(uint64_t bytes);

  // The changing operation number `number` from now on (0: the next) fails with UNAVAILABLE, and so
  // do all after it until FailNever: as when a disk breaks, or the process is killed there.
  void FailAfter(int number);
  void FailNever() { FailAfter(-1); }
  // Changing operations so far, for tests that fail each in turn.
  int operations() const;

  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path,
                                                       bool exclusive) override;
  absl::StatusOr<std::string> Read(const std::string& path, size_t max_bytes) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status Link(const std::string& from, const std::string& to) override;
  absl::Status Remove(const std::string& path) override;
  absl::Status CreateDirectories(const std::string& path) override;
  absl::Status RemoveDirectory(const std::string& path) override;
  absl::Status SyncDirectory(const std::string& path) override;
  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override;
  absl::StatusOr<bool> Exists(const std::string& path) override;
  absl::StatusOr<uint64_t> Size(const std::string& path) override;

 private:
  friend class FakeWritableFile;

  struct Inode {
    std::string content;
    std::string synced;
  };
  using Names = std::map<std::string, std::shared_ptr<Inode>>;

  absl::Status Change(const std::string& path) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status NeedDirectory(const std::string& path) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Append(const std::string& path, Inode* inode, int power_cuts,
                      absl::string_view bytes);
  absl::Status Sync(const std::string& path, Inode* inode, int power_cuts);
  uint64_t BytesUsed() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;  // protects everything
  Names names_ ABSL_GUARDED_BY(mutex_);
  Names durable_names_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> directories_ ABSL_GUARDED_BY(mutex_);
  uint64_t capacity_ ABSL_GUARDED_BY(mutex_) = UINT64_MAX;
  int power_cuts_ ABSL_GUARDED_BY(mutex_) = 0;
  int operations_ ABSL_GUARDED_BY(mutex_) = 0;
  int fail_at_ ABSL_GUARDED_BY(mutex_) = -1;  // operation number; -1: never
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_COMMON_IO_FAKE_FILE_SYSTEM_H_
