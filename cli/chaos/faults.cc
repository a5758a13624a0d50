#include "cli/chaos/faults.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "services/common/splitmix64.h"
#include "services/common/status_macros.h"

namespace sluice::chaos {
namespace {

// No freeze is shorter: the processes would not notice it.
constexpr absl::Duration kShortestFreeze = absl::Milliseconds(100);
// The most processes that one fault hits.
constexpr size_t kMaxTargets = 64;
// What a random number is drawn for. Every use of a fault's seed has a number of its own.
enum Draw : uint64_t { kDelay, kFreeze, kOrder, kTarget };

struct ActionWord {
  Action action;
  const char* word;
};
constexpr ActionWord kActions[] = {
    {Action::kKill, "kill"}, {Action::kFreeze, "freeze"}, {Action::kTerminate, "term"}};

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
    return absl::InvalidArgumentError(absl::StrCat("--faults: there is no fault '", parts[0],
                                                   "'; there are kill, freeze and term"));
  }
  kind.action = action->action;
  for (const absl::string_view word : absl::StrSplit(parts[1], '+')) {
    const auto* role = std::find_if(std::begin(kRoles), std::end(kRoles),
                                    [&](const RoleWord& one) { return word == one.word; });
    if (role == std::end(kRoles)) {
      return absl::InvalidArgumentError(absl::StrCat("--faults: there is no role '", word,
                                                     "'; there are worker, shard and coordinator"));
    }
    kind.roles.push_back(role->role);
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
  return absl::StrCat(WordOf(kind.action), ":",
                      absl::StrJoin(kind.roles, "+",
                                    [](std::string* out, v1::Role role) { *out += WordOf(role); }));
}

absl::Status CheckFaults(const std::vector<FaultKind>& kinds, uint32_t workers, uint32_t shards) {
  for (const FaultKind& kind : kinds) {
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
  std::vector<std::string> names;
  for (const policy::Replica& target : fault.targets) names.push_back(policy::ReplicaName(target));
  std::string text = absl::StrCat(WordOf(fault.action), " ", absl::StrJoin(names, " and "));
  if (fault.action == Action::kFreeze) {
    absl::StrAppendFormat(&text, " for %.1f s", absl::ToDoubleSeconds(fault.frozen));
  }
  return text;
}

PlannedFault FaultAt(const ScheduleOptions& options, uint64_t n) {
  const uint64_t turn = n / options.kinds.size();
  const uint64_t turn_seed = SplitMix64At(SplitMix64At(options.seed, kOrder), turn);
  const uint64_t seed = SplitMix64At(SplitMix64At(options.seed, kTarget), n);
  const std::vector<uint32_t> order =
      Shuffled(turn_seed, static_cast<uint32_t>(options.kinds.size()));
  const FaultKind& kind = options.kinds[order[n % options.kinds.size()]];

  PlannedFault fault;
  fault.action = kind.action;
  fault.delay = options.every * (0.5 + UnitDouble(SplitMix64At(seed, kDelay)));
  if (kind.action == Action::kFreeze) {
    fault.frozen = options.freeze;
    if (fault.frozen == absl::ZeroDuration()) {
      fault.frozen = std::max(
          kShortestFreeze, 2 * UnitDouble(SplitMix64At(seed, kFreeze)) * options.heartbeat_timeout);
    }
  }
  for (const RoleWord& role : kRoles) {
    const auto wanted = std::count(kind.roles.begin(), kind.roles.end(), role.role);
    std::vector<uint32_t> indexes =
        Shuffled(SplitMix64At(seed, kTarget + static_cast<uint64_t>(role.role)),
                 CountOf(role.role, options.workers, options.shards));
    indexes.resize(static_cast<size_t>(wanted));
    std::sort(indexes.begin(), indexes.end());
    for (const uint32_t index : indexes) fault.targets.push_back({role.role, index});
  }
  return fault;
}

}  // namespace sluice::chaos
