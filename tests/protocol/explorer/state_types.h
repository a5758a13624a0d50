// Parts of the models' states: bytes, masks and bounded queues.
#ifndef SLUICE_TESTS_PROTOCOL_EXPLORER_STATE_TYPES_H_
#define SLUICE_TESTS_PROTOCOL_EXPLORER_STATE_TYPES_H_

#include <cstdint>

namespace sluice::protocol_models {

// No process, view or version.
inline constexpr uint8_t kNone = 255;

// Masks of up to eight processes, partitions or samples.
inline bool Contains(int mask, int index) { return (mask >> index & 1) != 0; }
inline void Include(uint8_t& mask, int index) { mask = static_cast<uint8_t>(mask | 1 << index); }
inline void Exclude(uint8_t& mask, int index) { mask = static_cast<uint8_t>(mask & ~(1 << index)); }
inline int CountOf(int mask) { return __builtin_popcount(static_cast<unsigned>(mask)); }
inline uint8_t Byte(int value) { return static_cast<uint8_t>(value); }

// Messages in flight from one process to another, in order. The elements behind the last one are
// zero, so that equal queues are equal bytes.
template <typename T, int kCapacity>
struct Queue {
  uint8_t count;
  T items[kCapacity];

  bool Empty() const { return count == 0; }
  bool Full() const { return count >= kCapacity; }
  const T& Front() const { return items[0]; }
  // The queue must not be full.
  void Push(const T& item) { items[count++] = item; }
  // The queue must not be empty.
  T Pop() {
    T front = items[0];
    for (int i = 1; i < count; ++i) items[i - 1] = items[i];
    items[--count] = T{};
    return front;
  }
  void Clear() { *this = Queue{}; }
};

}  // namespace sluice::protocol_models

#endif  // SLUICE_TESTS_PROTOCOL_EXPLORER_STATE_TYPES_H_
