// Tests the promises of storage.h for every CheckpointStorage. A storage passes it with
//
//   INSTANTIATE_TEST_SUITE_P(Local, StorageSuite, testing::Values(StorageMaker(...)));
#ifndef SLUICE_SERVICES_CHECKPOINT_TESTING_STORAGE_SUITE_H_
#define SLUICE_SERVICES_CHECKPOINT_TESTING_STORAGE_SUITE_H_

#include <functional>
#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "services/checkpoint/storage.h"

namespace sluice {

// A place that is empty at first. What one of its clients writes, the others read.
class StoragePlace {
 public:
  virtual ~StoragePlace() = default;
  // `writer` differs between the clients, as the incarnations of processes do.
  virtual std::unique_ptr<CheckpointStorage> Connect(const std::string& writer) = 0;
};

using StorageMaker = std::function<std::unique_ptr<StoragePlace>()>;

// The place is made before each test, and ends after it.
class StorageSuite : public ::testing::TestWithParam<StorageMaker> {
 protected:
  std::unique_ptr<StoragePlace> place_ = GetParam()();
  std::unique_ptr<CheckpointStorage> first_ = place_->Connect("first");
  std::unique_ptr<CheckpointStorage> second_ = place_->Connect("second");
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_CHECKPOINT_TESTING_STORAGE_SUITE_H_
