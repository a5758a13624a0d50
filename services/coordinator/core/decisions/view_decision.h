// Decides what a view change keeps: a pure function of the shards' replies to one Pause
// (docs/protocol.md 7.5, 8.4).
//
// Each partition's holders, of which the first is its owner: if a shard is gone, the holders of
// whole copies own its partitions. Synchronous: m, the lowest version of the owners. Versions
// differ by at most one, and a partition at m + 1 still has m. Asynchronous: each worker's highest
// clock that any shard has applied, to its own partitions or to a copy; owners and copies that are
// one behind have that update staged, because Apply is sent only after all acks.

#ifndef SLUICE_SERVICES_COORDINATOR_CORE_DECISIONS_VIEW_DECISION_H_
#define SLUICE_SERVICES_COORDINATOR_CORE_DECISIONS_VIEW_DECISION_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "proto/control.pb.h"
#include "services/coordinator/core/base/rules.h"

namespace sluice::coordinator {

// The facts of an attempt. `shards` and `owner` are those of the newest view that was decided; the
// others do not change within an attempt.
struct AttemptFacts {
  v1::InitId init_id;            // the init request that brought the attempt's first state
  v1::Term term;                 // of this coordinator
  uint64_t base_version = 0;     // version of that state
  v1::Ledger base_ledger;        // asynchronous: of that state
  std::vector<uint64_t> shards;  // incarnations; position = View.shards
  std::vector<uint32_t> owner;   // partition -> position
  std::vector<bool> empty;       // partitions without blocks, which are never named
};

// Replies of the shards that were asked, by incarnation.
using PauseReplies = std::map<uint64_t, v1::PauseReply>;

// The reply that names the newest view; null: none names one.
const v1::PauseReply* NewestReply(const PauseReplies& replies);

struct Decision {
  enum class Result {
    kDecided,
    kLost,        // a shard lacks state that it should hold: restore
    kNotReady,    // before the first view, a shard does not hold the whole state: request it again
    kSuperseded,  // a reply shows a newer coordinator
  };
  Result result = Result::kDecided;
  std::string reason;                // unless kDecided
  std::optional<v1::View> previous;  // the newest view of the replies; none: it is the first
  uint64_t first_step = 0;  // synchronous: m; asynchronous: updates applied after the install
  // For each partition with blocks, the shards (incarnations) that hold it at the first step. The
  // first one owns it, unless it is moved to another one.
  std::vector<std::vector<uint64_t>> holders;
  // Asynchronous, see Install.
  std::vector<v1::ClockRecord> clocks;
  std::vector<v1::LeaseRecord> leases;
  v1::Ledger ledger;
};

// `installs`: those of this attempt, by view number; they name the whole copies of a shard that
// missed a view. Shards of the newest view that have not replied are gone.
Decision DecideSynchronous(const AttemptFacts& attempt, const PauseReplies& replies,
                           const std::map<uint64_t, v1::Install>& installs,
                           const CoordinatorRules& rules);

// `members`: incarnations in both the old and the new view; other workers lose their leases.
Decision DecideAsynchronous(const AttemptFacts& attempt, const PauseReplies& replies,
                            const absl::flat_hash_set<uint64_t>& members,
                            const std::map<uint64_t, v1::Install>& installs,
                            const CoordinatorRules& rules);

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_CORE_DECISIONS_VIEW_DECISION_H_
