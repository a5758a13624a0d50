#ifndef SLUICE_SERVICES_PS_CORE_BASE_OUTBOX_H_
#define SLUICE_SERVICES_PS_CORE_BASE_OUTBOX_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"
#include "proto/control.pb.h"
#include "proto/frame.pb.h"
#include "services/common/check.h"
#include "services/protocol/member_exit.h"
#include "services/ps/core/base/action.h"
#include "services/ps/core/base/bounds.h"

namespace sluice::ps {

// The output of the shard's core: actions for the shell, and counts of events since the start.
// Every part adds to it; only the core takes the actions.
class Outbox {
 public:
  // Totals since the start of the process; they only grow. The shell exports them as metrics.
  struct Counts {
    uint64_t repeated_blocks = 0;             // ignored (R9)
    uint64_t steps_skipped = 0;               // asynchronous: updates
    uint64_t dropped_contributions = 0;       // owner of partition 0: missing from committed steps
    uint64_t copied_bytes = 0;                // received as copies
    std::array<uint64_t, kBounds> reached{};  // how often, of each bound
  };

  // ---- actions

  // Appends one action; the shell performs it after the event.
  void Add(ShardAction action) { actions_.push_back(std::move(action)); }
  void Send(StreamId stream, v1::Header header, absl::Cord payload = absl::Cord()) {
    Add(SendFrame{stream, std::move(header), std::move(payload)});
  }
  // Sends a message to the coordinator; it is lost if there is no connection.
  void Report(v1::MemberMessage message) { Add(SendToCoordinator{std::move(message)}); }
  // Exit is the last action: no event has an effect any more.
  void ExitNow(Exit exit) {
    exited_ = true;
    Add(std::move(exit));
  }
  // Whether Exit was added; nothing is added after it.
  bool exited() const { return exited_; }
  // A number for a ReadCopy, which no other one has had.
  uint64_t NewTransfer() { return ++transfers_; }

  // The actions since the last call, in order.
  std::vector<ShardAction> TakeActions() {
    SLUICE_DCHECK(!exited_ || actions_.empty() || std::holds_alternative<Exit>(actions_.back()),
                  "Exit is the last action");
    return std::exchange(actions_, {});
  }

  // ---- counts

  void CountRepeatedBlocks(uint64_t blocks) { counts_.repeated_blocks += blocks; }
  void CountSkippedStep() { ++counts_.steps_skipped; }
  void CountDroppedContributions(uint64_t count) { counts_.dropped_contributions += count; }
  void CountCopiedBytes(uint64_t bytes) { counts_.copied_bytes += bytes; }
  // Counts a refusal or a wait that a bound has caused.
  void Reached(Bound bound) { ++counts_.reached[static_cast<size_t>(bound)]; }
  // Counts a refusal because of a bound and returns its error.
  absl::Status Full(Bound bound, absl::string_view what) {
    Reached(bound);
    return Exceeded(bound, what);
  }
  const Counts& counts() const { return counts_; }

 private:
  std::vector<ShardAction> actions_;
  bool exited_ = false;
  uint64_t transfers_ = 0;
  Counts counts_;
};

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_CORE_BASE_OUTBOX_H_
