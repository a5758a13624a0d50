#ifndef SLUICE_SERVICES_PS_CORE_SESSION_STREAMS_H_
#define SLUICE_SERVICES_PS_CORE_SESSION_STREAMS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "absl/time/time.h"
#include "google/protobuf/repeated_ptr_field.h"
#include "proto/common.pb.h"
#include "proto/control.pb.h"
#include "proto/frame.pb.h"
#include "services/ps/core/base/bounds.h"
#include "services/ps/core/base/outbox.h"
#include "services/ps/core/state/shard_state.h"

namespace sluice::ps {

// The result of handling a frame in its turn.
enum class Handled {
  kDone,
  kWait,  // not yet: it stays at the head of its stream and blocks the frames behind it
};

// An accepted stream.
struct Stream {
  StreamId id = 0;
  bool greeted = false;  // the peer's Hello has been answered
  v1::ProcessId peer;
  // Pulls that wait, and the memory of those pulls and of the rows they name: charged where they
  // are kept. They outlive the stream.
  std::shared_ptr<uint64_t> parked_pulls = std::make_shared<uint64_t>(0);
  std::shared_ptr<uint64_t> parked_bytes = std::make_shared<uint64_t>(0);
  v1::ViewId refused_with;  // newest view sent with a refusal on this stream; unset: none

  uint64_t incarnation() const { return peer.incarnation(); }
};

// The next frame of a stream. Valid until OnHandled.
struct ReadyFrame {
  StreamId id = 0;
  Stream& stream;
  const v1::Header& header;
  const absl::Cord& payload;
  bool waited = false;  // it is the first of its stream's waiting frames
};

// The accepted streams: the process behind each, the order of frames, and credit.
//
//   opened ──Hello──> [not admitted: waits] ──HelloReply──> greeted
//     └── hello_timeout ──> closed  └── admission_timeout ──> closed
//
// A worker or reader is greeted if the coordinator's newest Admitted names exactly its role, index
// and incarnation, a shard if the view (or, before the first, the PrepareState) does. Greeted
// streams stay open when a list changes.
//
// The table does not call the core. Receive and Next return each stream's next frame, and the core
// reports with OnHandled how it has handled it.
//
// Invariants: a frame is ready only after all frames before it in its stream are handled; a process
// (role and incarnation) has at most one stream, the newest (R9); a stream is closed when its bytes
// in flight or waiting exceed its window, or its waiting frames exceed another bound of
// ShardOptions; credit for a payload is given back once the payload is handled.
class StreamTable {
 public:
  // Both must outlive it.
  StreamTable(const ShardState* state, Outbox* out) : state_(*state), out_(*out) {}

  // The shell has accepted a stream. At a bound, the oldest silent stream is closed to make room;
  // without one, the new stream is.
  void Open(StreamId id);
  // Replaces the list of the workers and readers that may open a stream. Greets the streams that it
  // admits; their waiting frames may be ready then (Next).
  void SetAdmitted(const v1::Admitted& admitted);
  // Like SetAdmitted, for shards: their list may have changed. `prepared` is used while there is no
  // view.
  void SetShards(const google::protobuf::RepeatedPtrField<v1::View::Shard>& prepared);
  // Null if the stream is unknown or was closed.
  Stream* Find(StreamId id);
  // The newest stream of a process; null if there is none.
  Stream* Find(v1::Role role, uint64_t incarnation);
  // Ids of all greeted streams, ascending.
  std::vector<StreamId> Ids() const;

  // A frame arrives. Returns it if it is ready; a Hello is answered here, and a frame that comes
  // too early waits.
  std::optional<ReadyFrame> Receive(StreamId id, const v1::Header& header,
                                    const absl::Cord& payload);
  // The first waiting frame of the stream, if the stream has one and is greeted.
  std::optional<ReadyFrame> Next(StreamId id);
  // Takes the result of a ready frame. An error ends the stream with that status. True: the frame
  // is handled and its stream is still open, so the next frame may be ready.
  bool OnHandled(const ReadyFrame& frame, const absl::StatusOr<Handled>& handled);

  // Closed by this shard.
  void Close(StreamId id, absl::Status status);
  // Closed by the peer or the network.
  void Forget(StreamId id) { Erase(id); }
  // Closes streams whose time to say Hello, or to be admitted, is over.
  void Expire();
  // The next time at which Expire has something to do.
  absl::Time NextExpiry() const;

  // Informs the peer that its message is not of the newest view; once per stream and view.
  void Refuse(Stream& stream, const std::string& reason);
  // The same, also if the peer was informed before.
  void RefuseAlways(Stream& stream, const std::string& reason, uint64_t snapshot = 0);
  // Refuses the pulls that waited on these streams, as far as the streams are still open.
  void RefuseParked(const std::vector<StreamId>& streams, const std::string& reason);

  // ---- for metrics
  size_t size() const { return streams_.size(); }
  size_t waiting_frames() const { return waiting_frames_; }
  uint64_t waiting_bytes() const { return waiting_bytes_; }
  size_t parked_pulls() const;
  // Fills in the use of the bounds and their limits.
  void FillBounds(BoundUses* uses) const;

 private:
  using Deadlines = std::set<std::pair<absl::Time, StreamId>>;
  using PeerKey = std::pair<v1::Role, uint64_t>;  // role, incarnation

  struct Waiting {
    v1::Header header;
    absl::Cord payload;
    uint64_t header_bytes = 0;  // in memory
    uint64_t shared_bytes = 0;  // counted against max_waiting_bytes
  };
  struct Entry {
    Stream stream;
    bool said_hello = false;
    uint32_t wire_version = 0;  // of its HelloReply
    absl::Time deadline;        // for its Hello, then for its admission
    std::deque<Waiting> waiting;
    uint64_t waiting_header_bytes = 0;
    uint64_t unreturned = 0;  // received and not yet given back as credit
    uint64_t due = 0;         // handled and not yet given back
  };

  // Checks the Hello; greets the peer if it is admitted, otherwise lets it wait until
  // admission_timeout.
  absl::Status OnHello(Entry& entry, const v1::Hello& hello, const absl::Cord& payload);
  // Whether the process may open a stream now. PERMISSION_DENIED if it never may.
  absl::StatusOr<bool> Admits(const v1::ProcessId& process) const;
  // Answers the Hello and closes an older stream of the same process (R9). RESOURCE_EXHAUSTED: too
  // many readers.
  absl::Status Greet(Entry& entry);
  // Greets each waiting stream whose process is admitted by now.
  void GreetAdmitted();
  // Checks every frame before it is handled or waits: window, Hello first, kind of sender. Handles
  // a Hello.
  absl::Status Accept(Entry& entry, const v1::Header& header, const absl::Cord& payload);
  // Appends a frame to the stream's waiting frames. RESOURCE_EXHAUSTED with the bound that is
  // reached.
  absl::Status Keep(Entry& entry, const v1::Header& header, const absl::Cord& payload);
  // Removes the first waiting frame and its counts.
  void DropFirst(Entry& entry);
  // Returns credit to the peer once at least an eighth of the window is due.
  void GiveBack(Entry& entry, uint64_t bytes);
  // Removes the stream from all lists.
  void Erase(StreamId id);

  const ShardState& state_;
  Outbox& out_;
  std::map<StreamId, Entry> streams_;
  absl::flat_hash_map<PeerKey, StreamId> newest_;    // greeted
  absl::flat_hash_map<PeerKey, uint32_t> admitted_;  // workers and readers -> index
  std::vector<v1::ProcessId> prepared_shards_;
  Deadlines silent_;      // streams without a Hello
  Deadlines unadmitted_;  // streams whose Hello waits
  size_t readers_ = 0;    // greeted
  size_t waiting_frames_ = 0;
  uint64_t waiting_bytes_ = 0;         // payload
  uint64_t shared_waiting_bytes_ = 0;  // against max_waiting_bytes
};

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_CORE_SESSION_STREAMS_H_
