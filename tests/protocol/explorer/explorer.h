// Exhaustive breadth-first search over the states of a small model.
//
// A model is a class with these members:
//
//   struct State;                                            // of bytes only: no pointers, no
//   padding State Initial() const; void AddSteps(const State& state, Steps<State>& steps) const; //
//   every step that is possible std::string Violation(const State& state) const;         // what is
//   wrong; empty if nothing is bool Done(const State& state) const;                     // the job
//   has reached its end
//
// The search is exact: it stores whole states, not their hashes. A trace that it returns is a
// shortest one.
#ifndef SLUICE_TESTS_PROTOCOL_EXPLORER_EXPLORER_H_
#define SLUICE_TESTS_PROTOCOL_EXPLORER_EXPLORER_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace sluice::protocol_models {

// A check of the search besides the model's own invariant.
enum class Progress {
  // From every state, steps of the protocol can reach a state that is done. Faults do not count:
  // the
  // job must be able to end once no more faults happen.
  kDoneStaysReachable,
  // A state without steps is done.
  kNoDeadlock,
};

struct Limits {
  // A search that finds more states than this stops, and reports it as a violation.
  uint32_t states = 8'000'000;
};

struct Exploration {
  // All states, if there is no violation; else the number found until then.
  size_t states = 0;
  // Empty if the model holds.
  std::string violation;
  // The texts of the steps from the initial state to the violation.
  std::vector<std::string> trace;
};

// Receives the steps that are possible in a state. A text is formatted only when a trace needs it.
template <typename State>
class Steps {
 public:
  using Receiver = absl::FunctionRef<void(const State& next, bool fault, const std::string& text)>;

  Steps(Receiver receiver, bool with_texts) : receiver_(receiver), with_texts_(with_texts) {}

  // Adds a step that the protocol's processes do.
  template <typename... Args>
  void Add(const State& next, const absl::FormatSpec<Args...>& format, const Args&... args) {
    receiver_(next, false, with_texts_ ? absl::StrFormat(format, args...) : std::string());
  }

  // Adds a step that need never happen: a crash, a wrong suspicion, the wish of a user.
  template <typename... Args>
  void AddFault(const State& next, const absl::FormatSpec<Args...>& format, const Args&... args) {
    receiver_(next, true, with_texts_ ? absl::StrFormat(format, args...) : std::string());
  }

 private:
  Receiver receiver_;
  bool with_texts_;
};

// The different states that a search has found, numbered from 0, as bytes without most of their
// zeros. (The encoding is that of a little-endian machine.)
class StateSet {
 public:
  StateSet() : ids_(0, Hash{this}, Equal{this}) {}
  StateSet(const StateSet&) = delete;
  StateSet& operator=(const StateSet&) = delete;

  uint32_t size() const { return static_cast<uint32_t>(begins_.size()); }

  // Returns the number of the state, and true if the state is new.
  template <typename State>
  std::pair<uint32_t, bool> Insert(const State& state) {
    Encode(reinterpret_cast<const uint8_t*>(&state), sizeof(State));
    if (auto found = ids_.find(std::string_view(buffer_)); found != ids_.end()) {
      return {*found, false};
    }
    uint32_t id = size();
    begins_.push_back(bytes_.size());
    Append();
    ids_.insert(id);
    return {id, true};
  }

  template <typename State>
  State Get(uint32_t id) const {
    State state;
    Decode(Bytes(id), reinterpret_cast<uint8_t*>(&state), sizeof(State));
    return state;
  }

 private:
  struct Hash {
    using is_transparent = void;
    const StateSet* set;
    size_t operator()(std::string_view bytes) const { return absl::HashOf(bytes); }
    size_t operator()(uint32_t id) const { return absl::HashOf(set->Bytes(id)); }
  };
  struct Equal {
    using is_transparent = void;
    const StateSet* set;
    bool operator()(uint32_t a, uint32_t b) const { return a == b; }
    bool operator()(uint32_t a, std::string_view b) const { return set->Bytes(a) == b; }
    bool operator()(std::string_view a, uint32_t b) const { return a == set->Bytes(b); }
  };

  std::string_view Bytes(uint32_t id) const {
    uint64_t end = id + 1 < size() ? begins_[id + 1] : bytes_.size();
    return std::string_view(bytes_.data() + begins_[id], end - begins_[id]);
  }

  // For each word of eight bytes that is not zero: the number of zero words before it, a mask of
  // its bytes that are not zero, and these bytes.
  void Encode(const uint8_t* from, size_t size) {
    buffer_.resize(size / 8 * 10 + 10);
    char* to = buffer_.data();
    uint8_t zeros = 0;
    for (size_t at = 0; at < size; at += 8) {
      uint64_t word = 0;
      std::memcpy(&word, from + at, std::min<size_t>(8, size - at));
      if (word == 0 && zeros < 255) {
        ++zeros;
        continue;
      }
      *to++ = static_cast<char>(zeros);
      zeros = 0;
      char* mask = to++;
      *mask = 0;
      for (int bit = 0; word != 0; ++bit, word >>= 8) {
        if ((word & 255) == 0) continue;
        *mask = static_cast<char>(*mask | 1 << bit);
        *to++ = static_cast<char>(word & 255);
      }
    }
    buffer_.resize(to - buffer_.data());
  }

  static void Decode(std::string_view from, uint8_t* to, size_t size) {
    std::memset(to, 0, size);
    for (const char* at = from.data(); at != from.data() + from.size(); to += 8) {
      to += 8 * static_cast<uint8_t>(*at++);
      const uint8_t mask = static_cast<uint8_t>(*at++);
      for (int bit = 0; bit < 8; ++bit) {
        if (mask >> bit & 1) to[bit] = static_cast<uint8_t>(*at++);
      }
    }
  }

  // Grows by a third, not to twice the size: the bytes are most of the memory.
  void Append() {
    size_t needed = bytes_.size() + buffer_.size();
    if (needed > bytes_.capacity()) bytes_.reserve(std::max(needed, bytes_.capacity() / 3 * 4));
    bytes_.insert(bytes_.end(), buffer_.begin(), buffer_.end());
  }

  std::string buffer_;  // the encoded state
  std::vector<char> bytes_;
  std::vector<uint64_t> begins_;
  absl::flat_hash_set<uint32_t, Hash, Equal> ids_;
};

// One search.
template <typename Model>
class Explorer {
 public:
  using State = typename Model::State;
  static_assert(std::is_trivially_copyable_v<State>);
  static_assert(std::has_unique_object_representations_v<State>, "states are compared as bytes");

  Explorer(const Model& model, Progress progress, Limits limits)
      : model_(model), progress_(progress), limits_(limits) {}

  Exploration Run() {
    states_.Insert(model_.Initial());
    parents_.push_back(0);
    for (uint32_t id = 0; id < states_.size(); ++id) {
      const State state = states_.Get<State>(id);
      if (std::string violation = model_.Violation(state); !violation.empty()) {
        return Ended(std::move(violation), id);
      }
      done_.push_back(model_.Done(state));
      if (Expand(state, id) == 0 && progress_ == Progress::kNoDeadlock && !done_[id]) {
        return Ended("no step is possible, and the job is not done", id);
      }
      if (states_.size() > limits_.states) {
        return Ended(absl::StrCat("the model has more than ", limits_.states, " states"), 0);
      }
    }
    if (progress_ == Progress::kDoneStaysReachable) return CheckProgress();
    return Ended("", 0);
  }

 private:
  // Adds the states that the next step leads to; returns the number of steps.
  size_t Expand(const State& state, uint32_t id) {
    size_t count = 0;
    auto receive = [&](const State& next, bool fault, const std::string&) {
      ++count;
      auto [next_id, is_new] = states_.Insert(next);
      if (is_new) parents_.push_back(id);
      if (!fault && progress_ == Progress::kDoneStaysReachable) edges_.push_back(next_id);
    };
    edge_begins_.push_back(edges_.size());
    Steps<State> steps(receive, false);
    model_.AddSteps(state, steps);
    return count;
  }

  // A state is good if a state that is done can be reached from it.
  Exploration CheckProgress() {
    edge_begins_.push_back(edges_.size());
    std::vector<bool> good = done_;
    for (bool changed = true; changed;) {
      changed = false;
      for (uint32_t id = states_.size(); id-- > 0;) {
        if (good[id]) continue;
        for (uint64_t edge = edge_begins_[id]; edge < edge_begins_[id + 1]; ++edge) {
          if (!good[edges_[edge]]) continue;
          good[id] = true;
          changed = true;
          break;
        }
      }
    }
    // A state without any step shows the reason best.
    constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
    uint32_t first = kNone;
    for (uint32_t id = 0; id < states_.size(); ++id) {
      if (good[id]) continue;
      first = std::min(first, id);
      if (edge_begins_[id] == edge_begins_[id + 1]) {
        return Ended("no step is possible, and the job is not done", id);
      }
    }
    return first == kNone ? Ended("", 0) : Ended("the job can no longer be done", first);
  }

  Exploration Ended(std::string violation, uint32_t id) const {
    Exploration result;
    result.states = states_.size();
    result.violation = std::move(violation);
    std::vector<uint32_t> path;
    for (; id != 0; id = parents_[id]) path.push_back(id);
    std::reverse(path.begin(), path.end());
    uint32_t from = 0;
    for (uint32_t to : path) {
      result.trace.push_back(StepText(states_.Get<State>(from), states_.Get<State>(to)));
      from = to;
    }
    return result;
  }

  std::string StepText(const State& from, const State& to) const {
    std::string found;
    auto receive = [&](const State& next, bool fault, const std::string& text) {
      if (found.empty() && std::memcmp(&next, &to, sizeof(State)) == 0) {
        found = fault ? absl::StrCat("[fault] ", text) : text;
      }
    };
    Steps<State> steps(receive, true);
    model_.AddSteps(from, steps);
    return found;
  }

  const Model& model_;
  const Progress progress_;
  const Limits limits_;
  StateSet states_;
  // By state: the state from which it was found first, and whether it is done.
  std::vector<uint32_t> parents_;
  std::vector<bool> done_;
  // The states that the protocol's steps lead to, and where those of a state begin.
  std::vector<uint32_t> edges_;
  std::vector<uint64_t> edge_begins_;
};

// Searches all states of a model. Needs about 50 to 150 bytes for each state.
template <typename Model>
Exploration Explore(const Model& model, Progress progress = Progress::kDoneStaysReachable,
                    Limits limits = Limits()) {
  return Explorer<Model>(model, progress, limits).Run();
}

}  // namespace sluice::protocol_models

#endif  // SLUICE_TESTS_PROTOCOL_EXPLORER_EXPLORER_H_
