// The readers of the job: each has a call open that pins one version (docs/protocol.md 10).
//
// Intuition. A reader waits until a version is pinned, and then has the version until its time
// ends. Readers never delay the job: they share the snapshot that is open, and lose it when the job
// needs to make another one.

#ifndef SLUICE_SERVICES_COORDINATOR_CORE_SNAPSHOTS_READERS_H_
#define SLUICE_SERVICES_COORDINATOR_CORE_SNAPSHOTS_READERS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/jobcontrol.pb.h"
#include "services/coordinator/core/facts/facts.h"
#include "services/coordinator/core/facts/output.h"
#include "services/coordinator/core/facts/snapshot.h"

namespace sluice::coordinator {

// A reader's open call.
struct ReaderHold {
  uint64_t request = 0;
  v1::ProcessId reader;
  absl::Duration hold;    // how long a pinned version is held
  bool answered = false;  // the reader knows the pinned version
  absl::Time expires;     // not answered: when the request fails; answered: when its time ends
};

class Readers {
 public:
  // All must outlive it.
  Readers(const Facts& facts, const std::optional<Snapshot>& open, Output* output)
      : facts_(facts), snapshot_(open), output_(*output) {}

  // A reader's call; a refusal is its answer. True: the reader waits for a version, and shards must
  // learn of it first.
  bool OnOpen(uint64_t request, const v1::OpenSnapshotRequest& call, absl::Time now);
  // The call has ended by itself.
  void OnCallEnded(uint64_t request);

  // Ends the calls whose time is over; readers that wait join a pinned snapshot.
  void Advance(absl::Time now);
  // Answers the readers of the open snapshot if it is pinned.
  void Answer(absl::Time now);

  bool waiting() const { return !waiting_.empty(); }
  // The open snapshot is needed for readers.
  bool holding() const { return !holds_.empty(); }
  // A snapshot was opened: the readers that wait get it, unless it is of the job's last version.
  void OnOpened();
  // The open snapshot is about to be closed: readers that know its version lose it, and others wait
  // for the next one.
  void OnClose();
  void EndAll(const absl::Status& why);

  void ForEach(absl::FunctionRef<void(const ReaderHold&)> f) const;
  bool Has(uint64_t incarnation) const;
  size_t size() const;
  // Grows with each reader that comes or ends.
  uint64_t changes() const { return changes_; }
  uint64_t refused() const { return refused_; }

  absl::Time NextDeadline() const;

 private:
  absl::Status Check(const v1::OpenSnapshotRequest& call) const;
  void End(const ReaderHold& hold, absl::Status why);
  void EndIf(absl::FunctionRef<bool(const ReaderHold&)> which, const absl::Status& why);

  const Facts& facts_;
  const std::optional<Snapshot>& snapshot_;
  Output& output_;
  std::vector<ReaderHold> waiting_;  // for a snapshot
  std::vector<ReaderHold> holds_;    // of the open snapshot
  uint64_t changes_ = 0;
  uint64_t refused_ = 0;
};

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_CORE_SNAPSHOTS_READERS_H_
