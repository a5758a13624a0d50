#ifndef SLUICE_SERVICES_CHECKPOINT_TESTING_STORAGE_FIXTURE_H_
#define SLUICE_SERVICES_CHECKPOINT_TESTING_STORAGE_FIXTURE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "proto/checkpoint.pb.h"
#include "services/checkpoint/local_storage.h"
#include "services/checkpoint/storage.h"
#include "services/common/arithmetic/crc32c.h"
#include "services/common/io/fake_file_system.h"
#include "services/common/io/file_util.h"

namespace sluice {

inline v1::CheckpointRef Ref(uint64_t attempt, uint64_t step) {
  v1::CheckpointRef ref;
  ref.set_attempt(attempt);
  ref.set_step(step);
  return ref;
}

inline v1::Claim MakeClaim(uint64_t attempt) {
  v1::Claim claim;
  claim.set_format_version(kCheckpointFormatVersion);
  claim.set_attempt(attempt);
  return claim;
}

inline v1::Claim MakeClaim(uint64_t attempt, const v1::CheckpointRef& parent) {
  v1::Claim claim = MakeClaim(attempt);
  *claim.mutable_parent() = parent;
  return claim;
}

inline std::vector<std::string> Names(const std::vector<v1::CheckpointRef>& refs) {
  std::vector<std::string> names;
  for (const v1::CheckpointRef& ref : refs) {
    names.push_back(absl::StrCat(ref.attempt(), "/", ref.step()));
  }
  return names;
}

// Writes a checkpoint of one file.
inline v1::CheckpointIndex SaveCheckpoint(CheckpointStorage& storage, const v1::CheckpointRef& ref,
                                          const std::string& content, const std::string& job = "") {
  EXPECT_TRUE(storage.WriteFile(ref, "partition-00000.safetensors", absl::Cord(content)).ok());
  v1::CheckpointIndex checkpoint_index;
  checkpoint_index.set_format_version(kCheckpointFormatVersion);
  checkpoint_index.set_job(job);
  *checkpoint_index.mutable_checkpoint() = ref;
  v1::PartitionFile& file = *checkpoint_index.add_files();
  file.set_name("partition-00000.safetensors");
  file.set_bytes(content.size());
  file.set_crc32c(Crc32c(content));
  EXPECT_TRUE(storage.WriteCheckpointIndex(checkpoint_index).ok());
  return checkpoint_index;
}

// A job's storage in /store of a file system that can lose power, fail and be full.
class LocalStorageTest : public ::testing::Test {
 protected:
  v1::CheckpointIndex Save(const v1::CheckpointRef& ref, const std::string& content,
                           const std::string& job = "") {
    return SaveCheckpoint(*storage_, ref, content, job);
  }

  // The same, but the process dies when everything except the directory is synced.
  void SaveButForTheLastSync(const v1::CheckpointRef& ref) {
    const v1::CheckpointIndex checkpoint_index = Save(ref, "content");
    const auto write_again = [&] {
      ASSERT_TRUE(storage_->Remove(ref).ok());
      ASSERT_TRUE(
          storage_->WriteFile(ref, checkpoint_index.files(0).name(), absl::Cord("content")).ok());
    };

    write_again();
    const int before = files_.operations();
    ASSERT_TRUE(storage_->WriteCheckpointIndex(checkpoint_index).ok());
    const int last = files_.operations() - before - 1;

    write_again();
    files_.FailAfter(last);
    ASSERT_FALSE(storage_->WriteCheckpointIndex(checkpoint_index).ok());
    files_.FailNever();
    ASSERT_TRUE(ReadWholeCheckpoint(*storage_, ref).ok());
  }

  std::string Path(const v1::CheckpointRef& ref, const std::string& name) {
    return absl::StrCat("/store/", CheckpointDirectory(ref), "/", name);
  }
  void Overwrite(const std::string& path, const std::string& content) {
    ASSERT_TRUE(AtomicWriteFile(&files_, path, absl::Cord(content), "test").ok());
  }

  FakeFileSystem files_;
  std::unique_ptr<CheckpointStorage> storage_ = MakeLocalStorage(&files_, "/store", "a");
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_CHECKPOINT_TESTING_STORAGE_FIXTURE_H_
