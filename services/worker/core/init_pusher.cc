#include "services/worker/core/init_pusher.h"

#include <utility>

#include "services/common/check.h"
#include "services/protocol/ids.h"

namespace sluice::worker {

bool InitPusher::Start(const v1::Initialize& initialize) {
  if (Compare(initialize.init_id(), initialize_.init_id()) <= 0) return false;
  SLUICE_DCHECK(static_cast<size_t>(initialize.owner_size()) == context_->index->partitions(),
                "an init request names the owner of each partition of its layout");
  initialize_ = initialize;
  active_ = true;
  tensors_.clear();
  answered_.clear();
  owned_.clear();

  for (const v1::View::Shard& shard : initialize.shards()) owned_[shard.process().incarnation()];
  for (int partition = 0; partition < initialize.owner_size(); ++partition) {
    if (context_->index->IsEmpty(static_cast<uint32_t>(partition))) continue;
    const v1::View::Shard& shard = initialize.shards(static_cast<int>(initialize.owner(partition)));
    owned_[shard.process().incarnation()].push_back(static_cast<uint32_t>(partition));
  }

  if (initialize.table().tensors_size() > 0) {
    out_->Add(ReadInitialTensor{initialize_.init_id(), 0});
  }
  return true;
}

void InitPusher::Stop() {
  active_ = false;
  tensors_.clear();
  owned_.clear();
}

void InitPusher::OnInitialTensor(const v1::InitId& init_id, uint32_t tensor, absl::Cord content) {
  if (!active_ || !Same(init_id, initialize_.init_id()) || tensor != tensors_.size()) return;
  tensors_.push_back(std::move(content));

  if (tensors_.size() < static_cast<size_t>(initialize_.table().tensors_size())) {
    out_->Add(ReadInitialTensor{init_id, tensor + 1});
    return;
  }

  for (auto& [shard, link] : out_->links()) {
    if (link.ready()) PushTo(link);
  }
}

void InitPusher::OnLinkReady(ShardLink& link) {
  if (active_) PushTo(link);
}

void InitPusher::OnInitialized(ShardLink& link, const v1::Initialized& initialized) {
  if (Same(initialized.init_id(), initialize_.init_id())) answered_.insert(link.id());
}

void InitPusher::PushTo(ShardLink& link) {
  SLUICE_DCHECK(active_, "version 0 is pushed before the attempt's first view");
  auto owned = owned_.find(link.id());
  if (owned == owned_.end() || answered_.count(link.id()) != 0) return;
  if (tensors_.size() < static_cast<size_t>(initialize_.table().tensors_size())) return;

  for (size_t i = 0; i < owned->second.size(); ++i) {
    PushPartition(link, owned->second[i], i + 1 == owned->second.size());
  }

  if (owned->second.empty()) {
    v1::Header header;
    *header.mutable_init_push()->mutable_init_id() = initialize_.init_id();
    header.mutable_init_push()->set_last(true);
    link.Send(std::move(header), absl::Cord(), out_->actions());
  }
}

void InitPusher::PushPartition(ShardLink& link, uint32_t partition, bool last) {
  const std::vector<uint32_t>& blocks = context_->index->BlocksOfPartition(partition);
  v1::Header header;
  absl::Cord payload;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const v1::Block& block = context_->layout.blocks(static_cast<int>(blocks[i]));
    const uint64_t bytes = context_->index->bytes(blocks[i]);
    const uint64_t element = bytes / block.count();
    SLUICE_DCHECK(tensors_[block.tensor()].size() >= block.offset() * element + bytes,
                  "a tensor of version 0 has all of its blocks");

    v1::InitPush& push = *header.mutable_init_push();
    *push.mutable_init_id() = initialize_.init_id();
    push.set_partition(partition);
    v1::BlockHeader& block_header = *push.add_blocks();
    block_header.set_block(blocks[i]);
    block_header.set_payload_bytes(bytes);

    payload.Append(tensors_[block.tensor()].Subcord(block.offset() * element, bytes));

    const bool end = i + 1 == blocks.size();
    if (!end && payload.size() + context_->index->bytes(blocks[i + 1]) <= kMaxFramePayloadBytes) {
      continue;
    }

    push.set_last(end && last);
    link.Send(std::move(header), std::move(payload), out_->actions());
    header = v1::Header();
    payload = absl::Cord();
  }
}

}  // namespace sluice::worker
