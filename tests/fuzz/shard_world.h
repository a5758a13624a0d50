// A shard with peers that send anything, in any order.
//
// An input is a list of events: actions of honest members, frames that break the protocol, streams
// that open and close, time, view changes. The core must not end the process, exceed a bound of
// ShardOptions, or close a step beyond the job's length.
#ifndef SLUICE_TESTS_FUZZ_SHARD_WORLD_H_
#define SLUICE_TESTS_FUZZ_SHARD_WORLD_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/cord.h"
#include "proto/frame.pb.h"
#include "proto/job.pb.h"
#include "services/ps/core/base/action.h"
#include "services/ps/core/testing/shard_harness.h"
#include "tests/fuzz/byte_source.h"

namespace sluice::fuzz {

// The first byte of an input.
enum ShardJob : char {
  kPlain = 0,
  kAsynchronous = 1,
  kBoundedStaleness = 2,
  kDropsStragglers = 3,
  kClipsOverShards = 4,
  kBitExact = 5,
  kRows = 6,
  kAsynchronousRules = 7,  // an update is clipped, may be skipped, and has a staleness rule
  kTogether = 8,           // bounded staleness of zero
  kNoArbiter = 9,          // asynchronous, and the other shard owns partition 0
  kJobs = 10,
};

// The first byte of an event; values up to 15 that are not named here repeat the named one below.
enum ShardEvent : char {
  kHonest = 0,
  kPull = 2,
  kFrame = 3,
  kOpen = 8,
  kDisconnect = 9,
  kTime = 10,
  kView = 11,
  kCoordinator = 12,
  kConnections = 14,
  kFiles = 15,
};

class ShardWorld {
 public:
  // `bytes`: the input, which must outlive the world. `hostile_coordinator`: the coordinator too
  // sends anything.
  ShardWorld(ByteSource* bytes, bool hostile_coordinator);

  // Lets the events happen. Ends the process if the shard breaks a promise.
  void Run();

  // Whether training made progress.
  bool Trained() { return shard_.core().Status().lowest > 0; }

 private:
  void SetJob(ShardJob job);
  void SetBounds();
  bool synchronous() const { return shard_.job.training().mode() == v1::SYNCHRONOUS; }
  ps::StreamId AnyStream();
  void Act();

  void HonestStep();
  void HonestUpdate();
  ps::StreamId HonestStream(size_t member);
  void SendUpdate(ps::StreamId stream, const v1::Lease& lease, const v1::Permit& permit,
                  uint64_t clock, bool apply);
  v1::Header NewHeader();

  void Pull();
  void AnyFrame();
  absl::Cord PayloadOf(v1::Header* header);
  void OpenStream();
  void PassTime();
  void ChangeView();
  void FromCoordinator();
  void Connections();
  void Files();
  void CheckBounds();

  ByteSource* const bytes_;
  const bool hostile_coordinator_;
  ps::ShardHarness shard_;
  std::vector<ps::StreamId> streams_;
  uint64_t other_clocks_[2] = {0, 0};  // of the members, where this shard is not the arbiter
  std::vector<ps::WritePartition> writes_;
  uint64_t view_ = 1;
  bool exited_ = false;
};

}  // namespace sluice::fuzz

#endif  // SLUICE_TESTS_FUZZ_SHARD_WORLD_H_
