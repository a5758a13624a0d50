#include "services/worker/core/worker_output.h"

#include "services/common/check.h"

namespace sluice::worker {

ShardLink* WorkerOutput::ReadyLink(ShardId shard) {
  const auto found = links_.find(shard);
  return found != links_.end() && found->second.ready() ? &found->second : nullptr;
}

uint64_t WorkerOutput::QueuedBytes() const {
  uint64_t bytes = 0;
  for (const auto& [shard, link] : links_) bytes += link.queued_bytes();
  return bytes;
}

void WorkerOutput::Send(ShardLink& link, v1::Header header, absl::Cord payload) {
  SLUICE_DCHECK(link.ready(), "a frame is sent on a stream that is ready");
  *header.mutable_view() = context_.view.id();
  link.Send(std::move(header), std::move(payload), &actions_);
}

ComputeId WorkerOutput::NewCompute() {
  outstanding_.insert(++last_compute_);
  return last_compute_;
}

void WorkerOutput::CountPulled(const v1::Data& data, size_t payload_bytes) {
  uint64_t whole = 0;
  for (const v1::BlockHeader& block : data.blocks()) {
    SLUICE_DCHECK(block.block() < context_.index->blocks(), "data is counted once it is accepted");
    whole += context_.index->bytes(block.block());
  }
  progress_.set_pulled_bytes(progress_.pulled_bytes() + payload_bytes);
  progress_.set_parameter_bytes(progress_.parameter_bytes() + whole);
}

void WorkerOutput::CountRecomputed(uint64_t samples) {
  samples_recomputed_ += samples;
  progress_.set_recomputed_samples(progress_.recomputed_samples() + samples);
}

}  // namespace sluice::worker
