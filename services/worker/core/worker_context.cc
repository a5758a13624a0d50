#include "services/worker/core/worker_context.h"

#include "absl/strings/str_cat.h"
#include "services/protocol/ids.h"

namespace sluice::worker {

void WorkerContext::ReadView() {
  member = false;
  assignment.clear();

  for (const v1::View::Member& worker : view.workers()) {
    if (worker.process().incarnation() != incarnation) continue;
    member = true;
    for (const v1::Range& range : worker.microbatches()) {
      assignment.push_back({range.begin(), range.end()});
    }
  }

  owned.clear();
  for (int partition = 0; partition < view.owner_size(); ++partition) {
    if (index->IsEmpty(static_cast<uint32_t>(partition))) continue;
    const v1::View::Shard& shard = view.shards(static_cast<int>(view.owner(partition)));
    owned[shard.process().incarnation()].push_back(static_cast<uint32_t>(partition));
  }
}

uint64_t WorkerContext::QueuedBytes() const {
  uint64_t bytes = 0;
  for (const auto& [shard, link] : links) bytes += link.queued_bytes();
  return bytes;
}

void WorkerContext::CountPulled(const v1::Data& data, size_t payload_bytes) {
  uint64_t whole = 0;
  for (const v1::BlockHeader& block : data.blocks()) {
    SLUICE_DCHECK(block.block() < index->blocks(), "data is counted once it is accepted");
    whole += index->bytes(block.block());
  }
  progress.set_pulled_bytes(progress.pulled_bytes() + payload_bytes);
  progress.set_parameter_bytes(progress.parameter_bytes() + whole);
}

absl::Status CheckView(const v1::View& view, const v1::Layout& layout) {
  if (view.owner_size() != static_cast<int>(layout.partitions())) {
    return absl::InvalidArgumentError(
        absl::StrCat("view ", ShortName(view.id()), " maps ", view.owner_size(),
                     " partitions, the layout has ", layout.partitions()));
  }
  for (uint32_t owner : view.owner()) {
    if (owner >= static_cast<uint32_t>(view.shards_size())) {
      return absl::InvalidArgumentError(
          absl::StrCat("view ", ShortName(view.id()), " has no shard ", owner));
    }
  }
  return absl::OkStatus();
}

}  // namespace sluice::worker
