// The core's cost in a step of 100 MiB: one member pushes frames of 2 MiB as a transport would
// deliver them (chunks of 64 KiB, not aligned to the elements), and the core answers with the next
// version.
#include <benchmark/benchmark.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "services/protocol/layout.h"
#include "services/ps/core/testing/shard_harness.h"

namespace sluice::ps {
namespace {

constexpr int64_t kElements = 25 << 20;
constexpr uint64_t kMember = 7;

absl::Cord Received(size_t bytes) {
  constexpr size_t kChunk = 64 << 10;
  absl::Cord payload;
  for (size_t at = 0; at < bytes; at += kChunk) {
    // Starts one byte into its memory, so it is never aligned.
    auto chunk = std::make_shared<std::string>(std::min(kChunk, bytes - at) + 1, '\0');
    payload.Append(absl::MakeCordFromExternal(absl::string_view(*chunk).substr(1), [chunk] {}));
  }
  return payload;
}

struct Frame {
  v1::Header header;
  absl::Cord payload;
};

// All frames of one step of the member.
std::vector<Frame> StepFrames(const ShardHarness& shard) {
  std::vector<Frame> frames;
  const LayoutIndex index(shard.table, shard.layout());
  for (uint32_t p = 0; p < index.partitions(); ++p) {
    for (uint32_t block : index.BlocksOfPartition(p)) {
      Frame* frame = frames.empty() ? nullptr : &frames.back();
      if (frame == nullptr || frame->header.push().partition() != p ||
          frame->header.push().blocks_size() == 2) {
        frame = &frames.emplace_back();
        frame->header = shard.HeaderOf(1);
        frame->header.mutable_push()->set_partition(p);
        *frame->header.mutable_push()->mutable_microbatches() = ShardHarness::Microbatches(0, 4);
      }
      v1::BlockHeader& header = *frame->header.mutable_push()->add_blocks();
      header.set_block(block);
      header.set_payload_bytes(index.bytes(block));
      frame->payload.Append(Received(index.bytes(block)));
    }
    if (index.IsEmpty(p)) continue;
    v1::Push& last = *frames.back().header.mutable_push();
    last.add_complete(p);
    last.set_samples(4);
    last.set_microbatch_count(4);
    last.set_pull_next(true);
  }
  return frames;
}

void InitializeWithZeros(ShardHarness& shard) {
  shard.Connect();
  shard.Prepare(1);
  const StreamId stream = shard.Open(999);
  const LayoutIndex index(shard.table, shard.layout());
  for (uint32_t block = 0; block < index.blocks(); ++block) {
    v1::Header header;
    v1::InitPush& push = *header.mutable_init_push();
    *push.mutable_init_id() = ShardHarness::FirstInitId(1);
    push.set_partition(shard.layout().blocks(static_cast<int>(block)).partition());
    push.add_blocks()->set_block(block);
    push.mutable_blocks(0)->set_payload_bytes(index.bytes(block));
    shard.Send(stream, header, Received(index.bytes(block)));
  }
  shard.ChangeView(1, 0, {kMember});
}

void BM_Step(benchmark::State& state) {
  ShardHarness shard;
  shard.job.mutable_optimizer()->set_name(static_cast<v1::OptimizerSpec::Name>(state.range(0)));
  shard.job.mutable_optimizer()->set_learning_rate(0.1);
  shard.job.mutable_training()->set_steps(1 << 30);
  shard.table.mutable_tensors()->RemoveLast();
  shard.table.mutable_tensors(0)->set_shape(0, kElements);
  shard.owner.assign(64, 0);
  InitializeWithZeros(shard);
  const StreamId stream = shard.Open(kMember);
  std::vector<Frame> frames = StepFrames(shard);
  uint64_t step = 0;
  for (auto _ : state) {
    for (Frame& frame : frames) {
      frame.header.mutable_push()->set_step(step);
      shard.core().OnFrame(stream, frame.header, frame.payload, shard.now);
    }
    benchmark::DoNotOptimize(shard.core().TakeActions());
    ++step;
  }
  if (shard.core().Status().lowest != step) state.SkipWithError("the steps did not close");
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * kElements * 4);
}
BENCHMARK(BM_Step)
    ->Arg(v1::OptimizerSpec::ADD)
    ->Arg(v1::OptimizerSpec::SGD)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace sluice::ps
