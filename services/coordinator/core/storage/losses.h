// The attempt's loss records (R4): which shards it continues with.
//
// Intuition. A shard that did not answer may be alive, with other shards and another coordinator,
// in the other half of a split network. So before a view without it is installed, the coordinator
// creates the attempt's next loss record in the storage, exclusively: of two halves, one can. The
// record names the shards that are kept. Views repeat the number of the newest record, so a
// coordinator that takes the attempt over knows whether a record was carried out.
//
// It writes Attempt::loss_record. Times must not go backwards.

#ifndef SLUICE_SERVICES_COORDINATOR_CORE_STORAGE_LOSSES_H_
#define SLUICE_SERVICES_COORDINATOR_CORE_STORAGE_LOSSES_H_

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/checkpoint.pb.h"
#include "proto/control.pb.h"
#include "services/coordinator/core/base/verdict.h"
#include "services/coordinator/core/facts/attempt.h"
#include "services/coordinator/core/facts/facts.h"
#include "services/coordinator/core/facts/output.h"

namespace sluice::coordinator {

class Losses {
 public:
  // All must outlive it.
  Losses(const Facts& facts, LossRecords* losses, Output* output)
      : facts_(facts), losses_(*losses), output_(*output) {}

  // The attempt of an earlier coordinator continues. `view`: its newest one; `claim`: the
  // attempt's, with the newest loss record.
  void Continue(const v1::View& view, const v1::Claim& claim);

  // Whether the view may be installed: it leaves out no shard that did not reply, or a durable
  // record names its shards. If not, the record is requested, unless a request is under way or has
  // just failed.
  bool MayInstall(const v1::View& view, absl::Time now);
  // The view was installed: its successor needs a record of its own.
  void OnView() { unused_.reset(); }

  // A record of this attempt was requested, and has no result yet.
  bool Awaits(uint64_t attempt) const {
    return pending_.has_value() && facts_.attempt.id.number == attempt;
  }
  // Requires Awaits. Where an error gives kContinue, the core decides again later.
  Verdict OnResult(const absl::Status& status, absl::Time now);
  // Whether another coordinator has made a loss record of this attempt.
  bool IsSuperseded(const std::vector<v1::Claim>& claims) const;

  absl::Time NextDeadline() const;

 private:
  using Shards = std::set<uint64_t>;

  std::string Name() const;
  void OnMade();

  const Facts& facts_;
  LossRecords& losses_;
  Output& output_;
  std::optional<Shards> pending_;  // the shards that the record under way names
  std::optional<Shards> failed_;   // ... that the record of a failed request names: it may exist
  std::optional<Shards> unused_;   // ... that the newest record names; no view repeats it yet
  absl::Time retry_at_ = absl::InfinitePast();
};

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_CORE_STORAGE_LOSSES_H_
