#include "services/ps/core/state/shard_state.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "services/common/check.h"
#include "services/common/status_macros.h"
#include "services/protocol/codec/codec.h"

namespace sluice::ps {

ShardState::ShardState(ShardOptions given, ParallelRunner* runner, const ShardRules* kept)
    : options_(std::move(given)),
      parallel_(runner != nullptr ? *runner : calling_thread_),
      rules_(kept != nullptr ? *kept : all_rules_),
      pool_(BlockPool::Create(options_.max_idle_bytes)) {}

uint64_t ShardState::LastStep() const { return TotalSteps(job().training(), plan()); }

uint64_t ShardState::TotalSamples() const {
  return sluice::TotalSamples(job().training(), training_samples());
}

v1::Header ShardState::NewHeader() const {
  v1::Header header;
  if (view().has_value()) *header.mutable_view() = view()->id();
  return header;
}

SendToShard ShardState::NewMessageTo(const v1::View::Shard& shard) const {
  SendToShard action;
  action.shard = shard.process();
  action.address = shard.address();
  action.header = NewHeader();
  return action;
}

SendToShard ShardState::NewMessageTo(uint64_t incarnation) const {
  const auto& shards = view()->proto().shards();
  const auto found = std::find_if(shards.begin(), shards.end(), [&](const v1::View::Shard& shard) {
    return shard.process().incarnation() == incarnation;
  });
  SLUICE_CHECK(found != shards.end(), "messages are for shards of the view");
  return NewMessageTo(*found);
}

uint64_t ShardState::VersionOfNone() const {
  if (!view().has_value()) return 0;
  return view()->synchronous() ? view()->proto().first_step() : updates();
}

uint64_t ShardState::LowestVersion() const {
  if (!view().has_value() || partitions().empty()) return VersionOfNone();
  uint64_t lowest = std::numeric_limits<uint64_t>::max();
  for (const auto& [number, partition] : partitions()) {
    lowest = std::min(lowest, partition.version());
  }
  return lowest;
}

uint64_t ShardState::HighestVersion() const {
  if (!view().has_value() || partitions().empty()) return VersionOfNone();
  uint64_t highest = 0;
  for (const auto& [number, partition] : partitions()) {
    highest = std::max(highest, partition.version());
  }
  return highest;
}

uint64_t ShardState::LowestHeld() const {
  uint64_t lowest = std::numeric_limits<uint64_t>::max();
  if (!partitions().empty()) lowest = LowestVersion();
  for (const auto& [number, copy] : copies()) lowest = std::min(lowest, copy.version());
  return lowest == std::numeric_limits<uint64_t>::max() ? VersionOfNone() : lowest;
}

bool ShardState::AwaitsDecisions(uint64_t step) const {
  const uint64_t held_at = barrier().version();
  return job().optimizer().has_plateau() && view()->synchronous() && held_at > 0 && step >= held_at;
}

absl::Status SplitPayload(const ShardModel& model, uint32_t partition,
                          const google::protobuf::RepeatedPtrField<v1::BlockHeader>& headers,
                          const absl::Cord& payload, std::vector<ReceivedBlock>* blocks) {
  if (!headers.empty() && partition >= model.partitions()) {
    return absl::InvalidArgumentError(absl::StrCat("there is no partition ", partition));
  }

  blocks->reserve(headers.size());
  absl::flat_hash_set<uint32_t> seen;

  size_t at = 0;
  for (const v1::BlockHeader& header : headers) {
    if (header.block() < model.FirstBlock(partition) ||
        header.block() >= model.FirstBlock(partition + 1)) {
      return absl::InvalidArgumentError(
          absl::StrCat("block ", header.block(), " is not of partition ", partition));
    }

    const BlockInfo& info = model.block(header.block());
    const auto fail = [&](absl::string_view what) {
      return absl::InvalidArgumentError(absl::StrCat(model.BlockName(info), " ", what));
    };
    if (!seen.insert(header.block()).second) return fail("occurs twice in one frame");

    const uint64_t bytes = header.payload_bytes();
    if (header.codec() == v1::CODEC_RAW && bytes != info.bytes) {
      return fail(absl::StrCat("arrived with ", bytes, " bytes; it has ", info.bytes));
    }
    if (payload.size() - at < bytes) {
      return fail(absl::StrCat("ends after the payload's ", payload.size(), " bytes"));
    }

    blocks->push_back({header.block(), header.codec(), payload.Subcord(at, bytes)});
    at += bytes;

    if (header.codec() == v1::CODEC_RAW) continue;
    const absl::StatusOr<const Codec*> codec = FindCodec(header.codec());
    if (!codec.ok()) return fail(absl::StrCat("came with codec ", header.codec(), ": unknown"));
    RETURN_IF_ERROR((*codec)->Validate(blocks->back().payload, info.dtype, info.count),
                    fail(_.message()));
  }

  SLUICE_DCHECK(at <= payload.size(), "no block ends after the payload");
  if (at != payload.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the payload has ", payload.size(), " bytes, its blocks are ", at));
  }
  return absl::OkStatus();
}

absl::Status SplitPush(const ShardState& state, uint64_t worker, const v1::Push& push,
                       const absl::Cord& payload, std::vector<ReceivedBlock>* blocks) {
  const ShardModel& model = *state.model();
  if (!state.ByReference()) {
    return SplitPayload(model, push.partition(), push.blocks(), payload, blocks);
  }

  google::protobuf::RepeatedPtrField<v1::BlockHeader> headers;
  absl::Cord contents;
  size_t at = 0;
  if (!push.blocks().empty() && push.partition() >= model.partitions()) {
    return absl::InvalidArgumentError(absl::StrCat("there is no partition ", push.partition()));
  }

  uint32_t next = 0;  // rejects a block that occurs twice
  for (const v1::BlockHeader& header : push.blocks()) {
    if (header.block() < std::max(next, model.FirstBlock(push.partition())) ||
        header.block() >= model.FirstBlock(push.partition() + 1)) {
      return absl::InvalidArgumentError(absl::StrCat("block ", header.block(),
                                                     " is not of partition ", push.partition(),
                                                     ", or not after the previous block"));
    }

    next = header.block() + 1;
    if (payload.size() - at < header.payload_bytes()) {
      return absl::InvalidArgumentError(
          absl::StrCat("a reference ends after the payload's ", payload.size(), " bytes"));
    }
    ASSIGN_OR_RETURN(absl::Cord content,
                     state.options().references->Find(worker, model, model.block(header.block()),
                                                      payload.Subcord(at, header.payload_bytes())));

    at += header.payload_bytes();
    v1::BlockHeader& found = *headers.Add();
    found.set_block(header.block());
    found.set_payload_bytes(content.size());
    contents.Append(std::move(content));
  }

  return SplitPayload(model, push.partition(), headers, contents, blocks);
}

}  // namespace sluice::ps
