// Takes over the attempt of an earlier coordinator: training continues in it, and nothing is
// restored.
//
// Intuition. The shards hold everything that a coordinator needs to continue an attempt: the newest
// view, the versions of the partitions, the leases. So a new coordinator that finds all of its
// shards in the attempt of the newest claim sends them a Pause, takes the facts of the attempt from
// the newest view that a reply names, and decides the next view by the same rules as any other
// (R3). Its term is above all that the shards have obeyed, so from the Pause on they refuse the
// earlier coordinator, which may be alive (R1). If anything is missing, the next attempt begins as
// after the loss of a shard.
//
// It writes the attempt, except for number, term, model and length.

#ifndef SLUICE_SERVICES_COORDINATOR_CORE_TAKEOVER_H_
#define SLUICE_SERVICES_COORDINATOR_CORE_TAKEOVER_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/common.pb.h"
#include "proto/control.pb.h"
#include "services/coordinator/core/attempt.h"
#include "services/coordinator/core/facts.h"
#include "services/coordinator/core/training.h"
#include "services/coordinator/core/view_decision.h"

namespace sluice::coordinator {

class Takeover {
 public:
  // All must outlive it.
  Takeover(const Facts& facts, Attempt* attempt, Training* training)
      : facts_(facts), attempt_(*attempt), training_(*training) {}

  // The attempt in which all wanted shards are, as they registered; nullopt: they are in different
  // ones, or in none. Requires that they have come.
  std::optional<uint64_t> AttemptOfShards() const;
  // The shards that live now are asked for their state. Requires a forgotten attempt, of which the
  // number is set.
  void Begin();
  // A shard that was asked and is no longer alive.
  std::optional<uint64_t> Lost() const;
  // Sets the facts of the attempt, and the view from which the next one is made. Requires the
  // replies of all shards, and the model. An error says why the attempt cannot be continued.
  absl::Status Complete(absl::Time now);

  // (R7) After Complete: the workers that the next view leaves out although the attempt knows them.
  // They may be members of an older view, so their incarnations must not return: members of the
  // newest view that have not come, and workers that have come and know another view of the
  // attempt.
  std::vector<v1::ProcessId> LeftOut() const;

 private:
  absl::Status Continue(const v1::View& view);
  absl::Status CheckReply(uint64_t shard, const v1::View& newest) const;

  const Facts& facts_;
  Attempt& attempt_;
  Training& training_;
};

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_CORE_TAKEOVER_H_
