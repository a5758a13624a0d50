#ifndef SLUICE_SERVICES_TRANSPORT_SHARED_MEMORY_H_
#define SLUICE_SERVICES_TRANSPORT_SHARED_MEMORY_H_

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
#include "services/common/mutex.h"
#include "services/protocol/frame_wire.h"

namespace sluice {

// Memory of one stream between two processes of a machine: payloads are put there once and read
// where they lie, and only their place travels. Sockets copy them twice and wake up the kernel's
// network for each 64 KiB.
//
// Intuition. Two halves, one for each direction. A half is a ring of granules: its sender takes the
// next free ones for a payload, and has them back, in order, when the receiver has cleared the flag
// that the sender set. Nobody ever waits here: without room a payload goes through the socket.
//
// The file is anonymous (memfd) and can be made neither shorter nor longer, so a peer can end, but
// not take the memory away. What a peer writes there it may change at any time: a receiver copies
// whatever is more than an array of numbers before it looks at it.
//
//   byte 0          token
//   kGranule        flags of the first half, a 32-bit word for each granule, then of the second
//   then            the first half (client to server), the second (server to client)
class SharedMemory final : public SharedPayloads,
                           public std::enable_shared_from_this<SharedMemory> {
 public:
  static constexpr size_t kGranule = 4096;
  // No offer is larger: what a server writes to a client that gives nothing back is memory of the
  // server's. Sluice's own clients offer half of this.
  static constexpr size_t kMaxHalfBytes = size_t{64} << 20;

  // The client's end. `half_bytes` for each direction, rounded up to granules; pages that are never
  // used cost nothing. RESOURCE_EXHAUSTED, UNAVAILABLE: the system gives none.
  static absl::StatusOr<std::shared_ptr<SharedMemory>> Create(size_t half_bytes);

  // The server's end of what a client of this machine offers. FAILED_PRECONDITION: it cannot be
  // opened (another machine's, user's or container's), or is not what was offered.
  static absl::StatusOr<std::shared_ptr<SharedMemory>> Open(const v1::SharedMemory& offer);

  ~SharedMemory() override;
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  // Holds as long as this is not CloseDescriptor()ed.
  v1::SharedMemory Offer() const;

  // The peer has opened it, or will not: nothing needs the file any more.
  void CloseDescriptor();

  // Copies the payload to where the peer reads it. Nothing: there is no room now. Any thread.
  std::optional<v1::SharedPayload> Put(const absl::Cord& payload);

  // What the peer has put there; its room is given back with the last reference. INVALID_ARGUMENT:
  // that is no place of the peer's half. Any thread.
  absl::StatusOr<absl::Cord> Take(const v1::SharedPayload& place) override;

  // Granules that payloads have now: of what this end has sent.
  size_t used_granules();

 private:
  struct Piece {
    size_t first = 0;
    size_t count = 0;
  };
  using Flag = std::atomic<uint32_t>;
  static_assert(Flag::is_always_lock_free, "two processes share them");

  SharedMemory(char* base, size_t half_bytes, int descriptor, bool client);

  static size_t FlagBytes(size_t half_bytes);
  static size_t FileBytes(size_t half_bytes);

  Flag* Flags(bool mine) const;
  char* Half(bool mine) const;

  void Reclaim() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
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

#endif  // SLUICE_SERVICES_TRANSPORT_SHARED_MEMORY_H_
