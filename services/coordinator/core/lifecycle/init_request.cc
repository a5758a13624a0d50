#include "services/coordinator/core/lifecycle/init_request.h"

#include <utility>

#include "services/common/check.h"
#include "services/protocol/ids.h"

namespace sluice::coordinator {

void InitRequest::Begin(v1::InitId init_id, const std::vector<uint64_t>& shards,
                        std::optional<uint64_t> worker, absl::Time deadline) {
  SLUICE_DCHECK(Compare(init_id_, init_id) < 0, "R12: each request has a new number");
  SLUICE_DCHECK(!shards.empty(), "a request is for the shards of the attempt");
  active_ = true;
  init_id_ = std::move(init_id);
  missing_ = {shards.begin(), shards.end()};
  worker_ = worker;
  deadline_ = deadline;
  if (worker.has_value()) asked_.insert(*worker);
}

bool InitRequest::OnStateReady(uint64_t shard, const v1::InitId& init_id) {
  if (!active_ || (rules_->MatchInitIds() && !Same(init_id, init_id_))) return false;
  return missing_.erase(shard) > 0;
}

std::optional<uint64_t> InitRequest::NextWorker(const std::vector<uint64_t>& candidates) const {
  std::optional<uint64_t> next;
  for (uint64_t candidate : candidates) {
    if (!next.has_value() || asked_.count(candidate) < asked_.count(*next)) next = candidate;
  }
  return next;
}

}  // namespace sluice::coordinator
