#include "services/coordinator/core/decisions/retention.h"

#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice::coordinator {
namespace {

using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

v1::CheckpointRef Ref(uint64_t attempt, uint64_t step) {
  v1::CheckpointRef ref;
  ref.set_attempt(attempt);
  ref.set_step(step);
  return ref;
}

std::vector<std::pair<uint64_t, uint64_t>> Deleted(std::vector<v1::CheckpointRef> all,
                                                   const v1::CheckpointRef& current,
                                                   uint64_t keep) {
  std::vector<std::pair<uint64_t, uint64_t>> deleted;
  for (const v1::CheckpointRef& ref : Superseded(std::move(all), current, keep)) {
    deleted.emplace_back(ref.attempt(), ref.step());
  }
  return deleted;
}

TEST(Superseded, AreAllButNewest) {
  EXPECT_THAT(Deleted({Ref(1, 5), Ref(1, 10), Ref(1, 15)}, Ref(1, 15), 2),
              UnorderedElementsAre(std::make_pair(1, 5)));
  EXPECT_THAT(Deleted({Ref(1, 5), Ref(1, 10)}, Ref(1, 10), 1),
              UnorderedElementsAre(std::make_pair(1, 5)));
}

TEST(Superseded, OlderAttemptIsOlderAtAnyStep) {
  EXPECT_THAT(Deleted({Ref(1, 50), Ref(2, 10), Ref(2, 20)}, Ref(2, 20), 2),
              UnorderedElementsAre(std::make_pair(1, 50)));
}

TEST(Superseded, NewerCheckpointsAreNotOurs) {
  EXPECT_THAT(Deleted({Ref(1, 5), Ref(3, 1), Ref(2, 10)}, Ref(2, 10), 1),
              UnorderedElementsAre(std::make_pair(1, 5)));
}

TEST(Superseded, KeepsAllWithoutLimit) {
  EXPECT_THAT(Deleted({Ref(1, 5), Ref(1, 10)}, Ref(1, 10), 0), IsEmpty());
  EXPECT_THAT(Deleted({Ref(1, 10)}, Ref(1, 10), 5), IsEmpty());
}

}  // namespace
}  // namespace sluice::coordinator
