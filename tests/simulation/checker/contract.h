// The messages that the coordinator and the shards may send, given the earlier messages.
//
// The checker (checker.h) checks a job's results. Breaking some rules costs only time or memory, or
// another rule compensates for it. Such a violation still shows in the messages, whatever the
// result:
//
//   - a coordinator that takes over has a higher term than each before it (R1)
//   - a shard sends nothing to a coordinator that is older than the newest it knows, once that
//     coordinator has named its attempt and term (R1)
//   - an Install follows the replies of all shards of its view to the Pause that it names (R1)
//   - a shard answers an AfterStep once all its partitions are past the step or at a barrier (R5)
//   - the first Pause of an attempt follows StateReady of all shards for the newest request (R12)
//   - an Install names no snapshot below its first step that an owner of blocks has not pinned
//   (R14)
#ifndef SLUICE_TESTS_SIMULATION_CHECKER_CONTRACT_H_
#define SLUICE_TESTS_SIMULATION_CHECKER_CONTRACT_H_

#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "proto/common.pb.h"
#include "proto/control.pb.h"
#include "tests/simulation/checker/checker.h"

namespace sluice::simulation {

class Contract {
 public:
  explicit Contract(Checker* checker) : checker_(*checker) {}

  // A coordinator sends a message to any member.
  void OnCoordinatorSays(const v1::CoordinatorMessage& message);
  // A shard is about to handle a message.
  void OnShardReceives(uint64_t shard, const v1::CoordinatorMessage& message);
  void OnShardSays(uint64_t shard, const v1::MemberMessage& message);

 private:
  // Attempt, term, number.
  using Id = std::tuple<uint64_t, uint64_t, uint64_t, uint64_t>;

  struct Shard {
    uint64_t attempt = 0;  // of the newest coordinator that the shard knows
    v1::Term term;
    bool drops = false;     // its coordinator is older than that one
    bool promised = false;  // it has replied to a Pause since its last Install
  };

  void OnPause(const v1::Pause& pause);
  void OnInstall(const v1::Install& install);
  void CheckTerm(const v1::ViewId& view);
  void OnReply(uint64_t shard, const v1::PauseReply& reply);
  void CheckAfterStep(const v1::Pause& pause, const v1::PauseReply& reply);
  static bool IsOlder(const Shard& shard, uint64_t attempt, const v1::Term& term);
  static void NoteSender(Shard* shard, uint64_t attempt, const v1::Term& term);

  Checker& checker_;
  std::map<Id, v1::Pause> pauses_;
  std::map<Id, std::set<uint64_t>> replied_;                        // by pause: shards
  std::map<Id, std::set<uint64_t>> ready_;                          // by request: shards
  std::map<Id, std::set<uint64_t>> barriers_;                       // by view
  std::map<uint64_t, v1::PrepareState> prepares_;                   // by attempt: the newest
  std::map<std::pair<uint64_t, uint64_t>, uint64_t> coordinators_;  // by attempt and term of a view
  std::map<std::pair<uint64_t, uint64_t>, std::set<uint64_t>>
      pinned_;  // by attempt, snapshot: shards
  std::map<uint64_t, Shard> shards_;
};

}  // namespace sluice::simulation

#endif  // SLUICE_TESTS_SIMULATION_CHECKER_CONTRACT_H_
