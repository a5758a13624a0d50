#include "operator/kube/fake/object_store.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "operator/kube/api_error.h"
#include "services/common/status_macros.h"

namespace sluice::kube {
namespace {

constexpr char kForeground[] = "foregroundDeletion";
// A patch may contain these fields, but the server owns them.
constexpr const char* kServerFields[] = {"uid", "creationTimestamp", "deletionTimestamp",
                                         "deletionGracePeriodSeconds", "generation"};

absl::Status Refuse(int code, const std::string& reason, const std::string& message) {
  return ApiError{code, reason, message, {}}.ToStatus();
}

absl::Status Missing(const FakeType& type, const ObjectKey& key) {
  return Refuse(404, "NotFound", absl::StrCat(type.type.resource, " \"", key.name, "\" not found"));
}

absl::Status Conflict(const FakeType& type, const ObjectKey& key, const std::string& why) {
  return Refuse(409, "Conflict",
                absl::StrCat("Operation cannot be fulfilled on ", type.type.resource, " \"",
                             key.name, "\": ", why));
}

absl::Status CheckPreconditions(const FakeType& type, const Json& current, const std::string& uid,
                                const std::string& version) {
  if (!uid.empty() && uid != UidOf(current)) {
    return Conflict(type, KeyOf(current),
                    absl::StrCat("Precondition failed: UID in precondition: ", uid,
                                 ", UID in object meta: ", UidOf(current)));
  }
  if (!version.empty() && version != ResourceVersionOf(current)) {
    return Conflict(type, KeyOf(current),
                    "the object has been modified; please apply your changes to the latest version "
                    "and try again");
  }
  return absl::OkStatus();
}

bool HasFinalizers(const Json& object) {
  const Json* finalizers = Find(object, {"metadata", "finalizers"});
  return finalizers != nullptr && finalizers->is_array() && !finalizers->empty();
}

bool HasFinalizer(const Json& object, const std::string& name) {
  if (!HasFinalizers(object)) return false;
  const Json& finalizers = object["metadata"]["finalizers"];
  return std::find(finalizers.begin(), finalizers.end(), name) != finalizers.end();
}

void RemoveFinalizer(Json* object, const std::string& name) {
  if (!HasFinalizers(*object)) return;
  Json& finalizers = (*object)["metadata"]["finalizers"];
  finalizers.erase(std::remove(finalizers.begin(), finalizers.end(), name), finalizers.end());
}

std::vector<std::string> OwnerUids(const Json& object, bool blocking_only) {
  std::vector<std::string> uids;
  for (const Json& owner : GetList(object, {"metadata", "ownerReferences"})) {
    const Json* blocks = Find(owner, {"blockOwnerDeletion"});
    const bool blocking = blocks != nullptr && blocks->is_boolean() && blocks->get<bool>();
    if (!blocking_only || blocking) uids.push_back(GetString(owner, {"uid"}));
  }
  return uids;
}

void SetOrErase(Json* object, const char* key, const Json& from) {
  const Json* value = Find(from, {key});
  if (value == nullptr) {
    object->erase(key);
  } else {
    (*object)[key] = *value;
  }
}

}  // namespace

absl::StatusOr<Json> ObjectStore::Get(const FakeType& type, const ObjectKey& key) const {
  const auto objects = objects_.find(type.type.Name());
  if (objects == objects_.end()) return Missing(type, key);
  const auto entry = objects->second.find(key);
  if (entry == objects->second.end()) return Missing(type, key);
  return entry->second.object;
}

std::vector<Json> ObjectStore::List(const FakeType& type, const std::string& ns) const {
  std::vector<Json> all;
  const auto objects = objects_.find(type.type.Name());
  if (objects == objects_.end()) return all;
  for (const auto& [key, entry] : objects->second) {
    if (ns.empty() || key.ns == ns) all.push_back(entry.object);
  }
  return all;
}

absl::StatusOr<ObjectStore::Objects::iterator> ObjectStore::Find(const FakeType& type,
                                                                 const ObjectKey& key) {
  Objects& objects = objects_[type.type.Name()];
  const auto entry = objects.find(key);
  if (entry == objects.end()) return Missing(type, key);
  return entry;
}

void ObjectStore::Record(const std::string& type_name, WatchEvent::Type event, const Json& object,
                         std::optional<Json> before) {
  history_.push_back(Change{version_, type_name, event, object, std::move(before)});
  while (history_.size() > history_limit_) {
    forgotten_ = history_.front().version;
    history_.pop_front();
  }
}

absl::StatusOr<Json> ObjectStore::Create(const FakeType& type, const std::string& ns, Json object,
                                         bool dry_run) {
  if (!object.is_object()) return Refuse(400, "BadRequest", "the body is no object");
  Json& metadata = object["metadata"];
  if (!metadata.is_object()) metadata = Json::object();
  if (!ResourceVersionOf(object).empty()) {
    return Refuse(400, "BadRequest", "resourceVersion should not be set on objects to be created");
  }
  ObjectKey key{type.type.namespaced ? ns : "", GetString(object, {"metadata", "name"})};
  const std::string prefix = GetString(object, {"metadata", "generateName"});
  if (key.name.empty() && prefix.empty()) {
    return Refuse(422, "Invalid",
                  "metadata.name: Required value: name or generateName is required");
  }
  if (!KeyOf(object).ns.empty() && KeyOf(object).ns != key.ns) {
    return Refuse(400, "BadRequest",
                  "the namespace of the provided object does not match the namespace sent on the "
                  "request");
  }
  if (type.type.namespaced && key.ns.empty()) {
    return Refuse(400, "BadRequest", "an empty namespace may not be set during creation");
  }
  if (key.name.empty()) key.name = absl::StrFormat("%s%05x", prefix, last_uid_ + 1);
  Objects& objects = objects_[type.type.Name()];
  if (objects.count(key) != 0) {
    return Refuse(409, "AlreadyExists",
                  absl::StrCat(type.type.resource, " \"", key.name, "\" already exists"));
  }
  for (const char* field : kServerFields) metadata.erase(field);
  metadata["name"] = key.name;
  if (!key.ns.empty()) metadata["namespace"] = key.ns;
  object["apiVersion"] = type.type.ApiVersion();
  object["kind"] = type.type.kind;
  if (type.has_status) object.erase("status");
  metadata["uid"] = absl::StrFormat("00000000-0000-4000-8000-%012d", last_uid_ + 1);
  metadata["creationTimestamp"] = EncodeTime(clock_->Now());
  metadata["generation"] = 1;
  if (dry_run) return object;
  ++last_uid_;
  metadata["resourceVersion"] = absl::StrCat(++version_);
  types_.emplace(type.type.Name(), type);
  objects[key] = Entry{object, {}};
  Record(type.type.Name(), WatchEvent::Type::kAdded, object, std::nullopt);
  return object;
}

absl::StatusOr<Json> ObjectStore::Replace(const FakeType& type, Objects::iterator entry,
                                          Json object, Subresource subresource, bool dry_run) {
  if (!object.is_object()) return Refuse(400, "BadRequest", "the body is no object");
  const Json current = entry->second.object;
  RETURN_IF_ERROR(CheckPreconditions(type, current, UidOf(object), ResourceVersionOf(object)));
  Json next;
  if (subresource == Subresource::kStatus) {
    next = current;
    SetOrErase(&next, "status", object);
  } else {
    next = std::move(object);
    if (!next["metadata"].is_object()) next["metadata"] = Json::object();
    if (type.has_status) SetOrErase(&next, "status", current);
    for (const char* field : kServerFields) {
      SetOrErase(&next["metadata"], field, current["metadata"]);
    }
  }
  next["apiVersion"] = type.type.ApiVersion();
  next["kind"] = type.type.kind;
  next["metadata"]["name"] = entry->first.name;
  if (!entry->first.ns.empty()) next["metadata"]["namespace"] = entry->first.ns;
  SetOrErase(&next["metadata"], "resourceVersion", current["metadata"]);
  const Json* before_spec = kube::Find(current, {"spec"});
  const Json* after_spec = kube::Find(next, {"spec"});
  const bool spec_differs = (before_spec == nullptr) != (after_spec == nullptr) ||
                            (before_spec != nullptr && *before_spec != *after_spec);
  if (spec_differs)
    next["metadata"]["generation"] = GetInt(current, {"metadata", "generation"}) + 1;
  if (dry_run || next == current) return next;
  if (IsBeingDeleted(next) && !HasFinalizers(next) &&
      (!type.graceful_deletion || GetInt(next, {"metadata", "deletionGracePeriodSeconds"}) == 0)) {
    entry->second.object = next;
    return Remove(type, entry);
  }
  next["metadata"]["resourceVersion"] = absl::StrCat(++version_);
  entry->second.object = next;
  Record(type.type.Name(), WatchEvent::Type::kModified, next, current);
  return next;
}

absl::StatusOr<Json> ObjectStore::Update(const FakeType& type, const ObjectKey& key, Json object,
                                         Subresource subresource, bool dry_run) {
  ASSIGN_OR_RETURN(const auto entry, Find(type, key));
  return Replace(type, entry, std::move(object), subresource, dry_run);
}

absl::StatusOr<Json> ObjectStore::Patch(const FakeType& type, const ObjectKey& key, PatchKind kind,
                                        const Json& body, Subresource subresource, bool dry_run) {
  ASSIGN_OR_RETURN(const auto entry, Find(type, key));
  Json object = entry->second.object;
  if (kind == PatchKind::kMerge) {
    RETURN_IF_ERROR(CheckPreconditions(type, object, UidOf(body), ResourceVersionOf(body)));
    object.merge_patch(body);
  } else {
    // nlohmann reports a patch that does not apply with an exception.
    try {
      object = object.patch(body);
    } catch (const Json::exception& error) {
      return Refuse(422, "Invalid",
                    absl::StrCat("the server rejected our request: ", error.what()));
    }
  }
  return Replace(type, entry, std::move(object), subresource, dry_run);
}

absl::StatusOr<Json> ObjectStore::ApplyPatch(const FakeType& type, const ObjectKey& key,
                                             const Json& body, const WriteOptions& options) {
  Objects& objects = objects_[type.type.Name()];
  const auto entry = objects.find(key);
  if (entry == objects.end()) {
    if (!UidOf(body).empty()) {
      return Conflict(type, key,
                      absl::StrCat("uid mismatch: the provided object specified uid ", UidOf(body),
                                   ", and no existing object was found"));
    }
    if (options.subresource != Subresource::kNone) return Missing(type, key);
    Json object = Json::object();
    FieldOwners owners;
    RETURN_IF_ERROR(Apply(body, options.field_manager, options.force, &object, &owners));
    object["metadata"]["name"] = key.name;
    absl::StatusOr<Json> created = Create(type, key.ns, std::move(object), options.dry_run);
    if (created.ok() && !options.dry_run) objects[key].owners = std::move(owners);
    return created;
  }
  RETURN_IF_ERROR(
      CheckPreconditions(type, entry->second.object, UidOf(body), ResourceVersionOf(body)));
  Json object = entry->second.object;
  FieldOwners owners = entry->second.owners;
  RETURN_IF_ERROR(Apply(body, options.field_manager, options.force, &object, &owners));
  if (!options.dry_run) entry->second.owners = std::move(owners);
  return Replace(type, entry, std::move(object), options.subresource, options.dry_run);
}

Json ObjectStore::Remove(const FakeType& type, Objects::iterator entry) {
  Json before = entry->second.object;
  Json last = before;
  last["metadata"]["resourceVersion"] = absl::StrCat(++version_);
  objects_[type.type.Name()].erase(entry);
  Record(type.type.Name(), WatchEvent::Type::kDeleted, last, std::move(before));
  return last;
}

absl::StatusOr<Json> ObjectStore::Delete(const FakeType& type, const ObjectKey& key,
                                         const DeleteOptions& options) {
  ASSIGN_OR_RETURN(const Objects::iterator entry, Find(type, key));
  RETURN_IF_ERROR(
      CheckPreconditions(type, entry->second.object, options.uid, options.resource_version));
  const Json before = entry->second.object;
  Json next = before;
  const int64_t grace =
      type.graceful_deletion ? std::max<int64_t>(0, options.grace_period_seconds.value_or(30)) : 0;
  if (options.propagation == Propagation::kOrphan) Orphan(UidOf(next));
  if (options.propagation == Propagation::kForeground && !HasFinalizer(next, kForeground)) {
    next["metadata"]["finalizers"].push_back(kForeground);
  }
  if (grace == 0 && !HasFinalizers(next)) {
    return Remove(type, entry);
  }
  if (!IsBeingDeleted(next)) {
    next["metadata"]["deletionTimestamp"] = EncodeTime(clock_->Now() + absl::Seconds(grace));
    next["metadata"]["deletionGracePeriodSeconds"] = grace;
  } else if (grace < GetInt(next, {"metadata", "deletionGracePeriodSeconds"})) {
    next["metadata"]["deletionGracePeriodSeconds"] = grace;
  }
  if (next == before) return next;
  next["metadata"]["resourceVersion"] = absl::StrCat(++version_);
  entry->second.object = next;
  Record(type.type.Name(), WatchEvent::Type::kModified, next, before);
  return next;
}

absl::StatusOr<Json> ObjectStore::GetScale(const FakeType& type, const ObjectKey& key) const {
  if (type.scale_spec_pointer.empty()) {
    return Refuse(404, "NotFound", "the server could not find the requested resource");
  }
  ASSIGN_OR_RETURN(const Json object, Get(type, key));
  const Json::json_pointer spec(type.scale_spec_pointer);
  const Json::json_pointer status(type.scale_status_pointer);
  return Json{{"apiVersion", "autoscaling/v1"},
              {"kind", "Scale"},
              {"metadata",
               {{"name", key.name},
                {"namespace", key.ns},
                {"uid", UidOf(object)},
                {"resourceVersion", ResourceVersionOf(object)}}},
              {"spec", {{"replicas", object.contains(spec) ? object[spec] : Json(0)}}},
              {"status", {{"replicas", object.contains(status) ? object[status] : Json(0)}}}};
}

absl::StatusOr<Json> ObjectStore::SetScale(const FakeType& type, const ObjectKey& key,
                                           const Json& scale) {
  RETURN_IF_ERROR(GetScale(type, key).status());
  ASSIGN_OR_RETURN(const auto entry, Find(type, key));
  RETURN_IF_ERROR(
      CheckPreconditions(type, entry->second.object, UidOf(scale), ResourceVersionOf(scale)));
  Json object = entry->second.object;
  object[Json::json_pointer(type.scale_spec_pointer)] = GetInt(scale, {"spec", "replicas"});
  RETURN_IF_ERROR(Replace(type, entry, std::move(object), Subresource::kNone, false).status());
  return GetScale(type, key);
}

void ObjectStore::Orphan(const std::string& uid) {
  for (auto& [name, objects] : objects_) {
    for (auto entry = objects.begin(); entry != objects.end(); ++entry) {
      const std::vector<std::string> owners = OwnerUids(entry->second.object, false);
      if (std::find(owners.begin(), owners.end(), uid) == owners.end()) continue;
      Json object = entry->second.object;
      Json& references = object["metadata"]["ownerReferences"];
      references.erase(
          std::remove_if(references.begin(), references.end(),
                         [&uid](const Json& owner) { return GetString(owner, {"uid"}) == uid; }),
          references.end());
      // Cannot fail: the entry exists, and the version in `object` is its own.
      Replace(types_.at(name), entry, std::move(object), Subresource::kNone, false).IgnoreError();
    }
  }
}

int ObjectStore::CollectGarbage() {
  int acted = 0;
  while (true) {
    std::map<std::string, bool> alive;  // uid → waits for its dependents
    std::set<std::string> blocked;      // uids with a dependent that blocks their deletion
    for (const auto& [name, objects] : objects_) {
      for (const auto& [key, entry] : objects) {
        alive[UidOf(entry.object)] =
            IsBeingDeleted(entry.object) && HasFinalizer(entry.object, kForeground);
        for (const std::string& uid : OwnerUids(entry.object, true)) blocked.insert(uid);
      }
    }
    struct Target {
      std::string type_name;
      ObjectKey key;
      bool owner;
    };
    std::vector<Target> targets;
    for (const auto& [name, objects] : objects_) {
      for (const auto& [key, entry] : objects) {
        const std::vector<std::string> owners = OwnerUids(entry.object, false);
        const bool orphaned =
            !owners.empty() &&
            std::all_of(owners.begin(), owners.end(), [&alive](const std::string& uid) {
              const auto owner = alive.find(uid);
              return owner == alive.end() || owner->second;
            });
        if (orphaned && !IsBeingDeleted(entry.object)) {
          targets.push_back({name, key, false});
        } else if (alive[UidOf(entry.object)] && blocked.count(UidOf(entry.object)) == 0) {
          targets.push_back({name, key, true});
        }
      }
    }
    if (targets.empty()) return acted;
    acted += static_cast<int>(targets.size());
    for (const Target& target : targets) {
      const FakeType& type = types_.at(target.type_name);
      const auto entry = Find(type, target.key);
      if (!entry.ok()) continue;
      if (target.owner) {
        Json object = (*entry)->second.object;
        RemoveFinalizer(&object, kForeground);
        Replace(type, *entry, std::move(object), Subresource::kNone, false).IgnoreError();
      } else {
        Delete(type, target.key, DeleteOptions()).IgnoreError();
      }
    }
  }
}

absl::StatusOr<std::vector<ObjectStore::Change>> ObjectStore::ChangesSince(int64_t version) const {
  if (version < forgotten_) {
    return Refuse(410, "Expired",
                  absl::StrCat("too old resource version: ", version, " (", forgotten_, ")"));
  }
  std::vector<Change> changes;
  for (const Change& change : history_) {
    if (change.version > version) changes.push_back(change);
  }
  return changes;
}

void ObjectStore::Compact() {
  history_.clear();
  forgotten_ = version_;
}

}  // namespace sluice::kube
