#include "operator/reconciler/observed_job.h"

#include "absl/strings/str_cat.h"
#include "operator/reconciler/names.h"
#include "services/manifest/codec.h"
#include "services/manifest/enum_names.h"

namespace sluice::reconciler {
namespace {

using kube::GetInt;
using kube::GetString;
using kube::Json;

Json ObjectAt(const Json& object, std::initializer_list<absl::string_view> path) {
  const Json* found = kube::Find(object, path);
  return found != nullptr && found->is_object() ? *found : Json();
}

std::optional<absl::Duration> Seconds(const Json& spec, absl::string_view name) {
  const Json* found = kube::Find(spec, {name});
  if (found == nullptr || !found->is_number_integer()) return std::nullopt;
  return absl::Seconds(found->get<int64_t>());
}

int64_t IntOr(const Json& object, std::initializer_list<absl::string_view> path,
              int64_t otherwise) {
  const Json* found = kube::Find(object, path);
  return found != nullptr && found->is_number_integer() ? found->get<int64_t>() : otherwise;
}

void ReadStorage(const Json& object, ObservedJob* view) {
  const Json storage = ObjectAt(object, {"spec", "checkpoint", "storage"});

  v1::CheckpointSpec* checkpoint = view->job.spec.mutable_checkpoint();
  if (GetString(storage, {"type"}) == "PersistentVolumeClaim") {
    view->checkpoints.claim = GetString(storage, {"claimName"});
    view->checkpoints.sub_path = GetString(storage, {"subPath"});
    if (view->checkpoints.sub_path.empty()) {
      view->checkpoints.sub_path = absl::StrCat(view->key.ns, "/", view->key.name);
    }
    view->checkpoints.mount_path = kCheckpointDirectory;
    checkpoint->set_directory(kCheckpointDirectory);
  }

  if (checkpoint->directory().empty()) {
    view->problem = {"StorageNeeded",
                     "the pods of a job share the directory of its checkpoints: set "
                     "spec.checkpoint.storage to {type: PersistentVolumeClaim, claimName: ...}"};
  }
}

std::vector<policy::FailureRule> ReadFailureRules(const Json& spec) {
  using Action = policy::FailureRule::Action;
  std::vector<policy::FailureRule> rules;
  for (const Json& from : kube::GetList(spec, {"failurePolicy", "rules"})) {
    policy::FailureRule rule;
    const std::string action = GetString(from, {"action"});
    rule.action = action == "FailJob"  ? Action::kFailJob
                  : action == "Ignore" ? Action::kIgnore
                                       : Action::kRestart;

    for (const Json& value : kube::GetList(from, {"roles"})) {
      for (const v1::Role role : {v1::COORDINATOR, v1::SHARD, v1::WORKER}) {
        if (value == std::string(RoleName(role))) rule.roles.insert(role);
      }
    }

    for (const Json& value : kube::GetList(from, {"exitCodes"})) {
      if (value.is_number_integer()) rule.exit_codes.insert(value.get<int>());
    }
    for (const Json& value : kube::GetList(from, {"reasons"})) {
      if (value.is_string()) rule.reasons.insert(value.get<std::string>());
    }

    rules.push_back(std::move(rule));
  }
  return rules;
}

CleanPodPolicy CleanPolicy(const std::string& name) {
  if (name == "All") return CleanPodPolicy::kAll;
  return name == "None" ? CleanPodPolicy::kNone : CleanPodPolicy::kRunning;
}

}  // namespace

UpdateMode ModeOf(const v1::TrainingSpec& training) {
  UpdateMode mode;
  mode.mode = training.mode();
  if (mode.mode == v1::BOUNDED_STALENESS) mode.max_staleness = training.max_staleness();
  return mode;
}

void SetMode(const UpdateMode& mode, v1::TrainingSpec* training) {
  training->set_mode(mode.mode);
  training->set_max_staleness(mode.max_staleness);
}

std::string ModeName(v1::Mode mode) { return api::EnumName("spec.training.mode", mode); }

v1::Mode ParseMode(const std::string& name) {
  const auto* const found = api::FindEnumValue(*v1::Mode_descriptor(), name);
  return found == nullptr ? v1::MODE_UNSPECIFIED : static_cast<v1::Mode>(found->number());
}

const Json& ObservedJob::TemplateOf(v1::Role role) const {
  switch (role) {
    case v1::COORDINATOR:
      return coordinator_template;
    case v1::SHARD:
      return shard_template;
    default:
      return worker_template;
  }
}

bool ObservedJob::NeedsWorkerImage(v1::Role role) const {
  // A shard that computes layers needs LibTorch, as a worker does.
  return role == v1::WORKER ||
         (role == v1::SHARD && job.spec.training().execution() == v1::TrainingSpec::SERVER);
}

ObservedJob ReadJob(const Json& object) {
  ObservedJob view;
  view.job = api::FromJson(object);
  view.key = kube::KeyOf(object);
  view.uid = kube::UidOf(object);
  view.generation = GetInt(object, {"metadata", "generation"});
  view.being_deleted = kube::IsBeingDeleted(object);

  const Json spec = ObjectAt(object, {"spec"});
  view.coordinator_template = ObjectAt(spec, {"coordinator", "template"});
  view.shard_template = ObjectAt(spec, {"parameterServer", "template"});
  view.worker_template = ObjectAt(spec, {"worker", "template"});

  ReadStorage(object, &view);
  view.data.claim = GetString(spec, {"data", "source", "volume", "claimName"});
  view.data.mount_path = GetString(spec, {"data", "source", "volume", "mountPath"});
  if (view.data.mount_path.empty()) view.data.mount_path = "/data";

  view.failure_rules = ReadFailureRules(spec);
  view.toleration_seconds = IntOr(spec, {"nodeFailure", "tolerationSeconds"}, 10);
  view.force_delete_after =
      absl::Seconds(IntOr(spec, {"nodeFailure", "forceDeleteAfterSeconds"}, 10));
  view.progress_deadline = Seconds(spec, "progressDeadlineSeconds");
  view.ttl_after_finished = Seconds(spec, "ttlSecondsAfterFinished");
  view.clean_pod_policy = CleanPolicy(GetString(spec, {"cleanPodPolicy"}));
  view.network_policy = GetString(spec, {"networkPolicy"}) != "Disabled";
  view.tls = SpeaksTls(object);
  if (view.tls) view.job.spec.set_tls(v1::JobSpec::TLS_ENABLED);
  const std::string manager = GetString(spec, {"managedBy"});
  view.managed_by_another = !manager.empty() && manager != kManagedBy;
  return view;
}

bool SpeaksTls(const Json& object) {
  for (const char* part : {"spec", "status"}) {
    const std::string said = GetString(object, {part, "tls"});
    if (!said.empty()) return said == "Enabled";
  }
  // A status without the field was written by an operator without TLS support.
  return ObjectAt(object, {"status"}).empty();
}

}  // namespace sluice::reconciler
