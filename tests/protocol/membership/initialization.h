// Initialization (docs/protocol.md, section 6.2): init requests, pushes of version 0, the first
// view.
//
// Up to three workers, two shards that each hold one partition of two blocks, and up to three
// coordinators. The content of a block is the incarnation that pushed it, so a first view that
// mixes the version 0 of two workers shows.
//
// A shard's answer to a coordinator is one step with the message that it answers. Messages of dead
// coordinators may still arrive.
#ifndef SLUICE_TESTS_PROTOCOL_MEMBERSHIP_INITIALIZATION_H_
#define SLUICE_TESTS_PROTOCOL_MEMBERSHIP_INITIALIZATION_H_

#include <cstdint>
#include <string>

#include "tests/protocol/explorer/explorer.h"
#include "tests/protocol/explorer/state_types.h"

namespace sluice::protocol_models {

class Initialization {
 public:
  struct Options {
    // How often each fault may happen, and how many faults in all.
    uint8_t faults = 2;
    uint8_t worker_crashes = 0;
    uint8_t shard_crashes = 0;
    uint8_t coordinator_crashes = 0;
    uint8_t second_coordinators = 0;
    uint8_t suspicions = 0;

    // The rules. Pushes carry the init request, and a shard takes those of its newest one only.
    bool pushes_name_request = true;
    // Init requests are compared by term first; else by number.
    bool requests_have_terms = true;
    // A new coordinator asks all shards for a first view before it lets them discard anything.
    bool survey = true;
    // A shard's "I have all of version 0" counts for the init request that it belongs to.
    bool ready_names_request = true;
  };

  static constexpr int kWorkers = 3;
  static constexpr int kShards = 2;
  static constexpr int kCoordinators = 3;
  static constexpr int kBlocks = 2;

  enum Phase : uint8_t { kIdle, kWaitsForState, kInstalls, kPrepares, kSurveys };
  enum Type : uint8_t { kPrepareState = 1, kInstall, kSurvey };

  struct Worker {
    uint8_t alive, incarnation, request;
    uint8_t sent[kShards];  // blocks
  };
  struct Shard {
    uint8_t alive, term, request;
    uint8_t blocks[kBlocks];  // the incarnation that pushed it, or 0
    uint8_t installed;        // the init request of the first view
  };
  struct Coordinator {
    uint8_t alive, term, request, worker, replies, requests, surveyed;
    Phase phase;
    uint8_t ready[kShards];
    uint8_t knows_first_view;
  };
  struct Push {
    uint8_t request, incarnation, block;
  };
  struct Message {
    Type type;
    uint8_t request;
  };
  struct State {
    uint8_t channel_is_full;
    uint8_t faults, worker_crashes, shard_crashes, coordinator_crashes, second_coordinators;
    uint8_t suspicions, next_request, last_incarnation;
    Worker workers[kWorkers];
    Shard shards[kShards];
    Coordinator coordinators[kCoordinators];
    Queue<Push, 4> pushes[kWorkers][kShards];
    Queue<uint8_t, 3> initialize[kWorkers];  // the init requests that the worker is sent
    Queue<Message, 4> messages[kCoordinators][kShards];
  };

  explicit Initialization(const Options& options) : options_(options) {}

  State Initial() const;
  void AddSteps(const State& state, Steps<State>& steps) const;
  std::string Violation(const State& state) const;
  bool Done(const State& state) const;

 private:
  void AddWorkerSteps(const State& state, int worker, Steps<State>& steps) const;
  void AddPushArrivals(const State& state, int shard, Steps<State>& steps) const;
  void AddMessageArrivals(const State& state, int shard, Steps<State>& steps) const;
  void AddShardCrash(const State& state, int shard, Steps<State>& steps) const;
  void AddCoordinatorSteps(const State& state, int coordinator, Steps<State>& steps) const;
  void AddSurveySteps(const State& state, int coordinator, Steps<State>& steps) const;
  void AddRequestSteps(const State& state, int coordinator, Steps<State>& steps) const;
  void AddFirstViewSteps(const State& state, int coordinator, Steps<State>& steps) const;
  void AddCoordinatorStart(const State& state, Steps<State>& steps) const;

  const Options options_;
};

}  // namespace sluice::protocol_models

#endif  // SLUICE_TESTS_PROTOCOL_MEMBERSHIP_INITIALIZATION_H_
