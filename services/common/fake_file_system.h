#ifndef SLUICE_SERVICES_COMMON_FAKE_FILE_SYSTEM_H_
#define SLUICE_SERVICES_COMMON_FAKE_FILE_SYSTEM_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "services/common/file_util.h"
#include "services/common/mutex.h"

namespace sluice {

// A file system in memory that forgets, in a power cut, what was not synced, and fails when told
// to. "/" is there; a file's folder must be. Any thread.
class FakeFileSystem final : public FileSystem {
 public:
  FakeFileSystem();

  // What is on the disk is what was synced: contents by Sync of the file, names by SyncDirectory of
  // their folder. Files that are open lose what they had and can be written no more.
  void CutPower();

  // Bytes that files may have in all; writes past it fail with RESOURCE_EXHAUSTED. What fits is
  // written.
  void SetCapacity(uint64_t bytes);

  // The operation `number` from now on (0: the next) that changes something fails with UNAVAILABLE,
  // and so do all after it until FailNever: a disk that goes, or a process that is killed there.
  void FailAfter(int number);
  void FailNever() { FailAfter(-1); }
  // Operations that changed something so far, for tests that fail each in turn.
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

#endif  // SLUICE_SERVICES_COMMON_FAKE_FILE_SYSTEM_H_
