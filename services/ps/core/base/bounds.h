// Bounds on the memory that peers can make a shard keep.
//
// Each bound is a field of ShardOptions of the same name. An error caused by a bound begins with
// that name, and the shard's metrics report for each bound how much of it is in use and how often
// it was reached.
#ifndef SLUICE_SERVICES_PS_CORE_BASE_BOUNDS_H_
#define SLUICE_SERVICES_PS_CORE_BASE_BOUNDS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "services/common/check.h"

namespace sluice::ps {

// In the order of kBoundNames. ShardOptions describes what each bound limits and what happens when
// it is reached.
enum class Bound {
  kStreams,
  kSilentStreams,
  kUnadmittedStreams,
  kReaderStreams,
  kAdmittedProcesses,
  kWindowBytes,
  kReceivedBytes,
  kWaitingFrames,
  kWaitingHeaderBytes,
  kWaitingBytes,
  kParkedPulls,
  kParkedBytes,
  kSnapshots,
  kCopyQueueBytes,
};

// The number of bounds, for arrays with an element per bound.
inline constexpr size_t kBounds = static_cast<size_t>(Bound::kCopyQueueBytes) + 1;

// The names of the ShardOptions fields, for errors and for the metric's label.
inline constexpr std::array<absl::string_view, kBounds> kBoundNames = {
    "max_streams",        "max_silent_streams",     "max_unadmitted_streams",
    "max_reader_streams", "max_admitted_processes", "window_bytes",
    "max_received_bytes", "max_waiting_frames",     "max_waiting_header_bytes",
    "max_waiting_bytes",  "max_parked_pulls",       "max_parked_bytes",
    "max_snapshots",      "max_copy_queue_bytes"};

constexpr absl::string_view NameOf(Bound bound) { return kBoundNames[static_cast<size_t>(bound)]; }

// RESOURCE_EXHAUSTED, with the bound's name before `what`, which says what is too much.
inline absl::Status Exceeded(Bound bound, absl::string_view what) {
  return absl::ResourceExhaustedError(absl::StrCat(NameOf(bound), ": ", what));
}

// For metrics. For a bound per stream, `used` is the use of the stream that uses most.
struct BoundUse {
  uint64_t limit = 0;
  uint64_t used = 0;
  uint64_t reached = 0;  // how often it caused a refusal, or made a peer wait
};
// Indexed by Bound.
using BoundUses = std::array<BoundUse, kBounds>;

// Bytes that count against a counter as long as this lives. The counter is shared, because a charge
// may outlive its stream. Not thread-safe.
class Charge {
 public:
  Charge() = default;
  Charge(std::shared_ptr<uint64_t> counter, uint64_t bytes)
      : counter_(std::move(counter)), bytes_(bytes) {
    *counter_ += bytes_;
  }
  Charge(Charge&& other) noexcept
      : counter_(std::move(other.counter_)), bytes_(std::exchange(other.bytes_, 0)) {}
  Charge& operator=(Charge&& other) noexcept {
    std::swap(counter_, other.counter_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  Charge(const Charge&) = delete;
  Charge& operator=(const Charge&) = delete;
  ~Charge() {
    if (counter_ == nullptr) return;
    SLUICE_DCHECK(*counter_ >= bytes_, "charged bytes are returned once");
    *counter_ -= bytes_;
  }

 private:
  std::shared_ptr<uint64_t> counter_;
  uint64_t bytes_ = 0;
};

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_CORE_BASE_BOUNDS_H_
