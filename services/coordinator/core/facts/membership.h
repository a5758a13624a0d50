// Tracks which processes are alive. Processes register on a control stream, send messages, lose
// their stream, return, leave, and die. An expelled incarnation is never admitted again (R7).
//
// Intuition: there are three ways to learn of a death. The process manager reports it (at once);
// the stream breaks and the process does not return (suspect, 1 s); the stream is open but silent
// (a frozen process, 5 s). The last two do not count while no process at all is heard (own_link.h).
// Membership knows which processes are alive; the view knows which of them are members.

#ifndef SLUICE_SERVICES_COORDINATOR_CORE_FACTS_MEMBERSHIP_H_
#define SLUICE_SERVICES_COORDINATOR_CORE_FACTS_MEMBERSHIP_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/time/time.h"
#include "proto/control.pb.h"
#include "proto/jobcontrol.pb.h"
#include "services/coordinator/core/base/actions.h"
#include "services/coordinator/core/decisions/own_link.h"
#include "services/protocol/wire_version.h"

namespace sluice::coordinator {

// A live process: it has a stream, or lost its stream less than `suspect` ago.
struct Process {
  v1::ProcessId id;
  std::string address;
  std::string host;
  std::string metrics_address;
  uint64_t pid = 0;
  v1::ViewId newest_view;  // that it knew when it registered, as it reported
  StreamId stream = 0;     // 0: suspect
  absl::Time last_message;
  absl::Time broken = absl::InfiniteFuture();  // when it lost its stream
  absl::Time ready_since = absl::InfiniteFuture();
  bool ready = false;       // workers: model and data are open
  bool leaving = false;     // has sent Leave
  bool was_member = false;  // workers: of a view of this coordinator
  absl::Time reported;      // workers: when it last reported progress, or registered
  int breaches = 0;         // of the protocol
  uint64_t requests = 0;    // workers: the newest number of a JobRequest
  // Whether its registration was answered. Until then the process waits, and sends nothing.
  bool answered = false;

  uint64_t incarnation() const { return id.incarnation(); }
  // As views name it.
  v1::View::Shard AsShard() const {
    v1::View::Shard shard;
    *shard.mutable_process() = id;
    shard.set_address(address);
    return shard;
  }
  bool suspect() const { return stream == 0; }
};

// A process that is no longer alive.
struct Departure {
  Process process;
  bool expelled = false;  // false: it left
  std::string reason;
};

class Membership {
 public:
  struct Options {
    std::string job;
    WireVersions wire_versions = SpokenWireVersions();
    absl::Duration suspect;
    absl::Duration heartbeat_timeout;
    bool refuse_expelled = true;  // R7
    // Processes of each role that the job wants; see SetWanted.
    uint64_t workers = 0;
    uint64_t shards = 0;
    absl::Duration heartbeat;
    bool suspect_itself = true;  // no process is expelled while none is heard
  };

  // At most this many expelled incarnations are remembered for each role and index. Beyond it no
  // process of that role and index is admitted, so that R7 holds; other processes are not affected.
  // A new coordinator begins with none.
  static constexpr size_t kMaxExpelledOfPlace = size_t{1} << 14;
  // Streams on which no process has registered yet.
  static constexpr size_t kMaxRegistering = 4096;

  explicit Membership(Options options)
      : options_(std::move(options)),
        link_(options_.heartbeat, options_.heartbeat_timeout),
        shard_link_(options_.heartbeat, options_.heartbeat_timeout) {}

  // A process with a higher index is not admitted until these grow; a live process stays, and so
  // does a shard that has a view: it may have partitions.
  void SetWanted(uint64_t workers, uint64_t shards);

  // A stream on which no process has registered yet. False: there are kMaxRegistering of them.
  bool Connected(StreamId stream, absl::Time now);

  struct Admission {
    enum class Kind {
      kNew,
      kReturned,  // the same incarnation on a new stream
      kRefused,
      kLater,  // not now: it may register again with the same incarnation
    };
    Kind kind = Kind::kRefused;
    v1::Refusal refusal;                 // kRefused
    std::string why;                     // kLater
    StreamId closed_stream = 0;          // kReturned: the old stream, if it was still open
    std::optional<Departure> displaced;  // a suspect of the same role and index, now expelled
  };
  Admission Register(StreamId stream, const v1::Register& request, absl::Time now);

  // The process that is registered on the stream, or null.
  Process* OnStream(StreamId stream);
  const Process* OnStream(StreamId stream) const;
  // Null if the process is not alive.
  Process* Find(uint64_t incarnation);
  const Process* Find(uint64_t incarnation) const;

  // A message on a stream, whether or not a process has registered on it.
  void OnMessage(StreamId stream, absl::Time now);
  // The parent has called.
  void OnCall(absl::Time now);
  // When a process that owes a message at `limit` may be expelled; InfiniteFuture: not before the
  // next event, because this coordinator may be cut off. A shard that owes a message or an answer
  // is judged by the second one: where the job wants several shards, one of them must be heard.
  absl::Time JudgedAt(absl::Time limit) const;
  absl::Time JudgedShardAt(absl::Time limit) const;
  // Until now this coordinator may have been cut off for so long: from all processes, and from all
  // shards. The time counts against none of them. It is returned once.
  struct Quiet {
    absl::Duration all;
    absl::Duration shards;
  };
  Quiet TakeQuiet() { return std::exchange(quiet_, {}); }
  // The process's registration was answered: from now on it must send heartbeats.
  void Answered(uint64_t incarnation, absl::Time now);
  // The process becomes suspect. Null if no process is registered on the stream, or it has a newer
  // one.
  Process* Disconnected(StreamId stream, absl::Time now);
  // The process has left voluntarily.
  std::optional<Departure> Leave(uint64_t incarnation);
  std::optional<Departure> Expel(uint64_t incarnation, std::string reason);
  // A death that the parent process reports: expels the process if it is alive. An incarnation that
  // the report names is refused from now on, even if it never registered.
  std::optional<Departure> ReportDeath(const v1::SetDesiredRequest::Death& death);
  // Expels suspects and silent processes that are overdue.
  std::vector<Departure> ExpelOverdue(absl::Time now);
  // Returns the streams on which no process registered in time, and forgets them.
  std::vector<StreamId> TakeOverdueStreams(absl::Time now);
  // The time for which the coordinator itself was frozen does not count against any process.
  void ExtendDeadlines(absl::Duration late);

  bool IsExpelled(uint64_t incarnation) const { return expelled_.contains(incarnation); }
  // Ordered by role, index, incarnation.
  std::vector<const Process*> Living(v1::Role role) const;
  std::vector<const Process*> LivingAndConnected(v1::Role role) const;
  size_t expelled() const { return expelled_.size(); }
  size_t registering() const { return registering_.size(); }
  // Newest last; bounded.
  const std::deque<Departure>& departures() const { return departures_; }

  // Grows with each process that is admitted or removed.
  uint64_t changes() const { return changes_; }

  absl::Time NextDeadline() const;

 private:
  static constexpr size_t kMaxDepartures = 64;

  // When the process becomes overdue; InfiniteFuture: never, in its current state.
  absl::Time Overdue(const Process& process) const;
  void HearShard(absl::Time now);
  void ExtendDeadlinesOfQuiet(absl::Duration quiet, bool only_shards, absl::Time now);
  void OnStreamsChanged();
  Departure Remove(uint64_t incarnation, bool expelled, std::string reason);
  void RememberExpelled(const v1::ProcessId& id);
  std::optional<v1::Refusal> Check(const v1::Register& request) const;
  // Why a new process cannot be admitted now; empty: it can.
  std::string CheckRoom(const v1::Register& request) const;
  void CheckInvariants() const;

  Options options_;
  OwnLink link_;        // to all processes
  OwnLink shard_link_;  // to the shards
  Quiet quiet_;
  absl::flat_hash_map<uint64_t, Process> living_;          // by incarnation
  absl::flat_hash_map<StreamId, uint64_t> by_stream_;      // -> incarnation
  absl::flat_hash_map<StreamId, absl::Time> registering_;  // -> since when
  absl::flat_hash_set<uint64_t> expelled_;
  std::map<std::pair<v1::Role, uint32_t>, size_t> expelled_of_place_;
  std::deque<Departure> departures_;
  uint64_t changes_ = 0;
};

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_CORE_FACTS_MEMBERSHIP_H_
