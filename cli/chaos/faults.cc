#include "cli/chaos/faults.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "services/common/arithmetic/splitmix64.h"
#include "services/common/status_macros.h"

namespace sluice::chaos {
namespace {

// Shorter faults would have no effect on the processes.
constexpr absl::Duration kShortest = absl::Milliseconds(100);
// Slow links: between a distant office and a bad wireless network.
constexpr absl::Duration kLeastDelay = absl::Milliseconds(10);
constexpr absl::Duration kMostDelay = absl::Milliseconds(100);
constexpr double kSlowBytesPerSecond = 10e6;
// The most processes that one fault hits.
constexpr size_t kMaxTargets = 64;
// The purpose of a random number. Every use of a fault's seed has a number of its own. From kTarget
// on there is one for each role.
enum Draw : uint64_t { kDelay, kLasting, kOrder, kTarget, kLink = 64 };

struct ActionWord {
  Action action;
  const char* word;
};
constexpr ActionWord kActions[] = {{Action::kKill, "kill"},      {Action::kFreeze, "freeze"},
                                   {Action::kTerminate, "term"}, {Action::kScale, "scale"},
                                   {Action::kCut, "cut"},        {Action::kSlow, "slow"},
                                   {Action::kFill, "fill"}};
// The only target of kFill.
constexpr char kDisk[] = "disk";

struct RoleWord {
  v1::Role role;
  const char* word;
};
constexpr RoleWord kRoles[] = {
    {v1::WORKER, "worker"}, {v1::SHARD, "shard"}, {v1::COORDINATOR, "coordinator"}};

const char* WordOf(Action action) {
  for (const ActionWord& one : kActions) {
    if (one.action == action) return one.word;
  }
  return "";
}

const char* WordOf(v1::Role role) {
  for (const RoleWord& one : kRoles) {
    if (one.role == role) return one.word;
  }
  return "";
}

absl::StatusOr<FaultKind> ParseKind(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ':');
  if (parts.size() != 2) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--faults: '", text, "' is not a fault; write ACTION:ROLE, for example kill:worker"));
  }

  FaultKind kind;
  const auto* action = std::find_if(std::begin(kActions), std::end(kActions),
                                    [&](const ActionWord& one) { return parts[0] == one.word; });
  if (action == std::end(kActions)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--faults: there is no fault '", parts[0],
                     "'; there are kill, freeze, term, scale, cut, slow and ", "fill"));
  }

  kind.action = action->action;
  if (kind.action == Action::kFill) {
    if (parts[1] == kDisk) return kind;
    return absl::InvalidArgumentError(absl::StrCat("--faults: '", text, "': write fill:", kDisk));
  }

  for (const absl::string_view word : absl::StrSplit(parts[1], '+')) {
    const auto* role = std::find_if(std::begin(kRoles), std::end(kRoles),
                                    [&](const RoleWord& one) { return word == one.word; });
    if (role == std::end(kRoles)) {
      return absl::InvalidArgumentError(absl::StrCat("--faults: there is no role '", word,
                                                     "'; there are worker, shard and coordinator"));
    }
    kind.roles.push_back(role->role);
  }

  if (kind.action == Action::kScale) {
    const std::set<v1::Role> roles(kind.roles.begin(), kind.roles.end());
    if (roles.count(v1::COORDINATOR) != 0 || roles.size() != kind.roles.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--faults: '", text,
                       "': the number of coordinators is fixed, and a role may occur once; ",
                       "write scale:shard, scale:worker or scale:shard+worker"));
    }
  }

  if (kind.roles.size() > kMaxTargets) {
    return absl::InvalidArgumentError(
        absl::StrCat("--faults: one fault hits at most ", kMaxTargets, " processes"));
  }
  return kind;
}

uint32_t CountOf(v1::Role role, uint32_t workers, uint32_t shards) {
  return role == v1::WORKER ? workers : role == v1::SHARD ? shards : 1;
}

// A number below `count` from draw `draw` of `seed`.
uint64_t Below(uint64_t seed, uint64_t draw, uint64_t count) {
  return SplitMix64At(seed, draw) % count;
}

// The numbers below `count` in an order that the seed determines.
std::vector<uint32_t> Shuffled(uint64_t seed, uint32_t count) {
  std::vector<uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0u);
  for (uint32_t left = count; left > 1; --left) {
    std::swap(order[left - 1], order[Below(seed, left, left)]);
  }
  return order;
}

const FaultKind& KindAt(const ScheduleOptions& options, uint64_t n) {
  const uint64_t turn = n / options.kinds.size();
  const uint64_t seed = SplitMix64At(SplitMix64At(options.seed, kOrder), turn);
  const std::vector<uint32_t> order = Shuffled(seed, static_cast<uint32_t>(options.kinds.size()));
  return options.kinds[order[n % options.kinds.size()]];
}

uint64_t SeedAt(const ScheduleOptions& options, uint64_t n) {
  return SplitMix64At(SplitMix64At(options.seed, kTarget), n);
}

// A number of processes of the role that differs from `current`, if there is one.
uint32_t NextCount(const ScheduleOptions& options, v1::Role role, uint64_t seed, uint32_t current) {
  uint32_t low = role == v1::SHARD ? std::max(1u, options.min_shards) : 1;
  for (const FaultKind& kind : options.kinds) {
    if (kind.action == Action::kScale) continue;
    const auto needed = std::count(kind.roles.begin(), kind.roles.end(), role);
    low = std::max(low, static_cast<uint32_t>(needed));
  }

  uint32_t high = 2 * CountOf(role, options.workers, options.shards);
  if (role == v1::SHARD) high = std::min(high, options.max_shards);

  if (high <= low) return current;
  const auto drawn =
      static_cast<uint32_t>(low + Below(seed, kTarget + static_cast<uint64_t>(role), high - low));
  return drawn < current ? drawn : drawn + 1;
}

// The job's sizes from fault n on.
local::Sizes SizesFrom(const ScheduleOptions& options, uint64_t n) {
  local::Sizes sizes = {options.shards, options.workers};
  for (uint64_t i = 0; i <= n; ++i) {
    const FaultKind& kind = KindAt(options, i);
    if (kind.action != Action::kScale) continue;
    for (const v1::Role role : kind.roles) {
      uint32_t& count = role == v1::SHARD ? sizes.shards : sizes.workers;
      count = NextCount(options, role, SeedAt(options, i), count);
    }
  }
  return sizes;
}

}  // namespace

absl::StatusOr<std::vector<FaultKind>> ParseFaults(absl::string_view text) {
  std::vector<FaultKind> kinds;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    ASSIGN_OR_RETURN(FaultKind kind, ParseKind(absl::StripAsciiWhitespace(part)));
    kinds.push_back(std::move(kind));
  }
  return kinds;
}

std::string KindText(const FaultKind& kind) {
  if (kind.action == Action::kFill) return absl::StrCat(WordOf(kind.action), ":", kDisk);
  return absl::StrCat(WordOf(kind.action), ":",
                      absl::StrJoin(kind.roles, "+",
                                    [](std::string* out, v1::Role role) { *out += WordOf(role); }));
}

bool ScalesShards(const FaultKind& kind) {
  return kind.action == Action::kScale &&
         std::count(kind.roles.begin(), kind.roles.end(), v1::SHARD) > 0;
}

bool DisturbsLinks(Action action) { return action == Action::kCut || action == Action::kSlow; }

bool Lasts(Action action) {
  return action == Action::kFreeze || action == Action::kFill || DisturbsLinks(action);
}

absl::Status CheckFaults(const std::vector<FaultKind>& kinds, uint32_t workers, uint32_t shards) {
  for (const FaultKind& kind : kinds) {
    if (kind.action == Action::kScale) continue;
    for (const RoleWord& role : kRoles) {
      const auto wanted = std::count(kind.roles.begin(), kind.roles.end(), role.role);
      const uint32_t count = CountOf(role.role, workers, shards);
      if (wanted <= static_cast<int64_t>(count)) continue;
      return absl::InvalidArgumentError(absl::StrCat("--faults: ", KindText(kind), " needs ",
                                                     wanted, " processes of the role ", role.word,
                                                     ", and the job has ", count));
    }
  }
  return absl::OkStatus();
}

std::string FaultText(const PlannedFault& fault) {
  if (fault.action == Action::kScale) {
    return absl::StrCat("scale to ", local::SizesText(fault.sizes));
  }

  std::vector<std::string> names;
  for (const policy::Replica& target : fault.targets) names.push_back(policy::ReplicaName(target));
  std::string text =
      absl::StrCat(WordOf(fault.action), " ",
                   fault.action == Action::kFill ? "the disk" : absl::StrJoin(names, " and "));

  if (Lasts(fault.action)) {
    absl::StrAppendFormat(&text, " for %.1f s", absl::ToDoubleSeconds(fault.lasts));
  }
  if (fault.action == Action::kSlow) {
    absl::StrAppendFormat(&text, " (%.0f ms, %.0f MB/s)",
                          absl::ToDoubleMilliseconds(fault.link.delay),
                          fault.link.bytes_per_second / 1e6);
  }
  return text;
}

PlannedFault FaultAt(const ScheduleOptions& options, uint64_t n) {
  const FaultKind& kind = KindAt(options, n);
  const uint64_t seed = SeedAt(options, n);

  PlannedFault fault;
  fault.action = kind.action;
  fault.sizes = SizesFrom(options, n);
  fault.delay = options.every * (0.5 + UnitDouble(SplitMix64At(seed, kDelay)));
  if (kind.action == Action::kScale) return fault;

  if (Lasts(kind.action)) {
    fault.lasts = options.lasting;
    if (fault.lasts == absl::ZeroDuration()) {
      fault.lasts = std::max(
          kShortest, 2 * UnitDouble(SplitMix64At(seed, kLasting)) * options.heartbeat_timeout);
    }
  }

  fault.link.cut = kind.action == Action::kCut;
  if (kind.action == Action::kSlow) {
    fault.link.delay =
        kLeastDelay + UnitDouble(SplitMix64At(seed, kLink)) * (kMostDelay - kLeastDelay);
    fault.link.bytes_per_second = kSlowBytesPerSecond;
  }

  for (const RoleWord& role : kRoles) {
    const auto wanted = std::count(kind.roles.begin(), kind.roles.end(), role.role);
    std::vector<uint32_t> indexes =
        Shuffled(SplitMix64At(seed, kTarget + static_cast<uint64_t>(role.role)),
                 CountOf(role.role, fault.sizes.workers, fault.sizes.shards));
    indexes.resize(static_cast<size_t>(wanted));
    std::sort(indexes.begin(), indexes.end());
    for (const uint32_t index : indexes) fault.targets.push_back({role.role, index});
  }
  return fault;
}

}  // namespace sluice::chaos
