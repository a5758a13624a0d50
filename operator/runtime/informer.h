// A local copy of one type's objects, with indexes, that reports changes to handlers.
#ifndef SLUICE_OPERATOR_RUNTIME_INFORMER_H_
#define SLUICE_OPERATOR_RUNTIME_INFORMER_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "operator/kube/object.h"
#include "operator/kube/reflector.h"
#include "services/common/threads/mutex.h"

namespace sluice::runtime {

// Objects in a cache are shared and never changed.
using ObjectPtr = std::shared_ptr<const kube::Json>;

// Receives changes of objects. Called on the thread that changes the informer, without its lock,
// after the cache shows the change. A handler adds keys to a queue; it must not block.
class InformerHandler {
 public:
  virtual ~InformerHandler() = default;
  virtual void OnAdd(const ObjectPtr& object) = 0;
  // A resync calls it for every object, with `before` and `after` the same.
  virtual void OnUpdate(const ObjectPtr& before, const ObjectPtr& after) = 0;
  // `object` is the last known state, even if the object was deleted while there was no watch. If
  // an object was deleted and created again (another uid), the handler gets an OnDelete and an
  // OnAdd.
  virtual void OnDelete(const ObjectPtr& object) = 0;
};

// Any thread, except AddHandler and MaybeResync. Several reflectors, one for each namespace, may
// feed it, each on its own thread.
class Informer final : public kube::ReflectorSink {
 public:
  // Returns the values under which an index finds an object.
  using IndexFunction = std::function<std::vector<std::string>(const kube::Json&)>;
  // `indexes`: by name, for ByIndex. `resync`: how often handlers are called for every object, in
  // case one has missed a change.
  struct Options {
    std::map<std::string, IndexFunction> indexes;
    absl::Duration resync = absl::ZeroDuration();  // 0: never
  };

  explicit Informer(Options options);

  // To be called before the first event. The handler outlives this.
  void AddHandler(InformerHandler* handler);

  // Any thread. Null if there is no such object.
  ObjectPtr Get(const kube::ObjectKey& key) const;
  // Ordered by key. `ns` empty: all namespaces.
  std::vector<ObjectPtr> List(const std::string& ns) const;
  // The objects for which `index` (one in the options) has this value; ordered by key.
  std::vector<ObjectPtr> ByIndex(const std::string& index, const std::string& value) const;
  // Whether the first list is in the cache and every handler has been called for it.
  bool HasSynced() const;
  // The number of objects in the cache. Any thread.
  size_t size() const;

  // Calls the handlers for every object if a resync is due. To be called periodically, by one
  // thread; if that is not the thread that feeds the informer, a handler may be called for an
  // object that has just been deleted.
  void MaybeResync(absl::Time now);

  // Replace reports objects of the cache that are not in the list as deleted.
  void Replace(std::vector<kube::Json> objects) override;
  void Apply(kube::WatchEvent event) override;

 private:
  struct Change {
    ObjectPtr before;  // null: added
    ObjectPtr after;   // null: deleted
  };

  // Replaces the object with this key by `after` (null: removes it); returns the changes to report
  // to the handlers.
  std::vector<Change> Put(const kube::ObjectKey& key, ObjectPtr after)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Adds the object to every index, or removes it.
  void Index(const kube::ObjectKey& key, const kube::Json& object, bool add)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Calls every handler for every change, in order, without the lock.
  void Notify(const std::vector<Change>& changes);

  const Options options_;
  std::vector<InformerHandler*> handlers_;
  absl::Time last_resync_ = absl::InfinitePast();
  mutable Mutex mutex_;
  std::map<kube::ObjectKey, ObjectPtr> objects_ ABSL_GUARDED_BY(mutex_);
  using Keys = absl::btree_set<kube::ObjectKey>;
  std::map<std::string, absl::flat_hash_map<std::string, Keys>> indexes_ ABSL_GUARDED_BY(mutex_);
  bool synced_ ABSL_GUARDED_BY(mutex_) = false;
};

// Removes metadata.managedFields and the annotation of `kubectl apply`: most of an object's bytes.
void StripManagedFields(kube::Json* object);

// Indexes by the uid of the controlling owner (a namespace is not needed: uids are unique).
Informer::IndexFunction IndexByController();

// Indexes by "namespace/value of the label".
Informer::IndexFunction IndexByLabel(std::string label);

}  // namespace sluice::runtime

#endif  // SLUICE_OPERATOR_RUNTIME_INFORMER_H_
