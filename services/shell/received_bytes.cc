#include "services/shell/received_bytes.h"

#include <algorithm>

namespace sluice {

void ReceivedBytes::Open(uint64_t stream) {
  MutexLock lock(&mutex_);
  streams_[stream] = std::make_shared<std::atomic<uint64_t>>(0);
}

void ReceivedBytes::Close(uint64_t stream) {
  MutexLock lock(&mutex_);
  streams_.erase(stream);
}

ReceivedBytes::Receipt ReceivedBytes::Add(uint64_t stream, uint64_t bytes) {
  std::shared_ptr<std::atomic<uint64_t>> received;
  {
    MutexLock lock(&mutex_);
    const auto found = streams_.find(stream);
    if (found == streams_.end()) return {};
    received = found->second;
  }

  const uint64_t before = received->fetch_add(bytes, std::memory_order_relaxed);
  if (before == 0 || before + bytes <= limit_) return Receipt(std::move(received), bytes);

  Close(stream);
  exceeded_.fetch_add(1, std::memory_order_relaxed);
  on_exceeded_(stream, before + bytes);
  return {};
}

uint64_t ReceivedBytes::Largest() const {
  uint64_t largest = 0;
  MutexLock lock(&mutex_);
  for (const auto& [stream, bytes] : streams_) {
    largest = std::max(largest, bytes->load(std::memory_order_relaxed));
  }
  return largest;
}

}  // namespace sluice
