// How the time from a step's last gradient to the next version is spent.
#ifndef SLUICE_SERVICES_WORKER_CORE_STEP_TIMES_H_
#define SLUICE_SERVICES_WORKER_CORE_STEP_TIMES_H_

#include "absl/time/time.h"
#include "proto/control.pb.h"

namespace sluice::worker {

// The times of one step, or of one asynchronous update and the pull after it:
//
//   last gradient --push--> everything is sent --wait--> first data --pull--> all data
//
// "Sent" is when the shell reports it (WorkerCore::OnSent); without a report, when no payload
// waited for a shard's credit any more. A mark that is earlier than the mark before it takes no
// time of its own, so the parts never overlap and nothing is counted twice. docs/metrics.md
// describes them.
class StepTimes {
 public:
  // A step begins, or begins again: in a new view, time is counted from there.
  void Begin() { *this = StepTimes(); }

  void OnComputed(absl::Time now) { computed_ = now; }
  // All of the contribution was given to the streams, and no payload waits for credit.
  void OnGiven(absl::Time now) { given_ = now; }
  bool given() const { return given_ != absl::InfiniteFuture(); }
  // The contribution is answered: what is sent from now on does not belong to it. `sent`: when the
  // send queue was last empty.
  void OnAnswered(absl::Time now, absl::Time sent);
  // Some data of the next version arrived, which also answers the contribution.
  void OnData(absl::Time now, absl::Time sent);
  // All data of the next version arrived.
  void OnWhole(absl::Time now) { whole_ = now; }

  // Adds push, wait and pull; adds nothing if no gradient was computed.
  void AddTo(v1::WorkerProgress* progress) const;

 private:
  // InfiniteFuture: not yet.
  absl::Time computed_ = absl::InfiniteFuture();
  absl::Time given_ = absl::InfiniteFuture();
  absl::Time pushed_ = absl::InfiniteFuture();
  absl::Time data_ = absl::InfiniteFuture();
  absl::Time whole_ = absl::InfiniteFuture();
};

}  // namespace sluice::worker

#endif  // SLUICE_SERVICES_WORKER_CORE_STEP_TIMES_H_
