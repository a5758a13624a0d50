// The semantics of an API server, without HTTP: objects, versions, history, deletion.
#ifndef SLUICE_OPERATOR_KUBE_FAKE_OBJECT_STORE_H_
#define SLUICE_OPERATOR_KUBE_FAKE_OBJECT_STORE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "operator/kube/client.h"
#include "operator/kube/fake/apply.h"
#include "operator/kube/object.h"
#include "services/common/time/clock.h"

namespace sluice::kube {

struct FakeType {
  ResourceType type;
  // The main path ignores status, the status path everything else; generation counts changes of the
  // spec.
  bool has_status = false;
  // The fields behind /scale; empty: there is no such subresource.
  std::string scale_spec_pointer;    // "/spec/worker/replicas"
  std::string scale_status_pointer;  // "/status/worker/replicas"
  // Like pods: a deletion with a grace period (30 s by default) only marks the object; a deletion
  // with 0 removes it, which the kubelet would do.
  bool graceful_deletion = false;
};

// Not thread-safe. Errors are ApiErrors with the codes and reasons of the real server. A write
// without a change makes no new version. Objects have no managedFields.
class ObjectStore {
 public:
  struct Change {
    int64_t version;
    std::string type_name;
    WatchEvent::Type type;
    Json object;  // after the change; for a deletion the last state, with the new version
    std::optional<Json> before;
  };

  // `clock` outlives this. At most `history_limit` changes are remembered.
  ObjectStore(const Clock* clock, size_t history_limit)
      : clock_(clock), history_limit_(history_limit) {}

  absl::StatusOr<Json> Get(const FakeType& type, const ObjectKey& key) const;
  std::vector<Json> List(const FakeType& type, const std::string& ns) const;
  absl::StatusOr<Json> Create(const FakeType& type, const std::string& ns, Json object,
                              bool dry_run);
  absl::StatusOr<Json> Update(const FakeType& type, const ObjectKey& key, Json object,
                              Subresource subresource, bool dry_run);
  // `kind` is not kApply: `body` is a merge patch or a list of operations.
  absl::StatusOr<Json> Patch(const FakeType& type, const ObjectKey& key, PatchKind kind,
                             const Json& body, Subresource subresource, bool dry_run);
  absl::StatusOr<Json> ApplyPatch(const FakeType& type, const ObjectKey& key, const Json& body,
                                  const WriteOptions& options);
  absl::StatusOr<Json> Delete(const FakeType& type, const ObjectKey& key,
                              const DeleteOptions& options);
  absl::StatusOr<Json> GetScale(const FakeType& type, const ObjectKey& key) const;
  absl::StatusOr<Json> SetScale(const FakeType& type, const ObjectKey& key, const Json& scale);

  // One complete pass of the garbage collector: removes objects whose owners are all gone, and
  // objects that waited (foregroundDeletion) for dependents that are gone. Returns the number of
  // removed or marked objects.
  int CollectGarbage();

  int64_t version() const { return version_; }
  // Changes after `version`, in order; OutOfRange (410 Expired) if they are forgotten.
  absl::StatusOr<std::vector<Change>> ChangesSince(int64_t version) const;
  // Forgets all history, as a compaction of etcd does.
  void Compact();

 private:
  struct Entry {
    Json object;
    FieldOwners owners;
  };
  using Objects = std::map<ObjectKey, Entry>;

  absl::StatusOr<Objects::iterator> Find(const FakeType& type, const ObjectKey& key);
  // Replaces the entry's object by `object`, if it differs: keeps the identity, counts the
  // generation, and removes an object that waited for its last finalizer.
  absl::StatusOr<Json> Replace(const FakeType& type, Objects::iterator entry, Json object,
                               Subresource subresource, bool dry_run);
  Json Remove(const FakeType& type, Objects::iterator entry);
  void Record(const std::string& type_name, WatchEvent::Type event, const Json& object,
              std::optional<Json> before);
  void Orphan(const std::string& uid);

  const Clock* const clock_;
  const size_t history_limit_;
  int64_t version_ = 100;    // as in a server that has run for a while
  int64_t forgotten_ = 100;  // changes up to here are not in history_
  int64_t last_uid_ = 0;
  std::map<std::string, Objects> objects_;  // by type name
  std::map<std::string, FakeType> types_;   // types of all created objects
  std::deque<Change> history_;
};

}  // namespace sluice::kube

#endif  // SLUICE_OPERATOR_KUBE_FAKE_OBJECT_STORE_H_
