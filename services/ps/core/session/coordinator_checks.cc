#include "services/ps/core/session/coordinator_checks.h"

#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "services/common/check.h"
#include "services/common/status_macros.h"
#include "services/protocol/ids.h"
#include "services/protocol/samples/job_length.h"
#include "services/ps/core/base/check_errors.h"

namespace sluice::ps {
namespace {

absl::Status CheckOwners(const google::protobuf::RepeatedField<uint32_t>& owner, int shards,
                         uint32_t partitions, absl::string_view what) {
  if (static_cast<uint32_t>(owner.size()) != partitions) {
    return Invalid(what, " has owners of ", owner.size(), " partitions; the layout has ",
                   partitions);
  }
  for (const uint32_t position : owner) {
    if (position >= static_cast<uint32_t>(shards)) {
      return Invalid(what, " gives a partition to shard ", position, " of ", shards);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckCopies(const ShardState& state, const v1::View& view,
                         const google::protobuf::RepeatedField<uint32_t>& list,
                         absl::string_view what) {
  if (list.empty()) return absl::OkStatus();
  if (!MovesPartitions(state.job()))
    return Invalid("it has copies, which the job's shards do not make");

  if (list.size() != view.owner_size()) {
    return Invalid("it has a ", what, " for ", list.size(), " of ", view.owner_size(),
                   " partitions");
  }

  for (int p = 0; p < list.size(); ++p) {
    if (list[p] > static_cast<uint32_t>(view.shards_size())) {
      return Invalid("its ", what, " of partition ", p, " is shard ", list[p] - 1, " of ",
                     view.shards_size());
    }
    if (list[p] == view.owner(p) + 1) {
      return Invalid("its ", what, " of partition ", p, " is the owner");
    }
    if (list[p] > 0 && p < view.follower_size() && p < view.target_size() &&
        view.follower(p) == view.target(p)) {
      return Invalid("follower and target of partition ", p, " are one shard");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckShards(const ShardState& state, const v1::View& view) {
  absl::flat_hash_set<uint64_t> shards;
  for (const v1::View::Shard& shard : view.shards()) {
    if (!shards.insert(shard.process().incarnation()).second) {
      return Invalid("it names a shard twice");
    }
  }
  // A shard whose partitions have all moved away is left out of a later view, and then released.
  if (shards.count(state.self()) == 0 && !state.view().has_value()) {
    return Invalid("this shard is not in it");
  }

  absl::Status owners =
      CheckOwners(view.owner(), view.shards_size(), state.model()->partitions(), "it");
  RETURN_IF_ERROR(owners);

  RETURN_IF_ERROR(CheckCopies(state, view, view.follower(), "follower"));
  return CheckCopies(state, view, view.target(), "target");
}

// Requires a list that has passed CheckCopies.
absl::Status CheckWhole(const google::protobuf::RepeatedField<uint32_t>& whole,
                        const google::protobuf::RepeatedField<uint32_t>& list,
                        absl::string_view what) {
  for (const uint32_t partition : whole) {
    if (partition < static_cast<uint32_t>(list.size()) && list[static_cast<int>(partition)] > 0) {
      continue;
    }
    return Invalid("it says that the ", what, " of partition ", partition,
                   " holds a whole copy, and names none");
  }
  return absl::OkStatus();
}

absl::Status CheckMembers(const ShardState& state, const v1::View& view) {
  absl::flat_hash_set<uint64_t> members;
  IntervalSet assigned;
  for (const v1::View::Member& member : view.workers()) {
    if (!members.insert(member.process().incarnation()).second) {
      return Invalid("it names a member twice");
    }
    if (!IsSynchronous(view.mode())) continue;
    for (const v1::Range& range : member.microbatches()) {
      const Interval microbatches = FromProto(range);
      if (microbatches.empty() || assigned.Intersects(microbatches)) {
        return Invalid("it assigns microbatches ", Name(microbatches), " twice, or none");
      }
      if (state.plan().has_value() && microbatches.end > state.plan()->MicrobatchesPerStep()) {
        return Invalid("it assigns microbatches ", Name(microbatches), " of ",
                       state.plan()->MicrobatchesPerStep());
      }
      assigned.Add(microbatches);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckProgress(const ShardState& state, uint64_t begun, const v1::Install& install) {
  const v1::View& view = install.view();
  const bool synchronous = IsSynchronous(view.mode());
  const uint64_t length = synchronous ? state.LastStep() : state.TotalSamples();
  if (length > 0 && view.first_step() > std::max(length, begun)) {
    return Invalid("it begins at ", view.first_step(), " of ", length,
                   synchronous ? " steps" : " samples");
  }
  if (synchronous) {
    if (install.committed() <= view.first_step()) return absl::OkStatus();
    return Invalid("it begins at step ", view.first_step(), ", and version ", install.committed(),
                   " is committed");
  }

  RETURN_IF_ERROR(IntervalSet::FromProtos(install.ledger().applied()).status(),
                  Invalid("its ledger: ", _.message()));

  absl::flat_hash_set<uint64_t> members;
  for (const v1::View::Member& member : view.workers()) {
    members.insert(member.process().incarnation());
  }

  for (const v1::LeaseRecord& lease : install.leases()) {
    const Interval samples = FromProto(lease.samples());
    if (members.count(lease.worker()) == 0) {
      return Invalid("it leases samples ", Name(samples), " to a worker that is not a member");
    }
    if (samples.end > length) {
      return Invalid("it leases samples ", Name(samples), " of ", length);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckPrepareState(const v1::PrepareState& prepare) {
  return CheckOwners(prepare.owner(), prepare.shards_size(), prepare.layout().partitions(),
                     "the preparation");
}

absl::Status CheckInstall(const ShardState& state, uint64_t begun, const v1::Install& install) {
  SLUICE_DCHECK(state.model() != nullptr,
                "R12: a first state is loaded before a view is installed");
  const v1::View& view = install.view();
  const auto check = [&]() -> absl::Status {
    // Before synchronous training continues, an asynchronous attempt may finish the samples that
    // earlier attempts left open (docs/protocol.md 8.6).
    const bool finishes_leases = state.last_position() != 0 && view.mode() == v1::ASYNCHRONOUS;
    if (view.mode() != state.job().training().mode() && !finishes_leases) {
      return Invalid("its mode is not the job's");
    }
    if (view.layout_hash() != 0 && view.layout_hash() != state.model()->layout_hash()) {
      return Invalid("its layout is not the shard's");
    }
    RETURN_IF_ERROR(CheckShards(state, view));
    RETURN_IF_ERROR(CheckWhole(install.whole_followers(), view.follower(), "follower"));
    RETURN_IF_ERROR(CheckWhole(install.whole_targets(), view.target(), "target"));
    RETURN_IF_ERROR(CheckMembers(state, view));
    RETURN_IF_ERROR(CheckDecisions(install.decisions()));
    return CheckProgress(state, begun, install);
  };

  absl::Status fits = check();
  if (fits.ok()) return fits;
  return Invalid("view ", ShortName(view.id()),
                 " contradicts what this shard knows: ", fits.message());
}

absl::Status CheckCommitted(const ShardState& state, const v1::Committed& committed) {
  // A shard without partitions has no version.
  if (state.view()->owned().empty() || committed.version() <= state.LowestVersion()) {
    return absl::OkStatus();
  }
  return Invalid("the coordinator says that version ", committed.version(),
                 " is committed; this shard has closed ", state.LowestVersion());
}

absl::Status CheckDecisions(const v1::EvaluationDecisions& decisions) {
  const double factor = decisions.learning_rate_factor();
  if (factor >= 0 && factor <= 1) return absl::OkStatus();
  return Invalid("the learning rate's factor from step ", decisions.step(), " on is ", factor,
                 "; it should be from 0 to 1");
}

absl::Status CheckOpenSnapshot(const ShardState& state, const v1::OpenSnapshot& snapshot) {
  if (snapshot.snapshot_id() == 0) return Invalid("a snapshot without a number");
  const uint64_t last = state.LastStep();
  if (state.view()->synchronous() && last > 0 &&
      snapshot.step() > std::max(last, state.HighestVersion())) {
    return Invalid("snapshot ", snapshot.snapshot_id(), " is of step ", snapshot.step(), " of ",
                   last);
  }
  return absl::OkStatus();
}

}  // namespace sluice::ps
