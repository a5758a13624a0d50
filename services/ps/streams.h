#ifndef SLUICE_SERVICES_PS_STREAMS_H_
#define SLUICE_SERVICES_PS_STREAMS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "proto/frame.pb.h"
#include "services/ps/shard_state.h"

namespace sluice::ps {

// What a handler did with a frame.
enum class Handled {
  kDone,
  kWait,  // not yet: it stays at the head of its stream, and all behind it with it
};

// An accepted stream of a peer that has said Hello.
struct Stream {
  StreamId id = 0;
  bool greeted = false;
  v1::ProcessId peer;
  size_t parked_pulls = 0;
  v1::ViewId refused_with;  // newest view that a refusal on this stream has told; unset: none

  uint64_t incarnation() const { return peer.incarnation(); }
};

// The accepted streams: who is behind which, frames in order, and credit.
//
// Invariants: a frame is handled only when all before it in its stream were; an incarnation has at
// most one stream, the newest (R9); the bytes that a peer has under way or waiting never exceed its
// window, or the stream is closed; credit for a payload is given back once it was handled.
class StreamTable {
 public:
  // An error ends the stream with it.
  using Handler = absl::FunctionRef<absl::StatusOr<Handled>(Stream&, const v1::Header&,
                                                            const absl::Cord& payload)>;

  explicit StreamTable(ShardState* state) : state_(*state) {}

  void Open(StreamId id);
  // Null if it is unknown or was closed.
  Stream* Find(StreamId id);
  // The newest stream of an incarnation; null if there is none.
  Stream* FindPeer(uint64_t incarnation);
  // Of all streams that said Hello, ascending.
  std::vector<StreamId> Ids() const;

  // Takes a frame in its stream's order. Hello is dealt with here, all else by the handler.
  void Receive(StreamId id, const v1::Header& header, const absl::Cord& payload, Handler handler);
  // Lets streams go on whose frames waited.
  void Resume(Handler handler);

  // By us.
  void Close(StreamId id, absl::Status status);
  // By the peer or the network.
  void Forget(StreamId id) { Erase(id); }

  // Tells the peer that its message is not of the newest view; once per stream and view.
  void Refuse(Stream& stream, const std::string& reason);
  // The same whatever was told before.
  void RefuseAlways(Stream& stream, const std::string& reason, uint64_t cut = 0);

  size_t size() const { return streams_.size(); }
  size_t waiting_frames() const { return waiting_frames_; }
  uint64_t waiting_bytes() const { return waiting_bytes_; }
  size_t parked_pulls() const;

 private:
  struct Waiting {
    v1::Header header;
    absl::Cord payload;
  };
  struct Entry {
    Stream stream;
    std::deque<Waiting> waiting;
    uint64_t unreturned = 0;  // received and not given back as credit
    uint64_t due = 0;         // handled and not given back
  };

  absl::Status Greet(Entry& entry, const v1::Hello& hello);
  absl::Status Admit(Entry& entry, const v1::Header& header, const absl::Cord& payload);
  void GiveBack(Entry& entry, uint64_t bytes);
  void Erase(StreamId id);

  ShardState& state_;
  std::map<StreamId, Entry> streams_;
  absl::flat_hash_map<uint64_t, StreamId> newest_;  // incarnation -> stream
  size_t waiting_frames_ = 0;
  uint64_t waiting_bytes_ = 0;
};

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_STREAMS_H_
