#include "services/coordinator/birth.h"

#include <utility>

#include "services/protocol/ids.h"

namespace sluice::coordinator {

void Birth::Reset() {
  active_ = false;
  missing_.clear();
  worker_.reset();
  asked_.clear();
}

void Birth::Ask(v1::AskId ask, const std::vector<uint64_t>& shards, std::optional<uint64_t> worker,
                absl::Time deadline) {
  active_ = true;
  ask_ = std::move(ask);
  missing_ = {shards.begin(), shards.end()};
  worker_ = worker;
  deadline_ = deadline;
  if (worker.has_value()) asked_.insert(*worker);
}

bool Birth::OnWhole(uint64_t shard, const v1::AskId& ask) {
  if (!active_ || (rules_->MatchAsks() && !Same(ask, ask_))) return false;
  return missing_.erase(shard) > 0;
}

std::optional<uint64_t> Birth::NextWorker(const std::vector<uint64_t>& candidates) const {
  std::optional<uint64_t> next;
  for (uint64_t candidate : candidates) {
    if (!next.has_value() || asked_.count(candidate) < asked_.count(*next)) next = candidate;
  }
  return next;
}

}  // namespace sluice::coordinator
