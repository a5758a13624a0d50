#include "services/worker/core/push_sender.h"

#include <algorithm>

#include "services/common/check.h"
#include "services/protocol/interval_set.h"

namespace sluice::worker {

void PushSender::Stop() {
  gradients_ = nullptr;
  state_.clear();
}

void PushSender::Start(const StepGradients* gradients, Common common,
                       const DenseReduction* reduction) {
  SLUICE_DCHECK(common.step == 0 || common.clock == 0, "a push is of a step or of an update");
  gradients_ = gradients;
  reduction_ = reduction;
  common_ = std::move(common);
  state_.assign(context_->index->partitions(), Partition());
  for (uint32_t partition = 0; partition < state_.size(); ++partition) ResetPartition(partition);
}

void PushSender::ResetPartition(uint32_t partition) {
  SLUICE_DCHECK(active() && partition < state_.size(),
                "pushes are prepared between Start and Stop");
  Partition& state = state_[partition];
  const bool closed = state.closed;
  state = Partition();
  state.closed = closed;

  for (const MicrobatchRange& partial_sum : gradients_->partial_sums()) {
    for (uint32_t block : context_->index->BlocksOfPartition(partition)) {
      if (IsReduced(block)) continue;
      const auto& tensor =
          gradients_->Get(partial_sum, context_->layout.blocks(static_cast<int>(block)).tensor());
      if (!tensor.resolved) {
        ++state.unresolved;
      } else if (tensor.gradient) {
        state.pending.push_back({partial_sum, block});
        state.pending_bytes += BytesOf(*tensor.gradient, block);
      }
    }
  }

  if (reduction_ == nullptr) return;
  for (uint32_t block : context_->index->BlocksOfPartition(partition)) {
    if (!reduction_->Owns(block)) continue;
    if (reduction_->done()) {
      AddSum(block);
    } else {
      ++state.unresolved;
    }
  }
}

bool PushSender::IsReduced(uint32_t block) const {
  return reduction_ != nullptr &&
         reduction_->Covers(context_->layout.blocks(static_cast<int>(block)).tensor());
}

// A sum is pushed as if it belonged to the first partial sum: a block is identified by member,
// partial sum and number.
void PushSender::AddSum(uint32_t block) {
  if (reduction_->Sum(block) == nullptr) return;
  Partition& state = state_[context_->layout.blocks(static_cast<int>(block)).partition()];
  state.pending.push_back({gradients_->partial_sums().front(), block});
  state.pending_bytes += context_->index->bytes(block);
}

void PushSender::OnReduced() {
  if (!active() || reduction_ == nullptr) return;

  for (uint32_t block = 0; block < context_->index->blocks(); ++block) {
    if (!reduction_->Owns(block)) continue;
    Partition& state = state_[context_->layout.blocks(static_cast<int>(block)).partition()];
    SLUICE_DCHECK(state.unresolved > 0, "a sum is awaited until the group has made it");
    --state.unresolved;
    AddSum(block);
  }
}

uint64_t PushSender::BytesOf(const Gradient& gradient, uint32_t block) const {
  const uint64_t whole = context_->index->bytes(block);
  if (gradient.rows == nullptr || !context_->RowsTravel()) return whole;
  return std::min<uint64_t>(whole, gradient.values.size());
}

void PushSender::OnResolved(const MicrobatchRange& partial_sum, uint32_t tensor) {
  if (!active() || (reduction_ != nullptr && reduction_->Covers(tensor))) return;
  const std::optional<Gradient>& gradient = gradients_->Get(partial_sum, tensor).gradient;

  for (uint32_t block : context_->index->BlocksOfTensor(tensor)) {
    Partition& state = state_[context_->layout.blocks(static_cast<int>(block)).partition()];
    SLUICE_DCHECK(state.unresolved > 0, "a tensor of a partial sum is resolved once");
    --state.unresolved;
    if (!gradient) continue;

    state.pending.push_back({partial_sum, block});
    state.pending_bytes += BytesOf(*gradient, block);
  }
}

void PushSender::SendAgain(ShardId shard) {
  if (!active()) return;
  auto owned = context_->owned.find(shard);
  if (owned == context_->owned.end()) return;
  for (uint32_t partition : owned->second) ResetPartition(partition);
}

void PushSender::Flush() {
  if (!active()) return;
  for (const auto& [shard, partitions] : context_->owned) {
    if (ShardLink* link = out_->ReadyLink(shard)) FlushTo(*link, partitions);
  }
}

void PushSender::FlushTo(ShardLink& link, const std::vector<uint32_t>& partitions) {
  std::vector<Frame> frames;
  std::vector<uint32_t> bare;  // complete, with nothing (more) to send
  for (uint32_t partition : partitions) {
    Partition& state = state_[partition];
    if (state.closed || state.named) continue;

    // A partition of which other members push everything must not be completed without the weight.
    const bool weighed = reduction_ == nullptr || !reduction_->collecting();
    const bool complete = state.unresolved == 0 && weighed;
    if (!complete && state.pending_bytes < kEagerBytes) continue;

    const bool had_blocks = !state.pending.empty();
    AppendFrames(partition, link.takes_rows() && context_->RowsTravel(), &frames);
    if (!complete) continue;

    state.named = true;
    SLUICE_DCHECK(!had_blocks || !frames.empty(), "blocks are sent before they are complete");
    if (had_blocks) {
      frames.back().header.mutable_push()->add_complete(partition);
    } else {
      bare.push_back(partition);
    }
  }

  if (!bare.empty() && frames.empty()) frames.push_back(NewFrame());
  if (!context_->rules->NameEveryPartition() && !bare.empty()) bare.pop_back();
  for (uint32_t partition : bare) {
    frames.back().header.mutable_push()->add_complete(partition);
  }

  for (Frame& frame : frames) {
    v1::Push& push = *frame.header.mutable_push();
    if (push.complete_size() == 0) continue;
    push.set_samples(common_.samples);
    if (common_.weight && context_->rules->SendWeights()) push.set_weight(*common_.weight);
    push.set_microbatch_count(common_.microbatches);
    push.set_pull_next(common_.pull_next);
    push.set_ordinal(common_.ordinal);
  }

  if (!frames.empty() && common_.has_apply && AllSentTo(link.id())) {
    *frames.back().header.mutable_push()->mutable_apply() = common_.apply;
  }
  for (Frame& frame : frames) {
    out_->Send(link, std::move(frame.header), std::move(frame.payload));
  }
}

PushSender::Frame PushSender::NewFrame() const {
  Frame frame;
  v1::Push& push = *frame.header.mutable_push();
  push.set_step(common_.step);
  push.set_clock(common_.clock);
  return frame;
}

void PushSender::AppendFrames(uint32_t partition, bool as_rows, std::vector<Frame>* frames) {
  Partition& state = state_[partition];
  // By partial sum, each in the order of the layout: the order that suits a shard best.
  std::sort(state.pending.begin(), state.pending.end(), [](const Pending& a, const Pending& b) {
    return std::make_pair(a.partial_sum.begin, a.block) <
           std::make_pair(b.partial_sum.begin, b.block);
  });

  const MicrobatchRange* partial_sum = nullptr;
  for (const Pending& pending : state.pending) {
    const v1::Block& block = context_->layout.blocks(static_cast<int>(pending.block));
    EncodedBlock encoded;
    if (IsReduced(pending.block)) {
      SLUICE_DCHECK(reduction_->Sum(pending.block) != nullptr, "a sum that is pushed is there");
      encoded.payload = *reduction_->Sum(pending.block);
    } else {
      const auto& tensor = gradients_->Get(pending.partial_sum, block.tensor());
      SLUICE_DCHECK(tensor.gradient.has_value(), "a gradient that is pushed is still held");
      const v1::TensorSpec& spec = context_->table.tensors(static_cast<int>(block.tensor()));
      encoded = encoder_.Encode(pending.partial_sum, pending.block, block, spec, *tensor.gradient,
                                as_rows);
    }

    if (partial_sum == nullptr || !(*partial_sum == pending.partial_sum) ||
        frames->back().payload.size() + encoded.payload.size() > kMaxFramePayloadBytes) {
      partial_sum = &pending.partial_sum;
      frames->push_back(NewFrame());
      v1::Push& push = *frames->back().header.mutable_push();
      push.set_partition(partition);
      *push.mutable_microbatches() = ToProto(Interval{partial_sum->begin, partial_sum->end});
    }

    v1::WorkerProgress& progress = *out_->progress();
    progress.set_pushed_bytes(progress.pushed_bytes() + encoded.payload.size());
    progress.set_gradient_bytes(progress.gradient_bytes() + context_->index->bytes(pending.block));
    v1::BlockHeader& header = *frames->back().header.mutable_push()->add_blocks();
    header.set_block(pending.block);
    header.set_payload_bytes(encoded.payload.size());
    header.set_codec(encoded.codec);
    frames->back().payload.Append(std::move(encoded.payload));
  }

  state.pending.clear();
  state.pending_bytes = 0;
}

bool PushSender::AllSent() const {
  return std::all_of(context_->owned.begin(), context_->owned.end(),
                     [&](const auto& owned) { return AllSentTo(owned.first); });
}

bool PushSender::AllSentTo(ShardId shard) const {
  auto owned = context_->owned.find(shard);
  if (owned == context_->owned.end() || !active()) return true;

  return std::all_of(owned->second.begin(), owned->second.end(), [&](uint32_t partition) {
    const Partition& state = state_[partition];
    SLUICE_DCHECK(!state.named || (state.unresolved == 0 && state.pending.empty()),
                  "a partition is complete once nothing of it is left to send");
    return state.named || state.closed;
  });
}

}  // namespace sluice::worker
