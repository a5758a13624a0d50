#ifndef SLUICE_SERVICES_TRANSPORT_FRAMES_SHARED_MEMORY_H_
#define SLUICE_SERVICES_TRANSPORT_FRAMES_SHARED_MEMORY_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "proto/frame.pb.h"
#include "services/common/threads/mutex.h"
#include "services/transport/frames/frame_wire.h"

namespace sluice {

// Memory that the two processes of a stream on one machine share: the sender puts a payload there
// once, the receiver reads it in place, and only its place goes through the socket.
// The reasons are in docs/decisions/shared-memory.md.
//
// Intuition. Two halves, one for each direction. A half is a ring of granules: its sender takes the
// next free ones for a payload, and reclaims them, in order, when the receiver has cleared the flag
// that the sender set. Neither side ever waits here: without room a payload goes through the
// socket.
//
// The file is anonymous (memfd) and sealed against resizing, so a peer may exit but cannot take the
// memory away. A peer may change what it wrote at any time: before a receiver parses anything other
// than an array of numbers, it copies it.
//
//   byte 0          token
//   kGranule        flags of the first half, a 32-bit word for each granule, then of the second
//   then            the first half (client to server), the second (server to client)
class SharedMemory final : public SharedPayloads,
                           public std::enable_shared_from_this<SharedMemory> {
 public:
  static constexpr size_t kGranule = 4096;
  // The largest offer: a client that never returns granules holds this much of the server's memory.
  // Sluice's own clients offer half of it.
  static constexpr size_t kMaxHalfBytes = size_t{64} << 20;

  // The client's end. `half_bytes` for each direction, rounded up to granules; pages that are never
  // used cost nothing. RESOURCE_EXHAUSTED: a bad size. UNAVAILABLE: the system provides no such
  // memory.
  static absl::StatusOr<std::shared_ptr<SharedMemory>> Create(size_t half_bytes);

  // The server's end of the memory that a client on this machine offers. FAILED_PRECONDITION: it
  // cannot be opened (it belongs to another machine, user or container), or differs from the offer.
  static absl::StatusOr<std::shared_ptr<SharedMemory>> Open(const v1::SharedMemory& offer);

  ~SharedMemory() override;
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  // Valid until CloseDescriptor().
  v1::SharedMemory Offer() const;

  // Call this once the peer has opened the file or declined: nothing needs it any more.
  void CloseDescriptor();

  // Copies the payload into this end's half. Null: there is no room now. Any thread.
  std::optional<v1::SharedPayload> Put(const absl::Cord& payload);

  // The payload that the peer put at `place`; dropping the last reference frees its room.
  // INVALID_ARGUMENT: not a place in the peer's half. Any thread.
  absl::StatusOr<absl::Cord> Take(const v1::SharedPayload& place) override;

 private:
  // A payload's granules in this end's half.
  struct Piece {
    size_t first = 0;
    size_t count = 0;
  };
  using Flag = std::atomic<uint32_t>;
  static_assert(Flag::is_always_lock_free, "two processes share them");

  SharedMemory(char* base, size_t half_bytes, int descriptor, bool client);

  // Sizes in the file: of the flags of one half, and of everything.
  static size_t FlagBytes(size_t half_bytes);
  static size_t FileBytes(size_t half_bytes);

  // Flags and bytes of this end's half, or of the peer's.
  Flag* Flags(bool mine) const;
  char* Half(bool mine) const;

  // Frees the oldest pieces whose flags the receiver has cleared.
  void Reclaim() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Room for `count` granules in a row; nullopt: there is none now.
  std::optional<size_t> Allocate(size_t count) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  char* const base_;
  const size_t half_bytes_;
  const bool client_;

  mutable Mutex mutex_;  // protects what follows; leaf
  int descriptor_ ABSL_GUARDED_BY(mutex_);
  std::deque<Piece> sent_ ABSL_GUARDED_BY(mutex_);  // in the order of the ring
  size_t next_ ABSL_GUARDED_BY(mutex_) = 0;         // granule where the next piece goes, if it fits
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_TRANSPORT_FRAMES_SHARED_MEMORY_H_
