#ifndef SLUICE_SERVICES_PS_CORE_TRAINING_STEP_SUMS_H_
#define SLUICE_SERVICES_PS_CORE_TRAINING_STEP_SUMS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "proto/frame.pb.h"
#include "services/ps/core/base/job_failure.h"
#include "services/ps/core/base/outbox.h"
#include "services/ps/core/session/streams.h"
#include "services/ps/core/state/shard_state.h"

namespace sluice::ps {

// Sums over the members that compute in a step, which their computations wait for (docs/protocol.md
// 7.15). The owner of partition 0 makes them.
//
// Members need the sums of a step one after another: a part of the next sum shows that its sender
// has the sum before. So there are parts of one sum at a time, at most one of each member, and one
// finished sum, for members that ask again.
class StepSums {
 public:
  // All must outlive it.
  StepSums(const ShardState* state, Outbox* out, JobFailure* failure, StreamTable* streams)
      : state_(*state), out_(*out), failure_(*failure), streams_(*streams) {}

  // A view is installed: parts and sums of the view before are dropped.
  void Reset();
  // The caller has checked view, membership and promise. An error ends the stream.
  absl::Status OnPart(const Stream& stream, const v1::StepSum& part, const absl::Cord& payload);

 private:
  using Place = std::pair<uint64_t, uint32_t>;  // step, number
  struct Part {
    std::string name;
    absl::Cord payload;
  };
  struct Sum {
    Place place;
    absl::Cord payload;
  };

  absl::Status Check(size_t member, const v1::StepSum& part, const absl::Cord& payload) const;
  bool Computes(size_t member, uint64_t step) const;
  // Fails the job if the member needs another sum than the others.
  bool Fits(size_t member, const Part& part);
  void Finish();
  void Answer(const Stream& stream) const;

  const ShardState& state_;
  Outbox& out_;
  JobFailure& failure_;
  StreamTable& streams_;
  Place place_;                   // of the parts
  std::map<size_t, Part> parts_;  // by member
  std::optional<Sum> finished_;   // the newest
};

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_CORE_TRAINING_STEP_SUMS_H_
