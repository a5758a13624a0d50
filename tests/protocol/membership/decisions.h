// Decisions of evaluations (docs/protocol.md, section 10): each version that is due is evaluated,
// and its evaluation changes a factor that the steps from there on use; the last one ends training.
//
// Two shards with one partition each, abstract workers, and a copy of partition 0 on shard 1. Up to
// three coordinators with rising terms, of which one that is replaced may continue at any moment; a
// new attempt that begins with a checkpoint. The factor after n evaluations is n, so a step that
// closes with another factor than that of an undisturbed job shows at once.
#ifndef SLUICE_TESTS_PROTOCOL_MEMBERSHIP_DECISIONS_H_
#define SLUICE_TESTS_PROTOCOL_MEMBERSHIP_DECISIONS_H_

#include <cstdint>
#include <string>

#include "tests/protocol/explorer/explorer.h"
#include "tests/protocol/explorer/state_types.h"

namespace sluice::protocol_models {

class Decisions {
 public:
  struct Options {
    uint8_t view_changes = 1;  // besides those of new coordinators
    uint8_t coordinator_crashes = 1;
    uint8_t second_coordinators = 1;
    uint8_t restorations = 1;
    bool copies = true;

    // The shards wait at the version until it is evaluated. No: until all of them have pinned it.
    bool barrier_waits_for_decision = true;
    // A new coordinator takes the newest decisions of the shards' replies.
    bool replies_have_decisions = true;
    // An evaluation of a version that has decided decides nothing.
    bool decides_once = true;
    bool index_has_decisions = true;
    // A first version that is due and has not decided is evaluated.
    bool first_version_is_evaluated = true;
    // A copy is not updated at the barrier.
    bool copies_wait_at_barrier = true;
    // The Install has the coordinator's decisions.
    bool install_has_decisions = true;
  };

  static constexpr int kShards = 2;
  static constexpr int kCoordinators = 3;
  // Each version from 1 on is due; the evaluation of the last one ends training.
  static constexpr int kLast = 3;

  enum Error : uint8_t {
    kNoError,
    kWrongFactor,
    kTrainsOn,
    kCannotRollBack,
    kWrongCopy,
    kChannelIsFull,
  };
  enum Phase : uint8_t { kIdle, kPauses };
  enum MessageType : uint8_t { kPause = 1, kInstall, kBarrier };

  struct Decision {
    uint8_t step, factor;
  };
  struct Message {
    MessageType type;
    uint8_t view, first_step, barrier, pause;
    Decision decision;
  };
  struct Shard {
    uint8_t term, view, promised, promised_to, pause;
    uint8_t version, copy;  // copy: of partition 0, on shard 1
    uint8_t barrier;
    uint8_t pinned;  // versions
    Decision decision;
  };
  struct Coordinator {
    uint8_t alive, term;
    Phase phase;
    uint8_t view, pause, replies;
    uint8_t reply_version[kShards];
    uint8_t reply_view[kShards];
    Decision reply_decision[kShards];
    uint8_t takes_over;
    uint8_t barrier;
    uint8_t due;  // the version that is evaluated next
    Decision decision;
  };
  struct State {
    Error error;
    uint8_t views, view_changes, coordinator_crashes, second_coordinators, restorations;
    Shard shards[kShards];
    Coordinator coordinators[kCoordinators];
    Queue<Message, 4> messages[kCoordinators][kShards];
    uint8_t saved;  // the version of the newest checkpoint
    Decision saved_decision;
  };

  explicit Decisions(const Options& options) : options_(options) {}

  State Initial() const;
  void AddSteps(const State& state, Steps<State>& steps) const;
  std::string Violation(const State& state) const;
  bool Done(const State& state) const;

 private:
  void AddTraining(const State& state, int shard, Steps<State>& steps) const;
  void AddCopy(const State& state, Steps<State>& steps) const;
  void AddArrival(const State& state, int coordinator, int shard, Steps<State>& steps) const;
  void Receive(State& state, int coordinator, int shard, const Message& message) const;
  void Install(State& state, int shard, const Message& message) const;
  void AddCoordinatorSteps(const State& state, int coordinator, Steps<State>& steps) const;
  void AddEvaluation(const State& state, int coordinator, Steps<State>& steps) const;
  void AddCoordinatorStart(const State& state, Steps<State>& steps) const;
  void AddRestoration(const State& state, Steps<State>& steps) const;
  void StartPause(State& state, int coordinator) const;
  void Decide(State& state, int coordinator) const;
  void BeginView(Coordinator& coordinator, uint8_t first_step) const;
  void Send(State& state, int coordinator, const Message& message) const;

  const Options options_;
};

}  // namespace sluice::protocol_models

#endif  // SLUICE_TESTS_PROTOCOL_MEMBERSHIP_DECISIONS_H_
