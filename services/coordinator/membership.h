// Which processes live. Processes register on a control stream, send messages, lose their stream,
// return, leave, and die. An incarnation that was expelled is never admitted again (R7).
//
// Intuition: three ways to learn of a death. The process manager tells it (at once); the stream
// breaks and does not come back (suspect, 1 s); the stream is there but silent (a frozen process,
// 5 s). Membership knows which processes live; the view knows which of them are members.

#ifndef SLUICE_SERVICES_COORDINATOR_MEMBERSHIP_H_
#define SLUICE_SERVICES_COORDINATOR_MEMBERSHIP_H_

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
#include "services/coordinator/actions.h"
#include "services/protocol/wire_version.h"

namespace sluice::coordinator {

// One that lives: it has a stream, or lost it less than `suspect` ago.
struct Process {
  v1::ProcessId id;
  std::string address;
  std::string host;
  std::string metrics_address;
  uint64_t pid = 0;
  StreamId stream = 0;  // 0: suspect
  absl::Time heard;
  absl::Time broken = absl::InfiniteFuture();  // since when it has no stream
  absl::Time ready_since = absl::InfiniteFuture();
  bool ready = false;       // workers: model and data are open
  bool leaving = false;     // has said Leave
  bool was_member = false;  // workers: of a view of this coordinator
  absl::Time reported;      // workers: when it last reported progress, or began to live
  int breaches = 0;         // of the protocol
  // Its registration. Before that it waits, and says nothing.
  bool answered = false;

  uint64_t incarnation() const { return id.incarnation(); }
  bool suspect() const { return stream == 0; }
};

// One that does not live any more.
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
    absl::Duration silence;
    bool refuse_expelled = true;  // R7
    // Processes of each role that the job wants; see SetWanted.
    uint64_t workers = 0;
    uint64_t shards = 0;
  };

  // Incarnations of one role and index that are remembered as expelled. Beyond it, no process of
  // that role and index is admitted any more, so that R7 holds; the others are not affected. A new
  // coordinator begins with none.
  static constexpr size_t kMaxExpelledOfPlace = size_t{1} << 14;
  // Streams on which no process has registered yet.
  static constexpr size_t kMaxRegistering = 4096;

  explicit Membership(Options options) : options_(std::move(options)) {}

  // A process with an index beyond these is not admitted until they grow; one that lives stays.
  void SetWanted(uint64_t workers, uint64_t shards);

  // A stream on which no process has registered yet. False: there are kMaxRegistering of them.
  bool Connected(StreamId stream, absl::Time now);

  struct Admission {
    enum class Kind {
      kNew,
      kReturned,  // the same life on a new stream
      kRefused,
      kLater,  // not now: it may register again, under the same incarnation
    };
    Kind kind = Kind::kRefused;
    v1::Refusal refusal;                 // kRefused
    std::string why;                     // kLater
    StreamId closed_stream = 0;          // kReturned: the old stream, if it was still there
    std::optional<Departure> displaced;  // a suspect of the same role and index, now expelled
  };
  Admission Register(StreamId stream, const v1::Register& request, absl::Time now);

  // Of the process that is registered on the stream; null if there is none.
  Process* OnStream(StreamId stream);
  const Process* OnStream(StreamId stream) const;
  // Null if it does not live.
  Process* Find(uint64_t incarnation);
  const Process* Find(uint64_t incarnation) const;

  void Heard(StreamId stream, absl::Time now);
  // Its registration was answered: from now on it must be heard.
  void Answered(uint64_t incarnation, absl::Time now);
  // The process becomes suspect. Null if no process (or a newer one) is on the stream.
  Process* Disconnected(StreamId stream, absl::Time now);
  // It has left by itself.
  std::optional<Departure> Leave(uint64_t incarnation);
  std::optional<Departure> Expel(uint64_t incarnation, std::string reason);
  // A death that the parent saw; without effect if the process does not live. Its incarnation is
  // refused from now on even if it never came.
  std::optional<Departure> ReportDeath(const v1::SetDesiredRequest::Death& death);
  // Expels suspects and silent processes whose time is over.
  std::vector<Departure> ExpelOverdue(absl::Time now);
  // Streams on which no process registered in time; they are forgotten.
  std::vector<StreamId> TakeOverdueStreams(absl::Time now);
  // Time in which the coordinator itself was frozen counts against no process.
  void Forgive(absl::Duration late);

  bool IsExpelled(uint64_t incarnation) const { return expelled_.contains(incarnation); }
  // Ordered by role, index, incarnation.
  std::vector<const Process*> Living(v1::Role role) const;
  std::vector<const Process*> LivingAndConnected(v1::Role role) const;
  size_t expelled() const { return expelled_.size(); }
  size_t registering() const { return registering_.size(); }
  // Newest last; bounded.
  const std::deque<Departure>& departures() const { return departures_; }

  // Grows with each process that begins to live, or lives no longer.
  uint64_t changes() const { return changes_; }

  absl::Time NextDeadline() const;

 private:
  static constexpr size_t kMaxDepartures = 64;

  // When the process is overdue; InfiniteFuture: never, as things are.
  absl::Time Overdue(const Process& process) const;
  Departure Remove(uint64_t incarnation, bool expelled, std::string reason);
  void RememberExpelled(const v1::ProcessId& id);
  std::optional<v1::Refusal> Check(const v1::Register& request) const;
  // Why a new process is not admitted now; empty: it is.
  std::string CheckRoom(const v1::ProcessId& id) const;

  Options options_;
  absl::flat_hash_map<uint64_t, Process> living_;          // by incarnation
  absl::flat_hash_map<StreamId, uint64_t> by_stream_;      // -> incarnation
  absl::flat_hash_map<StreamId, absl::Time> registering_;  // -> since when
  absl::flat_hash_set<uint64_t> expelled_;
  std::map<std::pair<v1::Role, uint32_t>, size_t> expelled_of_place_;
  std::deque<Departure> departures_;
  uint64_t changes_ = 0;
};

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_MEMBERSHIP_H_
