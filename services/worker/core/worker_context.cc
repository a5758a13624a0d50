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
