// Where the time from a step's last gradient to the next version goes.
#ifndef SLUICE_SERVICES_WORKER_CORE_STEP_TIMES_H_
#define SLUICE_SERVICES_WORKER_CORE_STEP_TIMES_H_

#include "absl/time/time.h"
#include "proto/control.pb.h"

namespace sluice::worker {

// Of one step, or of one asynchronous update and the pull behind it:
//
//   last gradient --push--> everything has gone out --wait--> first data --pull--> all data
//
// "Gone out" is what the shell says (WorkerCore::OnSent); where it says nothing, when nothing
// waited for a shard's credit any more. What comes in earlier than the mark before it costs no time
// of its own, so the parts never overlap and never count twice. docs/metrics.md tells what they
// mean.
class StepTimes {
 public:
  // A step begins, or begins again: in a new view, time is counted from there.
  void Begin() { *this = StepTimes(); }

  void OnComputed(absl::Time now) { computed_ = now; }
  // All of the contribution was given to the streams and nothing waits for credit.
  void OnGiven(absl::Time now) { given_ = now; }
  bool given() const { return given_ != absl::InfiniteFuture(); }
  // The contribution is answered: what goes out from now on is not of it. `sent`: when there was
  // last nothing left to send.
  void OnAnswered(absl::Time now, absl::Time sent);
  // Some data of the next version came in, and so the contribution is answered.
  void OnData(absl::Time now, absl::Time sent);
  // All of it did.
  void OnWhole(absl::Time now) { whole_ = now; }

  // Adds push, wait and pull; nothing if no gradient was computed.
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
