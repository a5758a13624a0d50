// Simulated processes and the streams between them.
//
// Intuition. A process handles events one after the other. It can be frozen (its events wait),
// thawed, and killed (its events are lost). A stream is a pair of first-in-first-out lanes with
// random delays; different streams overtake each other. When a stream is cut, each end notices at
// its own time, so for a while one side may use the old stream while the other side has opened a
// new one. Messages in flight may arrive before that, or be lost. A process may also be isolated
// for a time: nothing arrives at it or from it, and no stream is opened, until the network heals;
// then everything arrives, in its order on each lane.
#ifndef SLUICE_TESTS_SIMULATION_NETWORK_H_
#define SLUICE_TESTS_SIMULATION_NETWORK_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/time/time.h"
#include "proto/frame.pb.h"
#include "tests/simulation/scheduler.h"

namespace sluice::simulation {

class Process : public std::enable_shared_from_this<Process> {
 public:
  virtual ~Process() = default;

  bool alive() const { return alive_; }
  bool frozen() const { return frozen_; }

  // Lets the process handle an event: now, when it thaws, or never.
  void Handle(std::function<void()> event) {
    if (!alive_) return;
    if (frozen_) {
      waiting_.push_back(std::move(event));
    } else {
      event();
    }
  }
  void Freeze() { frozen_ = true; }
  // Freezes the process so that Thaw has no effect.
  void FreezeForGood() { frozen_ = for_good_ = true; }
  void Thaw() {
    if (!frozen_ || for_good_) return;
    frozen_ = false;
    OnThaw();
    while (alive_ && !frozen_ && !waiting_.empty()) {
      std::function<void()> event = std::move(waiting_.front());
      waiting_.pop_front();
      event();
    }
  }
  void Die() {
    alive_ = false;
    waiting_.clear();
  }

 protected:
  // Runs before the waiting events.
  virtual void OnThaw() {}

 private:
  bool alive_ = true;
  bool frozen_ = false;
  bool for_good_ = false;
  std::deque<std::function<void()>> waiting_;
};

// One stream. Holders of a reference may read it; only Network changes it.
struct Stream {
  uint64_t id = 0;
  struct End {
    std::shared_ptr<Process> process;
    bool open = true;
    std::function<void()> on_closed;  // by the other side, or by a cut
    absl::Time last_arrival;
    // While a process is isolated, and until this lane's first message is sent again.
    std::deque<std::function<void()>> held;
    absl::Time resumes = absl::InfinitePast();
  };
  End client;
  End server;
  // For streams of frames: handles a frame of the server at the client.
  std::function<void(const v1::Header&, const absl::Cord&)> on_frame;
  bool cut = false;             // nothing more can be sent
  bool lost_to_client = false;  // messages in flight do not arrive
  bool lost_to_server = false;
};
using StreamRef = std::shared_ptr<Stream>;

class Network {
 public:
  Network(Scheduler* scheduler, Random* random) : scheduler_(*scheduler), random_(*random) {}

  ~Network();

  // Unless the network is calm, a message is sometimes very late.
  void set_calm(bool calm) { calm_ = calm; }

  // Opens a stream to the process that `find` returns when the request arrives (null or dead:
  // refused). `accept` runs at the server and may set on_closed; `connected` or `refused` runs at
  // the client.
  void Open(std::shared_ptr<Process> client, std::function<std::shared_ptr<Process>()> find,
            std::function<void(StreamRef)> accept, std::function<void(StreamRef)> connected,
            std::function<void()> refused);

  // Runs `deliver` at the other end, in order, unless the stream is broken by then.
  void ToServer(const StreamRef& stream, std::function<void()> deliver);
  void ToClient(const StreamRef& stream, std::function<void()> deliver);

  // One end closes. It receives nothing more; the other end is notified after all messages.
  void CloseByClient(const StreamRef& stream);
  void CloseByServer(const StreamRef& stream);

  void Cut(const StreamRef& stream);
  // Cuts all streams of a process that has died or loses its connections.
  void CutAll(const Process& process);
  // `spared`: processes that still reach it.
  void Isolate(const std::shared_ptr<Process>& process, std::set<const Process*> spared) {
    isolated_[process] = std::move(spared);
  }
  bool IsIsolated(const std::shared_ptr<Process>& process) const {
    return isolated_.count(process) > 0;
  }
  void Heal(const std::shared_ptr<Process>& process);
  // Both ends of an isolated process's streams give up.
  void BreakIsolated(const Process& process);
  // Cuts about half of its streams.
  void CutSome(const Process& process);
  // Returns a random open stream; null if there is none.
  StreamRef Pick();

 private:
  absl::Duration Delay();
  // When a message that was sent to an isolated process is sent again.
  absl::Duration ResendDelay();
  bool AreApart(const std::shared_ptr<Process>& a, const std::shared_ptr<Process>& b) const;
  bool IsHeld(const Stream& stream, const Stream::End& to) const;
  // Runs what arrives at that end, now or when the network heals.
  void Arrive(const StreamRef& stream, bool client, std::function<void()> arrival);
  void Resume(const StreamRef& stream, bool client);
  void Notify(const StreamRef& stream, bool client, absl::Duration delay, bool local = false);
  void Forget();

  Scheduler& scheduler_;
  Random& random_;
  bool calm_ = false;
  uint64_t last_id_ = 0;
  std::vector<StreamRef> streams_;          // streams that may be cut
  std::vector<std::weak_ptr<Stream>> all_;  // all streams that ever existed
  std::map<std::shared_ptr<Process>, std::set<const Process*>> isolated_;  // -> spared
  std::vector<std::function<void()>> opens_;  // that wait until the network heals
};

}  // namespace sluice::simulation

#endif  // SLUICE_TESTS_SIMULATION_NETWORK_H_
