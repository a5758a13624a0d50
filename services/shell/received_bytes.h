// Bounds the memory of what the peers have sent and the core has not seen yet, for each stream, so
// that no process uses up the room of the others.

#ifndef SLUICE_SERVICES_SHELL_RECEIVED_BYTES_H_
#define SLUICE_SERVICES_SHELL_RECEIVED_BYTES_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "services/common/threads/mutex.h"

namespace sluice {

// Thread-safe.
class ReceivedBytes {
 public:
  // Bytes that count until they are released, or until this is destroyed. Valid without the
  // ReceivedBytes too.
  class Receipt {
   public:
    Receipt() = default;
    Receipt(Receipt&&) = default;
    Receipt& operator=(Receipt&&) = delete;
    ~Receipt() { Release(); }

    // False: the bytes were not accepted.
    explicit operator bool() const { return stream_ != nullptr; }
    void Release() {
      if (stream_ != nullptr) stream_->fetch_sub(bytes_, std::memory_order_relaxed);
      stream_.reset();
    }

   private:
    friend class ReceivedBytes;
    Receipt(std::shared_ptr<std::atomic<uint64_t>> stream, uint64_t bytes)
        : stream_(std::move(stream)), bytes_(bytes) {}

    std::shared_ptr<std::atomic<uint64_t>> stream_;
    uint64_t bytes_ = 0;
  };

  // `on_exceeded` is called, without a lock, at the first Add of a stream that exceeds the limit;
  // `bytes` is what the stream's messages would take. It must close the stream.
  ReceivedBytes(uint64_t limit, std::function<void(uint64_t stream, uint64_t bytes)> on_exceeded)
      : limit_(limit), on_exceeded_(std::move(on_exceeded)) {}

  // ---- a stream has begun or ended. Bytes that still wait keep counting until they are released.
  void Open(uint64_t stream);
  void Close(uint64_t stream);

  // Counts the bytes of one message. The message is accepted if the stream is open and has room, or
  // nothing else waits: a message alone is bounded by the transport. No Add of a stream that has
  // exceeded the limit is accepted.
  Receipt Add(uint64_t stream, uint64_t bytes);

  uint64_t limit() const { return limit_; }
  // The bytes of the stream that has most.
  uint64_t Largest() const;
  // How many streams have exceeded the limit.
  uint64_t exceeded() const { return exceeded_.load(std::memory_order_relaxed); }

 private:
  const uint64_t limit_;
  const std::function<void(uint64_t, uint64_t)> on_exceeded_;
  std::atomic<uint64_t> exceeded_{0};
  mutable Mutex mutex_;  // protects the table
  absl::flat_hash_map<uint64_t, std::shared_ptr<std::atomic<uint64_t>>> streams_
      ABSL_GUARDED_BY(mutex_);
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_SHELL_RECEIVED_BYTES_H_
