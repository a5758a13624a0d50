#include "operator/reconciler/job_status.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "operator/reconciler/names.h"
#include "services/common/text/utf8.h"

namespace sluice::reconciler {
namespace {

using kube::GetInt;
using kube::GetString;
using kube::Json;
using policy::Memory;

constexpr v1::Role kRoles[] = {v1::COORDINATOR, v1::SHARD, v1::WORKER};
constexpr const char* kOutcomes[] = {"Succeeded", "Failed", "Suspended"};

// Decodes a time; `otherwise` if it is missing.
absl::Time ReadTime(const Json& object, absl::string_view name, absl::Time otherwise) {
  const absl::Time time = kube::DecodeTime(GetString(object, {name}));
  return time == absl::InfinitePast() ? otherwise : time;
}

void WriteTime(const char* name, absl::Time time, Json* object) {
  if (time != absl::InfiniteFuture() && time != absl::InfinitePast()) {
    (*object)[name] = kube::EncodeMicroTime(time);
  }
}

void WriteCount(const char* name, int64_t count, Json* object) {
  if (count > 0) (*object)[name] = count;
}
void WriteText(const char* name, const std::string& text, Json* object) {
  if (!text.empty()) (*object)[name] = text;
}

uint32_t ReadCount(const Json& object, absl::string_view name) {
  return static_cast<uint32_t>(std::clamp<int64_t>(GetInt(object, {name}), 0, 1 << 30));
}

Memory::ReplicaMemory ReadReplica(const Json& from) {
  Memory::ReplicaMemory replica;
  replica.handled_instance = GetString(from, {"handled"});
  replica.replaced_instance = GetString(from, {"replaced"});
  replica.failures_in_row = static_cast<int>(ReadCount(from, "failuresInRow"));
  replica.failed_starts = static_cast<int>(ReadCount(from, "failedStarts"));

  const Json* missing = kube::Find(from, {"dataMissing"});
  replica.data_missing = missing != nullptr && *missing == true;
  const Json* refused = kube::Find(from, {"refused"});
  replica.refused = refused != nullptr && *refused == true;

  replica.start_after = ReadTime(from, "startAfter", absl::InfinitePast());
  replica.missing_instance = GetString(from, {"missing"});
  replica.missing_since = ReadTime(from, "missingSince", absl::InfiniteFuture());
  return replica;
}

Json WriteReplica(const Memory::ReplicaMemory& replica) {
  Json to = Json::object();
  WriteText("handled", replica.handled_instance, &to);
  WriteText("replaced", replica.replaced_instance, &to);
  WriteCount("failuresInRow", replica.failures_in_row, &to);
  WriteCount("failedStarts", replica.failed_starts, &to);
  if (replica.data_missing) to["dataMissing"] = true;
  if (replica.refused) to["refused"] = true;

  WriteTime("startAfter", replica.start_after, &to);
  if (!replica.missing_instance.empty()) {
    WriteText("missing", replica.missing_instance, &to);
    WriteTime("missingSince", replica.missing_since, &to);
  }
  return to;
}

std::optional<policy::Outcome> ReadOutcome(const Json& from) {
  const std::string kind = GetString(from, {"kind"});
  const auto found = std::find(std::begin(kOutcomes), std::end(kOutcomes), kind);
  if (found == std::end(kOutcomes)) return std::nullopt;

  policy::Outcome outcome;
  outcome.kind = static_cast<policy::OutcomeKind>(found - std::begin(kOutcomes));
  outcome.code = GetString(from, {"code"});
  outcome.reason = GetString(from, {"reason"});
  outcome.since = ReadTime(from, "since", absl::InfinitePast());
  outcome.leave_grace = absl::Seconds(GetInt(from, {"leaveSeconds"}));

  return outcome;
}

Json WriteOutcome(const policy::Outcome& outcome) {
  Json to = {{"kind", kOutcomes[static_cast<int>(outcome.kind)]}};
  WriteText("code", outcome.code, &to);
  WriteText("reason", outcome.reason, &to);
  WriteTime("since", outcome.since, &to);
  WriteCount("leaveSeconds", absl::ToInt64Seconds(outcome.leave_grace), &to);
  return to;
}

}  // namespace

bool ParseReplicaName(absl::string_view name, policy::Replica* replica) {
  if (name == "coordinator") {
    *replica = {v1::COORDINATOR, 0};
    return true;
  }
  replica->role = absl::StartsWith(name, "ps-") ? v1::SHARD : v1::WORKER;
  if (!absl::ConsumePrefix(&name, "ps-") && !absl::ConsumePrefix(&name, "worker-")) return false;
  return absl::SimpleAtoi(name, &replica->index);
}

Recovery ReadRecovery(const Json& status) {
  Recovery recovery;
  const Json* found = kube::Find(status, {"recovery"});
  if (found == nullptr) return recovery;
  const Json& from = *found;

  recovery.shards = ReadCount(from, "shards");
  recovery.mode.mode = ParseMode(GetString(from, {"mode"}));
  recovery.mode.max_staleness = ReadCount(from, "maxStaleness");
  recovery.sized_workers = ReadCount(from, "sizedWorkers");
  recovery.trained_steps = GetInt(from, {"trainedSteps"});
  recovery.progress_instance = GetString(from, {"progressInstance"});
  recovery.images.server = GetString(from, {"images", "server"});
  recovery.images.worker = GetString(from, {"images", "worker"});

  for (const v1::Role role : kRoles) {
    if (const Json* worked = kube::Find(from, {"worked", RoleName(role)});
        worked != nullptr && *worked == true) {
      recovery.memory.worked.insert(role);
    }
  }

  Memory& memory = recovery.memory;
  memory.active_since = ReadTime(from, "activeSince", absl::InfiniteFuture());
  memory.suspending_since = ReadTime(from, "suspendingSince", absl::InfiniteFuture());
  memory.restorations = ReadCount(from, "restorations");
  const uint32_t failures = std::min<uint32_t>(ReadCount(from, "workerFailures"), 10000);
  memory.worker_deaths.assign(failures,
                              ReadTime(from, "workerFailuresSince", absl::InfinitePast()));

  if (const Json* outcome = kube::Find(from, {"outcome"}); outcome != nullptr) {
    memory.outcome = ReadOutcome(*outcome);
  }

  const Json* processes = kube::Find(from, {"processes"});
  if (processes == nullptr || !processes->is_object()) return recovery;
  for (auto it = processes->begin(); it != processes->end(); ++it) {
    policy::Replica replica;
    if (ParseReplicaName(it.key(), &replica)) memory.replicas[replica] = ReadReplica(it.value());
  }
  return recovery;
}

Json WriteRecovery(const Recovery& recovery) {
  const Memory& memory = recovery.memory;
  Json to = Json::object();

  WriteCount("shards", recovery.shards, &to);
  WriteText("mode", ModeName(recovery.mode.mode), &to);
  WriteCount("maxStaleness", static_cast<int64_t>(recovery.mode.max_staleness), &to);
  WriteCount("sizedWorkers", recovery.sized_workers, &to);
  WriteCount("trainedSteps", recovery.trained_steps, &to);
  WriteText("progressInstance", recovery.progress_instance, &to);

  if (recovery.shards != 0) {
    to["images"] = {{"server", recovery.images.server}, {"worker", recovery.images.worker}};
  }

  for (const v1::Role role : memory.worked) to["worked"][std::string(RoleName(role))] = true;
  WriteTime("activeSince", memory.active_since, &to);
  WriteTime("suspendingSince", memory.suspending_since, &to);
  WriteCount("restorations", memory.restorations, &to);

  if (!memory.worker_deaths.empty()) {
    WriteCount("workerFailures", static_cast<int64_t>(memory.worker_deaths.size()), &to);
    WriteTime("workerFailuresSince", memory.worker_deaths.front(), &to);
  }

  if (memory.outcome.has_value()) {
    to["outcome"] = WriteOutcome(*memory.outcome);
    return to;  // later exits have no effect
  }

  Json processes = Json::object();
  for (const auto& [replica, kept] : memory.replicas) {
    Json entry = WriteReplica(kept);
    if (!entry.empty()) processes[policy::ReplicaName(replica)] = std::move(entry);
  }
  if (!processes.empty()) to["processes"] = std::move(processes);
  return to;
}

const Json* FindCondition(const Json& status, absl::string_view type) {
  return kube::FindItem(status, {"conditions"}, "type", type);
}

bool HasCondition(const Json& status, absl::string_view type) {
  const Json* condition = FindCondition(status, type);
  return condition != nullptr && GetString(*condition, {"status"}) == "True";
}

bool SetCondition(absl::string_view type, const ConditionValue& value, absl::Time now,
                  Json* status) {
  constexpr size_t kMaxMessage = 4096;

  Json condition = {{"type", std::string(type)},
                    {"status", value.holds ? "True" : "False"},
                    {"reason", value.reason},
                    {"message", TruncateUtf8(value.message, kMaxMessage)},
                    {"observedGeneration", value.generation},
                    {"lastTransitionTime", kube::EncodeTime(now)}};

  Json& conditions = (*status)["conditions"];
  if (!conditions.is_array()) conditions = Json::array();

  for (Json& before : conditions) {
    if (GetString(before, {"type"}) != type) continue;
    const bool same_status = before["status"] == condition["status"];
    const bool changed = !same_status || before["reason"] != condition["reason"];
    if (same_status) {
      condition["lastTransitionTime"] = GetString(before, {"lastTransitionTime"});
    }

    before = std::move(condition);
    return changed;
  }

  conditions.push_back(std::move(condition));
  return true;
}

StatusChange CompareStatus(const Json& before, const Json& after) {
  const auto lasting = [](Json status) {
    if (!status.is_object()) return Json(Json::object());
    status.erase("training");

    if (status.contains("checkpoint") && status["checkpoint"].is_object()) {
      status["checkpoint"].erase("step");
      status["checkpoint"].erase("time");
      status["checkpoint"].erase("location");
      status["checkpoint"].erase("bytes");
      if (status["checkpoint"].empty()) status.erase("checkpoint");
    }
    return status;
  };

  const auto without_counts = [](Json status) {
    for (const char* name : {"coordinator", "parameterServer", "worker", "images", "view"}) {
      status.erase(name);
    }
    if (Json& recovery = status["recovery"]; recovery.is_object()) recovery.erase("worked");
    if (Json& conditions = status["conditions"]; conditions.is_array()) {
      for (Json& condition : conditions) condition.erase("message");
    }
    return status;
  };

  const Json old_status = lasting(before);
  const Json new_status = lasting(after);
  if (old_status == new_status) return StatusChange::kProgress;
  return without_counts(old_status) == without_counts(new_status) ? StatusChange::kCounts
                                                                  : StatusChange::kTransition;
}

}  // namespace sluice::reconciler
