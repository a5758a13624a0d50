#include "services/ps/core/session/frame_checks.h"

#include <google/protobuf/unknown_field_set.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "services/common/check.h"
#include "services/common/status_macros.h"
#include "services/protocol/ids.h"
#include "services/protocol/wire_version.h"
#include "services/protocol/worker_limits.h"
#include "services/ps/core/base/check_errors.h"

namespace sluice::ps {
namespace {

// The overhead of protobuf and the allocator for a nested message.
constexpr size_t kNestedOverhead = 24;

uint64_t SaturatingSum(uint64_t a, uint64_t b) {
  return a > std::numeric_limits<uint64_t>::max() - b ? std::numeric_limits<uint64_t>::max()
                                                      : a + b;
}

uint64_t SaturatingProduct(uint64_t a, uint64_t b) {
  return a != 0 && b > std::numeric_limits<uint64_t>::max() / a
             ? std::numeric_limits<uint64_t>::max()
             : a * b;
}

// Whether a number occurs twice.
template <typename Numbers>
bool HasRepetition(const Numbers& numbers) {
  const auto not_above = [](auto a, auto b) { return a >= b; };
  if (std::adjacent_find(numbers.begin(), numbers.end(), not_above) == numbers.end()) return false;

  // The numbers are not ascending: few are compared in pairs, many are sorted first.
  constexpr int kFew = 32;
  const int size = numbers.size();
  if (size <= kFew) {
    for (int i = 1; i < size; ++i) {
      if (std::find(numbers.begin(), numbers.begin() + i, numbers[i]) != numbers.begin() + i) {
        return true;
      }
    }
    return false;
  }

  std::vector<typename Numbers::value_type> sorted(numbers.begin(), numbers.end());
  std::sort(sorted.begin(), sorted.end());
  return std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end();
}

template <typename Numbers>
absl::Status CheckOwned(const ShardState& state, const Numbers& partitions) {
  for (const uint32_t number : partitions) {
    if (state.Find(number) == nullptr) {
      return Invalid("partition ", number, " is not owned by this shard, or empty");
    }
  }
  if (HasRepetition(partitions)) return Invalid("a partition is named twice in one frame");
  return absl::OkStatus();
}

absl::Status CheckClock(const UpdateFacts& facts, uint64_t clock) {
  SLUICE_DCHECK(facts.applied <= facts.highest_clock, "an applied clock was allowed");
  if (clock <= facts.highest_clock) return absl::OkStatus();
  return Invalid("clock ", clock, " is ahead of the worker, whose next update is ",
                 facts.highest_clock, " at most");
}

absl::Status CheckPermit(const ShardState& state, const UpdateFacts& facts, uint64_t clock) {
  if (!state.view()->is_arbiter()) return absl::OkStatus();
  if (facts.permit != nullptr && facts.permit->clock() == clock) return absl::OkStatus();
  return Invalid("update ", clock, " has no permit");
}

absl::Status CheckOrdinal(const ShardState& state, const UpdateFacts& facts, uint64_t ordinal) {
  if (state.view()->is_arbiter()) {
    SLUICE_DCHECK(facts.permit != nullptr, "an ordinal is compared with that of a permit");
    if (ordinal == facts.permit->ordinal()) return absl::OkStatus();
    return Invalid("ordinal ", ordinal, " is not the permit's, ", facts.permit->ordinal());
  }
  // Each member has at most one update in flight.
  const uint64_t highest = state.updates() + state.view()->members();
  if (ordinal <= highest) return absl::OkStatus();
  return Invalid("ordinal ", ordinal, " while ", state.updates(), " updates are applied here and ",
                 state.view()->members(), " members have one in flight each");
}

absl::Status CheckNorm(double square_sum, bool non_finite) {
  if (non_finite || (std::isfinite(square_sum) && square_sum >= 0)) return absl::OkStatus();
  return Invalid("a sum of squares of ", square_sum);
}

}  // namespace

// ---------------------------------------------------------------- any stream

absl::Status CheckHello(const ShardState& state, const v1::Hello& hello) {
  const WireVersions spoken = SpokenWireVersions();
  if (hello.min_wire_version() > spoken.newest || hello.max_wire_version() < spoken.oldest) {
    return absl::FailedPreconditionError(
        absl::StrCat("this shard speaks wire versions ", spoken.oldest, " to ", spoken.newest,
                     ", the peer ", hello.min_wire_version(), " to ", hello.max_wire_version()));
  }

  if (hello.job() != state.options().identity.job()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "this shard serves job '", state.options().identity.job(), "', not '", hello.job(), "'"));
  }

  if (hello.shard_incarnation() != state.self()) {
    return absl::NotFoundError("the Hello names another instance of this shard");
  }

  const v1::Role role = hello.sender().role();
  if (role != v1::WORKER && role != v1::SHARD && role != v1::READER) {
    return absl::PermissionDeniedError("the data plane is for workers, shards and readers");
  }
  if (hello.sender().incarnation() == 0) return Invalid("a Hello without an incarnation");
  if (role == v1::SHARD && hello.sender().incarnation() == state.self()) {
    return absl::PermissionDeniedError("the sender says that it is this shard itself");
  }
  return absl::OkStatus();
}

absl::Status CheckSender(v1::Role role, const v1::Header& header) {
  const v1::Header::BodyCase body = header.body_case();
  if (role == v1::READER) {
    if (body == v1::Header::kPull && header.pull().snapshot_id() != 0) return absl::OkStatus();
    return absl::PermissionDeniedError("a reader may pull pinned versions only");
  }

  if (role == v1::SHARD) {
    switch (body) {
      case v1::Header::kNorms:
      case v1::Header::kStepParticipants:
      case v1::Header::kCopyState:
      case v1::Header::kCopyEntry:
      case v1::Header::kCopyAck:
      case v1::Header::kCopyWhole:
        return absl::OkStatus();
      default:
        return Invalid("frame ", body, " of a shard is not for a shard");
    }
  }

  switch (body) {
    case v1::Header::kPush:
    case v1::Header::kPull:
    case v1::Header::kInitPush:
    case v1::Header::kLeaseRequest:
    case v1::Header::kPermitRequest:
    case v1::Header::kApply:
    case v1::Header::kStepSum:
      return absl::OkStatus();
    default:
      return Invalid("frame ", body, " of a worker is not for a shard");
  }
}

namespace {

// Fields of a later version, or of a hostile peer: the sizes that HeaderMemory knows leave them
// out.
bool HasUnknownFields(const v1::Header& header) {
  const auto in = [](const auto&... messages) {
    return (... || !messages.GetReflection()->GetUnknownFields(messages).empty());
  };
  const auto in_any = [&in](const auto& messages) {
    return std::any_of(messages.begin(), messages.end(),
                       [&in](const auto& message) { return in(message); });
  };

  if (in(header, header.view(), header.view().term())) return true;
  switch (header.body_case()) {
    case v1::Header::kPush: {
      const v1::Push& push = header.push();
      return in(push, push.microbatches(), push.apply(), push.apply().samples()) ||
             in_any(push.blocks());
    }
    case v1::Header::kPull:
      return in(header.pull()) || in_any(header.pull().rows());
    case v1::Header::kInitPush: {
      const v1::InitPush& push = header.init_push();
      return in(push, push.init_id(), push.init_id().term()) || in_any(push.blocks());
    }
    case v1::Header::kNorms:
      return in(header.norms()) || in_any(header.norms().partitions());
    case v1::Header::kStepParticipants:
      return in(header.step_participants());
    case v1::Header::kLeaseRequest:
      return in(header.lease_request());
    case v1::Header::kPermitRequest:
      return in(header.permit_request());
    case v1::Header::kApply:
      return in(header.apply(), header.apply().samples());
    case v1::Header::kStepSum:
      return in(header.step_sum());
    default:
      return true;
  }
}

}  // namespace

size_t HeaderMemory(const v1::Header& header) {
  if (HasUnknownFields(header)) return header.SpaceUsedLong();

  constexpr size_t kBlock = sizeof(v1::BlockHeader) + kNestedOverhead;
  constexpr size_t kFixed =
      sizeof(v1::Header) + sizeof(v1::ViewId) + sizeof(v1::Term) + 3 * kNestedOverhead;

  switch (header.body_case()) {
    case v1::Header::kPush:
      return kFixed + sizeof(v1::Push) + header.push().blocks_size() * kBlock +
             header.push().complete_size() * sizeof(uint32_t);
    case v1::Header::kPull:
      return kFixed + sizeof(v1::Pull) +
             header.pull().rows_size() * (sizeof(v1::RowSelection) + kNestedOverhead) +
             header.pull().partitions_size() * sizeof(uint32_t) +
             (header.pull().counted_size() + header.pull().counted_from_size()) * sizeof(uint64_t);
    case v1::Header::kInitPush:
      return kFixed + sizeof(v1::InitPush) + header.init_push().blocks_size() * kBlock;
    case v1::Header::kNorms:
      return kFixed + sizeof(v1::Norms) +
             header.norms().partitions_size() *
                 (sizeof(v1::Norms::PartitionNorm) + kNestedOverhead);
    case v1::Header::kStepParticipants:
      return kFixed + sizeof(v1::StepParticipants) +
             header.step_participants().members_size() * sizeof(uint64_t);
    case v1::Header::kStepSum:
      return kFixed + sizeof(v1::StepSum) + header.step_sum().name().size();
    case v1::Header::kLeaseRequest:
    case v1::Header::kPermitRequest:
    case v1::Header::kApply:
      return kFixed + sizeof(v1::Apply);
    default:
      // A Hello, a frame for copies, or a frame that no peer sends to a shard.
      return header.SpaceUsedLong();
  }
}

// ---------------------------------------------------------------- synchronous training

namespace {

absl::Status CheckMicrobatches(const ShardState& state, size_t member, const v1::Push& push) {
  SLUICE_DCHECK(member < state.view()->members(), "contributions are checked of members only");

  const Interval range = FromProto(push.microbatches());
  if (range.empty() || !state.view()->Assigned(member).ContainsAll(range)) {
    return Invalid("microbatches ", Name(range), " are not assigned to the sender");
  }

  const uint64_t size = range.size();
  if (state.job().training().bit_exact() && ((size & (size - 1)) != 0 || range.begin % size != 0)) {
    return Invalid("microbatches ", Name(range), " are not a node of the reduction tree");
  }
  if (!state.job().training().bit_exact()) return absl::OkStatus();

  // Smaller nodes would have to be kept one by one until their siblings arrive.
  const uint64_t parent_begin = range.begin - range.begin % (2 * size);
  const Interval parent{parent_begin, parent_begin + 2 * size};
  if (state.view()->Assigned(member).ContainsAll(parent)) {
    return Invalid("microbatches ", Name(range), " are half of node ", Name(parent),
                   ", which is assigned to the sender and must be pushed as one");
  }
  return absl::OkStatus();
}

absl::Status CheckWeight(const v1::Push& push) {
  if (!push.has_weight() || IsWeight(push.weight())) return absl::OkStatus();
  return Invalid("a weight of ", push.weight(), "; it should be from 0 to ", kMaxWeight);
}

// The sender must contribute exactly the microbatches that the view assigns to it.
absl::Status CheckContribution(const ShardState& state, size_t member, const v1::Push& push) {
  if (!state.plan().has_value()) return absl::OkStatus();
  const StepSchedule& plan = *state.plan();
  const uint64_t of_step = plan.MicrobatchesOfStep(push.step());

  uint64_t samples = 0;
  uint64_t microbatches = 0;
  for (const v1::Range& range :
       state.view()->proto().workers(static_cast<int>(member)).microbatches()) {
    samples += plan.PositionsOf(push.step(), {range.begin(), range.end()}).size();
    if (range.begin() < of_step) microbatches += std::min(range.end(), of_step) - range.begin();
  }

  if (push.samples() != samples || push.microbatch_count() != microbatches) {
    return Invalid("step ", push.step(), " is complete with ", push.samples(), " samples in ",
                   push.microbatch_count(), " microbatches; the sender has ", samples, " in ",
                   microbatches);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckStepPush(const ShardState& state, size_t member, const v1::Push& push) {
  if (push.clock() != 0 || push.ordinal() != 0 || push.has_apply()) {
    return Invalid("a push with clock ", push.clock(), " in synchronous training");
  }

  RETURN_IF_ERROR(CheckWeight(push));
  if (push.blocks_size() > 0) {
    if (state.Find(push.partition()) == nullptr) {
      return Invalid("partition ", push.partition(), " is not owned by this shard, or empty");
    }
    RETURN_IF_ERROR(CheckMicrobatches(state, member, push));
  }
  RETURN_IF_ERROR(CheckOwned(state, push.complete()));

  // The sender holds all partitions at this step, so each partition has reached it.
  if (const uint64_t lowest = state.LowestVersion(); push.step() > lowest) {
    return Invalid("step ", push.step(), " is pushed while a partition of this shard is at ",
                   "version ", lowest);
  }

  if (const uint64_t last = state.LastStep(); last > 0 && push.step() >= last) {
    return Invalid("step ", push.step(), " is pushed in a job of ", last, " steps");
  }
  return push.complete().empty() ? absl::OkStatus() : CheckContribution(state, member, push);
}

absl::Status CheckVersionPull(const ShardState& state, const v1::Pull& pull) {
  if (pull.clock() != 0 || pull.counted_size() > 0 || pull.counted_from_size() > 0) {
    return Invalid("a pull with clock ", pull.clock(), " in synchronous training");
  }
  RETURN_IF_ERROR(CheckOwned(state, pull.partitions()));

  const auto check = [&](uint32_t number) {
    SLUICE_DCHECK(state.Find(number) != nullptr, "a shard holds the partitions that it owns");
    const uint64_t version = state.Find(number)->version();
    if (pull.version() <= SaturatingSum(version, 1)) return absl::OkStatus();
    return Invalid("version ", pull.version(), " of partition ", number,
                   " is requested, which is at ", version);
  };

  const auto& owned = state.view()->owned();
  if (!pull.partitions().empty()) {
    for (const uint32_t number : pull.partitions()) {
      RETURN_IF_ERROR(check(number));
    }
  } else {
    for (const uint32_t number : owned) {
      RETURN_IF_ERROR(check(number));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckNorms(const ShardState& state, uint64_t sender, uint64_t step,
                        const v1::Norms& norms) {
  if (norms.step() > step) {
    return Invalid("norms of step ", norms.step(), " while this shard is at step ", step);
  }
  const v1::View& view = state.view()->proto();

  absl::flat_hash_set<uint32_t> seen;
  for (const v1::Norms::PartitionNorm& entry : norms.partitions()) {
    const uint32_t number = entry.partition();
    const bool owned =
        number < state.model()->partitions() && !state.model()->IsEmpty(number) &&
        number < static_cast<uint32_t>(view.owner_size()) &&
        view.owner(static_cast<int>(number)) < static_cast<uint32_t>(view.shards_size()) &&
        view.shards(static_cast<int>(view.owner(static_cast<int>(number))))
                .process()
                .incarnation() == sender;
    if (!owned) return Invalid("partition ", number, " is not owned by the sender");
    if (!seen.insert(number).second) return Invalid("partition ", number, " has two norms");
    RETURN_IF_ERROR(CheckNorm(entry.square_sum(), entry.non_finite()));
  }
  return absl::OkStatus();
}

absl::Status CheckStepParticipants(const ShardState& state, uint64_t sender,
                                   const v1::StepParticipants& set) {
  const v1::View& view = state.view()->proto();
  const bool decides =
      view.owner_size() > 0 && view.owner(0) < static_cast<uint32_t>(view.shards_size()) &&
      view.shards(static_cast<int>(view.owner(0))).process().incarnation() == sender;
  if (!decides) {
    return absl::PermissionDeniedError(
        absl::StrCat("the participants of step ", set.step(),
                     " come from a shard that does not own partition 0"));
  }

  if (const uint64_t lowest = state.LowestVersion(); set.step() > lowest) {
    return Invalid("the participants of step ", set.step(), " while this shard is at step ",
                   lowest);
  }

  for (const uint64_t incarnation : set.members()) {
    if (!state.view()->MemberIndex(incarnation).has_value()) {
      return Invalid("the participants of step ", set.step(),
                     " name a process that is not a member of the view");
    }
  }

  if (set.members().empty()) return Invalid("step ", set.step(), " has no participants");
  if (HasRepetition(set.members())) {
    return Invalid("the participants of step ", set.step(), " name a member twice");
  }
  return absl::OkStatus();
}

// ---------------------------------------------------------------- asynchronous training

uint64_t HighestClock(const ShardState& state, uint64_t recorded, bool reported) {
  const uint64_t next = SaturatingSum(recorded, 1);
  const uint64_t attempt = state.view()->id().attempt();
  if (state.view()->is_arbiter() && (reported || attempt <= 1)) return next;
  // Each attempt applies each sample once, and an update has at least one. One below the highest
  // number, so that a clock plus one is a valid clock.
  const uint64_t possible = SaturatingProduct(attempt, state.TotalSamples());
  return std::max(next, std::min(possible, std::numeric_limits<uint64_t>::max() - 1));
}

absl::Status CheckUpdatePush(const ShardState& state, const UpdateFacts& facts,
                             const v1::Push& push) {
  SLUICE_DCHECK(facts.staged != 0 || (!facts.whole && !facts.named),
                "an update without a clock has no content");
  if (push.clock() == 0) return Invalid("a push without a clock");
  if (push.step() != 0 || push.pull_next()) {
    return Invalid("a push of step ", push.step(), " in asynchronous training");
  }

  RETURN_IF_ERROR(CheckWeight(push));
  RETURN_IF_ERROR(CheckOwned(state, push.complete()));

  if (push.blocks_size() > 0) {
    if (state.Find(push.partition()) == nullptr) {
      return Invalid("partition ", push.partition(), " is not owned by this shard, or empty");
    }
    if (!(FromProto(push.microbatches()) == Interval{0, 1})) {
      return Invalid("microbatches ", Name(FromProto(push.microbatches())),
                     " of an asynchronous update, which is one piece, [0, 1)");
    }
  }

  if (push.has_apply() && push.apply().clock() != push.clock()) {
    return Invalid("a push and its Apply are of different updates");
  }

  // A repetition is not compared with the current permit: its update may have been applied since.
  if (push.clock() <= facts.applied) return absl::OkStatus();  // a repetition
  if (facts.staged != 0 && facts.staged != push.clock()) {
    return Invalid("update ", push.clock(), " is pushed while ", facts.staged,
                   " waits for its Apply");
  }

  RETURN_IF_ERROR(CheckClock(facts, push.clock()));
  RETURN_IF_ERROR(CheckPermit(state, facts, push.clock()));

  if (push.complete().empty()) return absl::OkStatus();

  RETURN_IF_ERROR(CheckOrdinal(state, facts, push.ordinal()));
  if (facts.named && push.samples() != facts.samples) {
    return Invalid("update ", push.clock(), " is of ", push.samples(), " samples, and was of ",
                   facts.samples);
  }

  if (push.samples() > state.TotalSamples()) {
    return Invalid("an update of ", push.samples(), " samples in a job of ", state.TotalSamples());
  }

  // The number of microbatches follows from the number of samples.
  const uint64_t microbatch = state.job().training().microbatch_size();
  if (!state.plan().has_value() || microbatch == 0) return absl::OkStatus();
  const uint64_t microbatches = push.samples() / microbatch + (push.samples() % microbatch != 0);
  if (push.microbatch_count() != microbatches) {
    return Invalid(push.samples(), " samples in ", push.microbatch_count(),
                   " microbatches; they are ", microbatches);
  }
  return absl::OkStatus();
}

absl::Status CheckApply(const ShardState& state, const UpdateFacts& facts, const v1::Apply& apply,
                        const IntervalSet& applied, const GradientNorm* own) {
  const bool bare = state.view()->owned().empty();
  if (!bare && (facts.staged != apply.clock() || !facts.whole)) {
    return Invalid("Apply of update ", apply.clock(), ", which is not staged whole");
  }

  RETURN_IF_ERROR(CheckClock(facts, apply.clock()));

  const Interval samples = FromProto(apply.samples());
  if (samples.empty() || samples.end > state.TotalSamples()) {
    return Invalid("update ", apply.clock(), " covers samples ", Name(samples), " of ",
                   state.TotalSamples());
  }

  if (state.rules().IgnoreAppliedClocks() && applied.Intersects(samples)) {
    return Invalid("samples ", Name(samples), " of update ", apply.clock(), " were applied before");
  }

  const bool exact = state.plan().has_value();
  if (!bare && (exact ? facts.samples != samples.size() : facts.samples > samples.size())) {
    return Invalid("update ", apply.clock(), " covers samples ", Name(samples),
                   "; its pushes are of ", facts.samples);
  }

  RETURN_IF_ERROR(CheckPermit(state, facts, apply.clock()));
  RETURN_IF_ERROR(CheckOrdinal(state, facts, apply.ordinal()));

  const bool stale = state.view()->is_arbiter() ? apply.staleness() != facts.permit->staleness()
                                                : apply.staleness() > apply.ordinal();
  if (stale) {
    return Invalid("a staleness of ", apply.staleness(), " of update ", apply.clock(),
                   " with ordinal ", apply.ordinal(), " is not the permit's");
  }

  if (apply.pull_next() && state.view()->proto().mode() == v1::BOUNDED_STALENESS) {
    return Invalid("pull_next with bounded staleness, where a pull waits for slow workers");
  }

  // The total over all shards cannot be less than this shard's own part.
  RETURN_IF_ERROR(CheckNorm(apply.square_sum(), apply.non_finite()));
  if (own == nullptr) return absl::OkStatus();
  if (own->non_finite && !apply.non_finite()) {
    return Invalid("update ", apply.clock(), " is called finite but is not finite on this shard");
  }
  // The sum over all partitions was added in a different order than the shard's own part.
  constexpr double kRounding = 1 - 1e-9;
  if (!apply.non_finite() && apply.square_sum() < own->square_sum * kRounding) {
    return Invalid("a sum of squares of ", apply.square_sum(), ", of which this shard alone has ",
                   own->square_sum);
  }
  return absl::OkStatus();
}

absl::Status CheckLivePull(const ShardState& state, const UpdateFacts& facts,
                           const v1::Pull& pull) {
  RETURN_IF_ERROR(CheckOwned(state, pull.partitions()));
  RETURN_IF_ERROR(CheckClock(facts, pull.clock()));

  if (pull.counted().empty() && pull.counted_from().empty()) return absl::OkStatus();
  if (state.view()->proto().mode() != v1::BOUNDED_STALENESS || state.view()->is_arbiter()) {
    return Invalid("a pull names counted workers, but this shard does not need them");
  }

  if (static_cast<size_t>(pull.counted_size()) > state.view()->members() ||
      pull.counted_from_size() > pull.counted_size()) {
    return Invalid("a pull names ", pull.counted_size(), " counted workers and ",
                   pull.counted_from_size(), " clocks of them; the view has ",
                   state.view()->members(), " members");
  }

  if (HasRepetition(pull.counted())) return Invalid("a pull names a counted worker twice");
  for (const uint64_t clock : pull.counted_from()) {
    const uint64_t highest = HighestClock(state, facts.applied, /*reported=*/false);
    if (clock > highest) {
      return Invalid("a pull counts a worker from clock ", clock, "; the job has had ", highest,
                     " updates at most");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckLeaseRequest(const ShardState& state, const UpdateFacts& facts,
                               const v1::LeaseRequest& request) {
  if (!state.view()->is_arbiter()) {
    return Invalid("leases and permits are requested from the owner of partition 0");
  }
  return CheckClock(facts, request.clock());
}

absl::Status CheckPermitRequest(const ShardState& state, const UpdateFacts& facts,
                                const v1::PermitRequest& request) {
  if (!state.view()->is_arbiter()) {
    return Invalid("leases and permits are requested from the owner of partition 0");
  }

  if (request.clock() <= facts.applied) return absl::OkStatus();  // a repetition

  RETURN_IF_ERROR(CheckClock(facts, request.clock()));
  if (!facts.holds_lease && state.rules().RepeatLeases()) {
    return Invalid("a permit for update ", request.clock(), " is requested without a lease");
  }

  if (request.base_version() > state.updates()) {
    return Invalid("update ", request.clock(), " is of version ", request.base_version(), "; ",
                   state.updates(), " updates are applied");
  }
  return absl::OkStatus();
}

// ---------------------------------------------------------------- pinned versions, version 0

absl::Status CheckSnapshotPull(const v1::Pull& pull) {
  if (pull.rows_size() > 0 || pull.counted_size() > 0 || pull.counted_from_size() > 0) {
    return Invalid("a pull of snapshot ", pull.snapshot_id(),
                   " names rows or workers; snapshots are whole");
  }
  if (HasRepetition(pull.partitions())) return Invalid("a partition is named twice in one frame");
  return absl::OkStatus();
}

absl::Status CheckInitPush(uint64_t pusher, uint64_t sender, const v1::InitPush& push) {
  if (pusher == 0 || pusher == sender) return absl::OkStatus();
  return Invalid("version 0 of init request ", ShortName(push.init_id()),
                 " is pushed by a second worker; all of it comes from one");
}

}  // namespace sluice::ps
