#include "operator/reconciler/create_owned.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "operator/reconciler/names.h"
#include "services/manifest/training_job.h"

namespace sluice::reconciler {
namespace {

using kube::Json;

constexpr int kCreateTries = 3;

// How finalizers keep an object that is being deleted; empty if none do.
std::string Held(const Json& object) {
  std::vector<std::string> finalizers;
  for (const Json& name : kube::GetList(object, {"metadata", "finalizers"})) {
    if (name.is_string()) finalizers.push_back(name.get<std::string>());
  }
  if (!kube::IsBeingDeleted(object) || finalizers.empty()) return "";
  return absl::StrCat(" once its finalizers are removed (", absl::StrJoin(finalizers, ", "),
                      "): check the controller that sets them, or remove them from the object");
}

// Names the controller, else any owner, else the tool that manages it, else its first writer.
std::string Whose(const Json& object, const ObservedJob& job) {
  const Json* owners = kube::Find(object, {"metadata", "ownerReferences"});
  if (owners != nullptr && owners->is_array() && !owners->empty()) {
    const std::string controller = kube::ControllerUidOf(object);
    const Json* shown = &owners->front();
    for (const Json& owner : *owners) {
      if (!controller.empty() && kube::GetString(owner, {"uid"}) == controller) shown = &owner;
    }

    const std::string kind = kube::GetString(*shown, {"kind"});
    const std::string name = kube::GetString(*shown, {"name"});
    if (kind == api::kKind && name == job.key.name) {
      return absl::StrCat("belongs to an earlier ", kind, " ", name,
                          ", with which it will be deleted", Held(object));
    }
    return absl::StrCat("belongs to ", kind, " ", name);
  }

  if (const std::string manager =
          kube::GetString(object, {"metadata", "labels", "app.kubernetes.io/managed-by"});
      !manager.empty()) {
    const std::string release =
        kube::GetString(object, {"metadata", "annotations", "meta.helm.sh/release-name"});
    return absl::StrCat("is managed by ", manager,
                        release.empty() ? "" : absl::StrCat(", release ", release));
  }

  const Json* fields = kube::Find(object, {"metadata", "managedFields"});
  if (fields != nullptr && fields->is_array() && !fields->empty()) {
    if (const std::string manager = kube::GetString(fields->front(), {"manager"});
        !manager.empty()) {
      return absl::StrCat("was created by ", manager);
    }
  }

  return "does not belong to this job";
}

}  // namespace

absl::Status NameTaken(const kube::ResourceType& type, const Json& found, const ObservedJob& job) {
  return absl::AlreadyExistsError(absl::StrCat("the ", type.kind, " ",
                                               kube::KeyOf(found).ToString(),
                                               " already exists and ", Whose(found, job)));
}

absl::StatusOr<Json> CreateOwned(kube::Client* client, const kube::ResourceType& type,
                                 const ObservedJob& job, const Json& object) {
  kube::WriteOptions options;
  options.field_manager = kFieldManager;

  Json theirs;
  const auto is_ours = [&](const Json& found) {
    const bool ours = kube::ControllerUidOf(found) == job.uid;
    if (!ours) theirs = found;
    return ours;
  };

  absl::StatusOr<Json> made =
      kube::CreateOrFind(client, type, job.key.ns, object, options, is_ours, kCreateTries);
  if (!made.ok() && !theirs.is_null()) return NameTaken(type, theirs, job);
  return made;
}

}  // namespace sluice::reconciler
