// Fuzz targets for a shard's state machine with peers that send anything (shard_world.h).
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tests/fuzz/byte_source.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/shard_world.h"

namespace sluice::fuzz {
namespace {

bool RunShard(absl::string_view input) {
  ByteSource bytes(input);
  ShardWorld world(&bytes, /*hostile_coordinator=*/false);
  world.Run();
  return world.Trained();
}

// The coordinator as well: it is a program of the job, but may have another version.
bool RunShardCoordinator(absl::string_view input) {
  ByteSource bytes(input);
  ShardWorld world(&bytes, /*hostile_coordinator=*/true);
  world.Run();
  return world.Trained();
}

// Some honest steps or updates of each kind of job with frames and messages between them.
std::vector<std::string> StepSeeds() {
  std::vector<std::string> seeds;
  for (char job = 0; job < kJobs; ++job) {
    const bool asynchronous = job == kAsynchronous || job == kBoundedStaleness ||
                              job == kAsynchronousRules || job == kTogether || job == kNoArbiter;
    const std::string one = asynchronous ? std::string{kHonest, 0, 0, 1} : std::string{kHonest, 1};
    const std::string two = asynchronous ? std::string{kHonest, 1, 0, 2} : std::string{kHonest, 2};
    std::string seed(1, job);
    for (char between = kPull; between <= kFiles; ++between) {
      absl::StrAppend(&seed, one, std::string{between, 1, 0, 0, 0, 0, 0}, two);
    }
    seeds.push_back(std::move(seed));
  }
  return seeds;
}

// Updates that stop after each of their parts, and are finished in the next view, by the member or
// by the coordinator's choice of a winner.
std::vector<std::string> UpdateSeeds() {
  std::vector<std::string> seeds;
  for (const char job : {kAsynchronous, kBoundedStaleness, kAsynchronousRules, kTogether}) {
    std::string seed(1, job);
    for (char parts = 1; parts <= 5; ++parts) {
      seed += std::string{kHonest, 0, parts, 1, kHonest, 1, parts, 2};
      seed += std::string{kView, 0, static_cast<char>(parts % 2), 0};
      seed += std::string{kHonest, 0, 0, 1, kHonest, 1, 0, 2, kTime, 100};
    }
    // The second member leaves; the first one continues alone, far ahead of where the other was.
    seed += std::string{kView, 1, 0, 0};
    for (int i = 0; i < 6; ++i) seed += std::string{kHonest, 0, 0, 3};
    seeds.push_back(std::move(seed));
  }
  return seeds;
}

// Contributions with weights: 0, a half, a large number, and none (ShardWorld::HonestStep).
std::vector<std::string> WeightSeeds() {
  std::vector<std::string> seeds;
  for (const char job : {kPlain, kDropsStragglers, kClipsOverShards, kBitExact, kRows}) {
    seeds.push_back(std::string{job, kHonest, 5, kHonest, 10, kHonest, 15, kHonest, 1, kView, 1, 0,
                                0, kHonest, 6});
  }
  for (const char job : {kAsynchronous, kBoundedStaleness, kAsynchronousRules}) {
    seeds.push_back(std::string{job,     kHonest, 0, 0,       5,       kHonest, 1, 0, 10,
                                kHonest, 0,       0, 15,      kHonest, 1,       0, 1, kView,
                                0,       1,       0, kHonest, 1,       0,       6});
  }
  return seeds;
}

// Snapshots for a checkpoint and for readers, which a member and a reader pull.
std::vector<std::string> SnapshotSeeds() {
  constexpr char kOpenSnapshot = 2;
  constexpr char kCloseSnapshot = 3;
  const std::string pulls = {kPull, 2, 0, 9, 1, kPull, 0, 0, 9, 1, kPull, 2, 0, 9, 3};
  const std::string files = {kFiles, 0, kFiles, 0, kFiles, 1};
  const std::string close = {kCoordinator, kCloseSnapshot, 0};
  std::vector<std::string> seeds;
  for (const char job : {kPlain, kBitExact, kDropsStragglers}) {
    std::string seed(1, job);
    for (const char write : {1, 0}) {
      seed += std::string{kHonest, 1, kCoordinator, kOpenSnapshot, 0, 1, write};
      absl::StrAppend(&seed, std::string{kHonest, 1, kHonest, 2}, files, pulls);
      // Opened again under its name, then named by a view.
      seed += std::string{kCoordinator, kOpenSnapshot, 1, 1, write, kView, 0, 2, write};
      absl::StrAppend(&seed, std::string{kHonest, 1, kHonest, 2}, files, close);
    }
    seeds.push_back(std::move(seed));
  }
  for (const char job : {kAsynchronous, kBoundedStaleness, kNoArbiter}) {
    std::string seed(1, job);
    for (const char write : {1, 0}) {
      seed += std::string{kHonest, 0, 0, 1, kHonest, 1, 0, 2};
      absl::StrAppend(&seed, std::string{kView, 0, 0, 1, write}, files, pulls);
      absl::StrAppend(&seed, std::string{kHonest, 0, 4, 1, kView, 0, 1, 2, write, kHonest, 1, 0, 2},
                      files, close);
    }
    seeds.push_back(std::move(seed));
  }
  return seeds;
}

std::vector<std::string> ShardSeeds() {
  std::vector<std::string> seeds = StepSeeds();
  for (auto* more : {UpdateSeeds, WeightSeeds, SnapshotSeeds}) {
    for (std::string& seed : more()) seeds.push_back(std::move(seed));
  }
  return seeds;
}

}  // namespace

std::vector<FuzzTarget> ShardTargets() {
  static constexpr char kSources[] =
      "services/ps/core/shard_core.cc services/ps/core/session/streams.cc "
      "services/ps/core/training/synchronous.cc "
      "services/ps/core/training/asynchronous.cc services/ps/core/training/asynchronous_views.cc "
      "services/ps/core/training/arbiter.cc services/ps/core/base/staleness.cc "
      "services/ps/core/session/frame_checks.cc "
      "services/ps/core/membership/initialization.cc services/ps/core/serving/snapshots.cc "
      "services/ps/core/membership/views.cc "
      "services/ps/core/state/partition.cc "
      "services/ps/core/training/norm_exchange.cc services/ps/core/training/participants.cc "
      "services/ps/core/serving/data_sender.cc "
      "services/ps/core/state/gradient_sum.cc";
  return {
      {"shard", RunShard, ShardSeeds, 1024, kSources},
      {"shard_coordinator", RunShardCoordinator, ShardSeeds, 1024, kSources},
  };
}

}  // namespace sluice::fuzz
