// A checkpoint storage in memory: the shipped implementation on a disk that corrupts files and
// fails.
#ifndef SLUICE_TESTS_SIMULATION_MEMORY_STORAGE_H_
#define SLUICE_TESTS_SIMULATION_MEMORY_STORAGE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "services/checkpoint/storage.h"
#include "services/common/io/fake_file_system.h"
#include "tests/simulation/scheduler.h"

namespace sluice::simulation {

class MemoryStorage {
 public:
  // A file that differs from what was written.
  struct DamagedFile {
    std::string path;
    bool removed = false;
    bool owner = false;
    uint64_t claim = 0;  // the attempt that it claims; 0: it is not a claim
  };

  MemoryStorage();

  CheckpointStorage& operator*() { return *storage_; }
  CheckpointStorage* operator->() { return storage_.get(); }
  FakeFileSystem& disk() { return disk_; }

  // Flips a bit of a checkpoint's file, truncates the file or removes it. Other checkpoints always
  // remain whole. Returns a description of the damage; empty: none.
  std::string DamageCheckpoint(Random* random);
  // The same for a claim or the owner file; all of these may be damaged.
  std::string DamageRecord(Random* random);

  std::vector<DamagedFile> Damaged();
  // Whether a message names the file, or the checkpoint that the file belongs to.
  static bool Names(const std::string& sentence, const std::string& path);
  // Restores the damaged files.
  void PutBack();

  // The checkpoints to restore from, best first, and the best checkpoint index: as written,
  // regardless of later damage.
  std::vector<v1::CheckpointRef> CandidatesAsWritten();
  std::optional<v1::CheckpointIndex> NewestAsWritten();

  bool HasFile(const v1::CheckpointRef& ref, const std::string& name);

 private:
  struct Damage {
    std::string written;
    std::optional<std::string> now;  // nullopt: the file was removed
  };

  std::optional<std::string> Read(const std::string& path);
  // The file is durable on return.
  void Write(const std::string& path, const std::string& content);
  void Remove(const std::string& path);
  std::string DamageFile(const std::string& path, bool may_remove, Random* random);
  void Forget();
  void WithFilesAsWritten(absl::FunctionRef<void()> look);

  FakeFileSystem disk_;
  const std::unique_ptr<CheckpointStorage> storage_;
  std::map<std::string, Damage> damage_;  // by path
};

}  // namespace sluice::simulation

#endif  // SLUICE_TESTS_SIMULATION_MEMORY_STORAGE_H_
