#include "operator/runtime/informer.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/common/check.h"

namespace sluice::runtime {

using kube::Json;
using kube::ObjectKey;

Informer::Informer(Options options) : options_(std::move(options)) {
  MutexLock lock(&mutex_);
  for (const auto& [name, function] : options_.indexes) indexes_[name];
}

void Informer::AddHandler(InformerHandler* handler) {
  SLUICE_DCHECK(!HasSynced() && size() == 0, "every handler is called for every object");
  handlers_.push_back(handler);
}

ObjectPtr Informer::Get(const ObjectKey& key) const {
  MutexLock lock(&mutex_);
  const auto found = objects_.find(key);
  return found == objects_.end() ? nullptr : found->second;
}

std::vector<ObjectPtr> Informer::List(const std::string& ns) const {
  MutexLock lock(&mutex_);
  std::vector<ObjectPtr> found;
  for (auto at = objects_.lower_bound({ns, ""}); at != objects_.end(); ++at) {
    if (!ns.empty() && at->first.ns != ns) break;
    found.push_back(at->second);
  }
  return found;
}

std::vector<ObjectPtr> Informer::ByIndex(const std::string& index, const std::string& value) const {
  MutexLock lock(&mutex_);
  std::vector<ObjectPtr> found;
  const auto values = indexes_.find(index);
  if (values == indexes_.end()) return found;
  const auto keys = values->second.find(value);
  if (keys == values->second.end()) return found;
  for (const ObjectKey& key : keys->second) found.push_back(objects_.at(key));
  return found;
}

bool Informer::HasSynced() const {
  MutexLock lock(&mutex_);
  return synced_;
}

size_t Informer::size() const {
  MutexLock lock(&mutex_);
  return objects_.size();
}

void Informer::Index(const ObjectKey& key, const Json& object, bool add) {
  for (const auto& [name, function] : options_.indexes) {
    auto& values = indexes_[name];
    for (const std::string& value : function(object)) {
      if (add) {
        values[value].insert(key);
        continue;
      }

      const auto keys = values.find(value);
      if (keys == values.end()) continue;
      keys->second.erase(key);
      if (keys->second.empty()) values.erase(keys);
    }
  }
}

std::vector<Informer::Change> Informer::Put(const ObjectKey& key, ObjectPtr after) {
  ObjectPtr before;
  const auto found = objects_.find(key);
  if (found != objects_.end()) {
    before = found->second;
    Index(key, *before, false);
    objects_.erase(found);
  }

  if (after != nullptr) {
    Index(key, *after, true);
    objects_[key] = after;
  }

  if (before == nullptr && after == nullptr) return {};
  if (before != nullptr && after != nullptr) {
    if (kube::UidOf(*before) != kube::UidOf(*after)) {
      return {Change{before, nullptr}, Change{nullptr, after}};
    }
    if (kube::ResourceVersionOf(*before) == kube::ResourceVersionOf(*after)) return {};
  }
  return {Change{std::move(before), std::move(after)}};
}

void Informer::Notify(const std::vector<Change>& changes) {
  for (const Change& change : changes) {
    for (InformerHandler* handler : handlers_) {
      if (change.before == nullptr) {
        handler->OnAdd(change.after);
      } else if (change.after == nullptr) {
        handler->OnDelete(change.before);
      } else {
        handler->OnUpdate(change.before, change.after);
      }
    }
  }
}

void Informer::Replace(std::vector<Json> objects) {
  std::vector<Change> changes;
  const auto add = [&changes](std::vector<Change> more) {
    changes.insert(changes.end(), more.begin(), more.end());
  };

  std::vector<ObjectPtr> now;
  for (Json& object : objects) {
    now.push_back(std::make_shared<const Json>(std::move(object)));
  }

  {
    MutexLock lock(&mutex_);
    std::set<ObjectKey> gone;
    for (const auto& [key, object] : objects_) gone.insert(key);
    for (const ObjectPtr& object : now) gone.erase(kube::KeyOf(*object));
    for (const ObjectKey& key : gone) add(Put(key, nullptr));
    for (const ObjectPtr& object : now) add(Put(kube::KeyOf(*object), object));
  }

  Notify(changes);
  MutexLock lock(&mutex_);
  synced_ = true;
}

void Informer::Apply(kube::WatchEvent event) {
  const ObjectKey key = kube::KeyOf(event.object);
  auto object = std::make_shared<const Json>(std::move(event.object));
  std::vector<Change> changes;
  {
    MutexLock lock(&mutex_);
    const bool deleted = event.type == kube::WatchEvent::Type::kDeleted;
    changes = Put(key, deleted ? nullptr : object);
    // The state in the event is newer than the one in the cache.
    if (deleted && !changes.empty()) changes.front().before = object;
  }

  Notify(changes);
}

void Informer::MaybeResync(absl::Time now) {
  if (options_.resync <= absl::ZeroDuration()) return;
  if (last_resync_ == absl::InfinitePast()) last_resync_ = now;
  if (now < last_resync_ + options_.resync) return;
  last_resync_ = now;
  for (const ObjectPtr& object : List("")) {
    for (InformerHandler* handler : handlers_) handler->OnUpdate(object, object);
  }
}

void StripManagedFields(Json* object) {
  const auto metadata = object->find("metadata");
  if (metadata == object->end() || !metadata->is_object()) return;
  metadata->erase("managedFields");
  const auto annotations = metadata->find("annotations");
  if (annotations == metadata->end() || !annotations->is_object()) return;
  annotations->erase("kubectl.kubernetes.io/last-applied-configuration");
}

Informer::IndexFunction IndexByController() {
  return [](const Json& object) -> std::vector<std::string> {
    std::string uid = kube::ControllerUidOf(object);
    if (uid.empty()) return {};
    return {std::move(uid)};
  };
}

Informer::IndexFunction IndexByLabel(std::string label) {
  return [label = std::move(label)](const Json& object) -> std::vector<std::string> {
    const std::string value = kube::GetString(object, {"metadata", "labels", label});
    if (value.empty()) return {};
    return {absl::StrCat(kube::KeyOf(object).ns, "/", value)};
  };
}

}  // namespace sluice::runtime
