// Takes over the attempt of an earlier coordinator: training continues in it, and nothing is
// restored.
//
// Intuition. The shards hold everything that a coordinator needs to continue an attempt: the newest
// view, the versions of the partitions, the leases. So a new coordinator that finds all of its
// shards in the attempt of the newest claim sends them a Pause, takes the facts of the attempt from
// the newest view that a reply names, and decides the next view by the same rules as any other
// (R3). Its term is above all that the shards have obeyed, so from the Pause on they refuse the
// earlier coordinator, which may be alive (R1).
//
// A shard may be missing, because it died together with the coordinator: the attempt continues if
// the others have all partitions (docs/protocol.md 6.3). The attempt's newest loss record is
// carried out first (R4). If anything is missing, the next attempt begins as after the loss of a
// shard.
//
// It writes the attempt, except for number, term, model and length.

#ifndef SLUICE_SERVICES_COORDINATOR_CORE_LIFECYCLE_TAKEOVER_H_
#define SLUICE_SERVICES_COORDINATOR_CORE_LIFECYCLE_TAKEOVER_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/checkpoint.pb.h"
#include "proto/common.pb.h"
#include "proto/control.pb.h"
#include "services/coordinator/core/decisions/view_decision.h"
#include "services/coordinator/core/facts/attempt.h"
#include "services/coordinator/core/facts/facts.h"
#include "services/coordinator/core/facts/training.h"

namespace sluice::coordinator {

class Takeover {
 public:
  // All must outlive it.
  Takeover(const Facts& facts, Attempt* attempt, Training* training)
      : facts_(facts), attempt_(*attempt), training_(*training) {}

  // The attempt of those wanted shards that have registered, as they reported it; nullopt: they are
  // in different ones, or in none. Where partitions may have copies, shards without any view do not
  // count.
  std::optional<uint64_t> AttemptOfShards() const;
  // The shards that live now and have a view of the attempt are asked for their state. Begin
  // requires an attempt without shards, of which the number is set.
  void Begin(absl::Time now);
  void Ask(absl::Time now);
  // A shard that was asked is no longer alive. Where partitions may have copies, the others are
  // asked again; false: they cannot be.
  bool Lost() const;
  bool Retry();
  // Whether the newest view names shards that were not asked: this coordinator may not know yet
  // that the job wants so many, or they are slow to connect. They may come within timers.suspect
  // after the last one that came; if the shards that were asked lack a partition, within
  // timers.heartbeat_timeout (or timers.suspect, if that is longer) of the beginning; but not once
  // another process has taken their place. Requires the replies of all shards that were asked, and
  // the model.
  enum class Missing { kNone, kMayCome, kHaveCome };
  Missing MissingShards(absl::Time now) const;
  absl::Time NextDeadline() const;
  // For this long the coordinator was frozen, or may have been cut off.
  void ExtendDeadlines(absl::Duration late);
  // (R4) The newest view that a reply names is of a later loss record than this claim, which must
  // be read again.
  bool MissesLossRecord(const v1::Claim& claim) const;

  // ---- the attempt continues, in this order; `claim`: the attempt's

  // The newest view that a reply names. Requires the replies of all shards, and the model. This
  // error, and the one below, say why the attempt cannot be continued.
  absl::StatusOr<v1::View> NewestView(const v1::Claim& claim) const;
  // (R4) The shards that are not kept: their replies are to be dropped.
  std::vector<uint64_t> Unkept(const v1::View& newest, const v1::Claim& claim) const;
  // Sets the facts of the attempt, and the view from which the next one is made.
  absl::Status Continue(const v1::View& newest, absl::Time now);

  // After Continue: the newest decisions of evaluations that the shards know.
  v1::EvaluationDecisions NewestDecisions() const;

  // (R7) After Continue: the processes that the next view leaves out although the attempt knows
  // them. They may be in an older view, so their incarnations must not return: members of the
  // newest view that have not come, workers that have come and know another view of the attempt,
  // and shards that know a view of the attempt and are not kept.
  std::vector<v1::ProcessId> LeftOut() const;

 private:
  // No shard that was asked holds some partition.
  bool LacksPartition() const;
  // When shards that may come are awaited no longer: with all partitions, and in any case.
  absl::Time ShortWaitEnds() const;
  absl::Time LongWaitEnds() const;
  absl::Status SetFacts(const v1::View& view);

  const Facts& facts_;
  Attempt& attempt_;
  Training& training_;
  absl::Time began_ = absl::InfinitePast();
  absl::Time asked_ = absl::InfinitePast();
};

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_CORE_LIFECYCLE_TAKEOVER_H_
