#include "services/coordinator/core/facts/attempt.h"

#include <algorithm>
#include <cstddef>

#include "absl/algorithm/container.h"
#include "services/common/check.h"

namespace sluice::coordinator {

Attempt Attempt::Next(v1::Mode job_mode) const {
  Attempt next;
  next.id = id;
  next.model = model;
  next.mode = job_mode;
  next.last_number_ = last_number_;
  return next;
}

void Attempt::BeginWith(std::vector<v1::View::Shard> shards, std::vector<uint32_t> owner,
                        const LayoutIndex& index) {
  SLUICE_DCHECK(shards_.empty(), "the attempt has no shards yet");
  SetShards(std::move(shards));
  facts_.term = id.term;
  facts_.owner = std::move(owner);
  SetPartitions(index);
}

void Attempt::ContinueFrom(const v1::View& view, const LayoutIndex& index) {
  OnView(view);
  SetPartitions(index);
  facts_.init_id = view.init_id();
  facts_.term = id.term;
  facts_.base_version = view.first_step();
  if (view.has_base()) base = view.base();
}

void Attempt::KeepShards(const std::function<bool(uint64_t)>& keep) {
  std::vector<v1::View::Shard> kept;
  for (v1::View::Shard& shard : shards_) {
    if (keep(shard.process().incarnation())) kept.push_back(std::move(shard));
  }
  SetShards(std::move(kept));
}

void Attempt::SetBase(uint64_t version, v1::Ledger ledger) {
  facts_.base_version = version;
  facts_.base_ledger = std::move(ledger);
}

void Attempt::SetShards(std::vector<v1::View::Shard> shards) {
  shards_ = std::move(shards);
  facts_.shards.clear();
  for (const v1::View::Shard& shard : shards_) {
    facts_.shards.push_back(shard.process().incarnation());
  }
}

void Attempt::SetPartitions(const LayoutIndex& index) {
  SLUICE_DCHECK(facts_.owner.size() == index.partitions(), "each partition has an owner");
  facts_.empty.clear();
  bytes_.clear();
  for (uint32_t p = 0; p < index.partitions(); ++p) {
    facts_.empty.push_back(index.IsEmpty(p));
    bytes_.push_back(index.PartitionBytes(p));
  }
}

void Attempt::OnView(const v1::View& view) {
  SetShards({view.shards().begin(), view.shards().end()});
  facts_.owner.assign(view.owner().begin(), view.owner().end());
  SLUICE_DCHECK(absl::c_all_of(facts_.owner, [&](uint32_t p) { return p < facts_.shards.size(); }),
                "an owner is the position of a shard");
}

bool Attempt::OwnersChange(const v1::View& view) const {
  SLUICE_DCHECK(view.owner_size() == static_cast<int>(facts_.owner.size()),
                "the number of partitions does not change within an attempt");
  for (size_t p = 0; p < facts_.owner.size(); ++p) {
    const uint32_t next = view.owner(static_cast<int>(p));
    if (!facts_.empty[p] && view.shards(static_cast<int>(next)).process().incarnation() !=
                                facts_.shards[facts_.owner[p]]) {
      return true;
    }
  }
  return false;
}

bool Attempt::HasShard(uint64_t shard) const { return absl::c_linear_search(facts_.shards, shard); }

std::vector<uint32_t> Attempt::PartitionsWithBlocks(uint64_t shard) const {
  SLUICE_DCHECK(facts_.owner.size() == facts_.empty.size(), "both lists are by partition");
  std::vector<uint32_t> partitions;
  for (uint32_t p = 0; p < facts_.owner.size(); ++p) {
    if (facts_.shards[facts_.owner[p]] == shard && !facts_.empty[p]) partitions.push_back(p);
  }
  return partitions;
}

bool Attempt::HasBlocks(uint64_t shard) const {
  for (size_t p = 0; p < facts_.owner.size(); ++p) {
    if (facts_.shards[facts_.owner[p]] == shard && !facts_.empty[p]) return true;
  }
  return false;
}

uint64_t Attempt::LastStep() const {
  SLUICE_DCHECK(model.length.has_value(), "the job's length is known");
  return std::max(model.length->total_steps(), facts_.base_version);
}

uint64_t Attempt::LastSample() const {
  const auto& applied = facts_.base_ledger.applied();
  return std::max(model.length->total_samples(), applied.empty() ? 0 : applied.rbegin()->end());
}

}  // namespace sluice::coordinator
