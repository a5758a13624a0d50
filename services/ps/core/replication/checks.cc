#include "services/ps/core/replication/checks.h"

#include <algorithm>
#include <cmath>

#include "services/common/status_macros.h"
#include "services/ps/core/base/check_errors.h"

namespace sluice::ps {
namespace {

bool IsFilled(const ShardState& state, uint32_t partition) {
  return partition < state.model()->partitions() && !state.model()->IsEmpty(partition);
}

absl::Status CheckOwner(const ShardState& state, uint64_t sender, uint32_t partition) {
  if (!IsFilled(state, partition) ||
      state.view()->OwnerOf(partition).process().incarnation() != sender) {
    return Invalid("partition ", partition, " is not owned by the sender");
  }
  if (state.view()->HasCopy(partition, state.self())) return absl::OkStatus();
  return Invalid("the view gives this shard no copy of partition ", partition);
}

absl::Status CheckPart(uint32_t part, uint32_t parts) {
  if (part < parts) return absl::OkStatus();
  return Invalid("part ", part, " of ", parts);
}

// The most bytes that a file of the partition may have.
uint64_t MostFileBytes(const ShardModel& model, uint32_t partition) {
  constexpr uint64_t kHeaderBytesOfArray = 8192;  // names have at most 4096 bytes
  uint64_t bytes = kHeaderBytesOfArray;
  for (uint32_t b = model.FirstBlock(partition); b < model.FirstBlock(partition + 1); ++b) {
    const BlockInfo& info = model.block(b);
    bytes += info.bytes + kMaxSlots * info.sum_bytes + (1 + kMaxSlots) * kHeaderBytesOfArray;
  }
  return bytes;
}

}  // namespace

absl::Status CheckCopyState(const ShardState& state, uint64_t sender, const v1::CopyState& part,
                            uint64_t bytes) {
  RETURN_IF_ERROR(CheckOwner(state, sender, part.partition()));
  RETURN_IF_ERROR(CheckPart(part.part(), part.parts()));
  const uint64_t whole = part.file_bytes();
  if (whole > MostFileBytes(*state.model(), part.partition())) {
    return Invalid("a file of ", whole, " bytes as the state of partition ", part.partition());
  }
  // All parts but the last have the same size.
  if (bytes == 0 || part.parts() > whole ||
      bytes * std::max<uint64_t>(1, part.parts() - 1) > whole) {
    return Invalid("a part of ", bytes, " bytes, one of ", part.parts(), " of ", whole, " bytes");
  }
  const bool synchronous = state.view()->synchronous();
  const uint64_t last = synchronous ? state.LastStep() : state.TotalSamples();
  if (last > 0 && part.version() > std::max(last, state.view()->proto().first_step())) {
    return Invalid("version ", part.version(), " in a job of ", last,
                   synchronous ? " steps" : " samples");
  }
  return absl::OkStatus();
}

namespace {

absl::Status CheckGradients(const ShardState& state, uint64_t sender,
                            const v1::CopyEntry::Gradients& part) {
  constexpr uint32_t kMaxParts = 1 << 20;
  RETURN_IF_ERROR(CheckOwner(state, sender, part.partition()));
  RETURN_IF_ERROR(CheckPart(part.part(), part.parts()));
  if (part.parts() > std::min(kMaxParts, 1 + state.model()->BlockCount(part.partition()))) {
    return Invalid(part.parts(), " parts of the gradients of partition ", part.partition());
  }
  if (!std::isfinite(part.gradient_scale()) || !std::isfinite(part.buffer_scale())) {
    return Invalid("a scale that is not finite");
  }
  return absl::OkStatus();
}

absl::Status CheckSamples(const ShardState& state, const v1::Range& range) {
  const Interval samples = FromProto(range);
  if (!samples.empty() && samples.end <= state.TotalSamples()) return absl::OkStatus();
  return Invalid("samples ", Name(samples), " of ", state.TotalSamples());
}

absl::Status CheckUpdateClock(uint64_t clock) {
  constexpr uint64_t kMaxClock = uint64_t{1} << 62;
  if (clock <= kMaxClock) return absl::OkStatus();
  return Invalid("clock ", clock, " is past the last possible one");
}

absl::Status CheckCopiedApply(const ShardState& state, const v1::Apply& apply) {
  RETURN_IF_ERROR(CheckUpdateClock(apply.clock()));
  RETURN_IF_ERROR(CheckSamples(state, apply.samples()));
  // The owner may have applied one update of each member that is in flight here.
  const uint64_t highest = state.updates() + 2 * state.view()->members();
  if (apply.ordinal() > highest || apply.staleness() > apply.ordinal()) {
    return Invalid("ordinal ", apply.ordinal(), " and staleness ", apply.staleness(), " while ",
                   state.updates(), " updates are applied here");
  }
  if (apply.non_finite() || (std::isfinite(apply.square_sum()) && apply.square_sum() >= 0)) {
    return absl::OkStatus();
  }
  return Invalid("a sum of squares of ", apply.square_sum());
}

// Synchronous: a step of a partition.
absl::Status CheckStep(const ShardState& state, uint64_t sender, const v1::CopyEntry& entry) {
  if (!entry.has_gradients()) return Invalid("entry ", entry.sequence(), " is not a step");
  RETURN_IF_ERROR(CheckGradients(state, sender, entry.gradients()));
  const uint64_t step = entry.gradients().number();
  if (const uint64_t last = state.LastStep(); last > 0 && step >= last) {
    return Invalid("step ", step, " in a job of ", last, " steps");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckCopyEntry(const ShardState& state, uint64_t sender, const v1::CopyEntry& entry) {
  if (entry.sequence() == 0) return Invalid("an entry without a sequence number");
  if (entry.worker() == 0) return CheckStep(state, sender, entry);
  if (!state.view()->MemberIndex(entry.worker()).has_value()) {
    return Invalid("an entry of a worker that is not a member");
  }
  switch (entry.entry_case()) {
    case v1::CopyEntry::kGradients:
      RETURN_IF_ERROR(CheckGradients(state, sender, entry.gradients()));
      if (entry.gradients().number() == 0) return Invalid("an update without a clock");
      return CheckUpdateClock(entry.gradients().number());
    case v1::CopyEntry::kApplied:
      return CheckCopiedApply(state, entry.applied());
    case v1::CopyEntry::kLeased:
      RETURN_IF_ERROR(CheckOwner(state, sender, 0));
      RETURN_IF_ERROR(CheckUpdateClock(entry.leased().clock()));
      return CheckSamples(state, entry.leased().samples());
    case v1::CopyEntry::ENTRY_NOT_SET:
      break;
  }
  return Invalid("an empty entry");
}

}  // namespace sluice::ps
