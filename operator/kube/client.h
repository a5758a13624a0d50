// The Kubernetes API as calls.
#ifndef SLUICE_OPERATOR_KUBE_CLIENT_H_
#define SLUICE_OPERATOR_KUBE_CLIENT_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "operator/kube/cancellation.h"
#include "operator/kube/object.h"
#include "operator/kube/watch.h"

namespace sluice::kube {

// A part of an object that is written by itself.
enum class Subresource { kNone, kStatus, kScale };

enum class PatchKind {
  kMerge,  // RFC 7386
  kJson,   // RFC 6902
  kApply,  // server-side apply
};

enum class Propagation { kDefault, kBackground, kForeground, kOrphan };

struct WriteOptions {
  Subresource subresource = Subresource::kNone;
  std::string field_manager;  // needed by kApply
  bool force = false;         // kApply: take over fields of other managers
  bool dry_run = false;       // everything is checked and nothing kept
};

struct DeleteOptions {
  // The object is deleted only if these hold (Aborted otherwise); empty: whatever is there.
  std::string uid;
  std::string resource_version;
  std::optional<int64_t> grace_period_seconds;  // 0: at once
  Propagation propagation = Propagation::kDefault;
};

struct ListOptions {
  std::string ns;  // empty: all
  std::string label_selector;
  std::string field_selector;
  int64_t limit = 500;         // per page; 0: all on one
  std::string continue_token;  // of the page before
};

struct ListPage {
  std::vector<Json> items;  // apiVersion and kind are filled in
  std::string resource_version;
  std::string continue_token;  // empty: this was the last page
};

struct WatchOptions {
  std::string ns;
  std::string label_selector;
  std::string field_selector;
  // Events after this version. Empty with `send_initial_events`: all objects first, as ADDED, then
  // a bookmark of which EndsInitialEvents is true.
  std::string resource_version;
  bool send_initial_events = false;
  absl::Duration timeout = absl::Minutes(5);  // the server ends the watch after so long
  absl::Duration idle_timeout = absl::Seconds(150);
};

// One API server. Any thread; every call blocks, at most its implementation's timeout and retries.
// Errors are ApiError::ToStatus of the server's answer, with the call before the message
// ("get pods ns/name: ..."), or Unavailable and DeadlineExceeded from the connection. Not OK:
// nothing was written, unless IsOutcomeUnknown.
class Client {
 public:
  virtual ~Client() = default;

  // With Subresource::kScale, the Scale object.
  virtual absl::StatusOr<Json> Get(const ResourceType& type, const ObjectKey& key,
                                   Subresource subresource) = 0;
  virtual absl::StatusOr<ListPage> List(const ResourceType& type, const ListOptions& options) = 0;

  // Creates `object` in `ns`; its metadata has a name or a generateName. apiVersion and kind are
  // filled in where they are missing. Returns what the server made of it.
  virtual absl::StatusOr<Json> Create(const ResourceType& type, absl::string_view ns,
                                      const Json& object, const WriteOptions& options) = 0;
  // Replaces; with a resourceVersion in `object` only what has that version.
  virtual absl::StatusOr<Json> Update(const ResourceType& type, const ObjectKey& key,
                                      const Json& object, const WriteOptions& options) = 0;
  // kApply creates what is not there, a deleted object too, unless `body` has a metadata.uid.
  virtual absl::StatusOr<Json> Patch(const ResourceType& type, const ObjectKey& key, PatchKind kind,
                                     const Json& body, const WriteOptions& options) = 0;
  // Returns the object on its way out, or a metav1.Status.
  virtual absl::StatusOr<Json> Delete(const ResourceType& type, const ObjectKey& key,
                                      const DeleteOptions& options) = 0;

  using WatchSink = std::function<absl::Status(WatchEvent)>;
  // Blocks; calls `sink` on this thread. OK: the watch ended cleanly, go on from the last version
  // seen. OutOfRange: that version is forgotten, list again. InvalidArgument: initial events are
  // not supported. Unavailable and DeadlineExceeded (silence): go on from the last version.
  // Cancelled. An error of the sink: that error.
  virtual absl::Status Watch(const ResourceType& type, const WatchOptions& options,
                             const WatchSink& sink, Cancellation* cancellation) = 0;
};

// All pages. A list whose next page has expired starts again, at most `max_restarts` times. `strip`
// (may be null) is applied to the objects of each page before the next page is requested.
absl::StatusOr<ListPage> ListAll(Client* client, const ResourceType& type, ListOptions options,
                                 int max_restarts,
                                 const std::function<void(Json*)>& strip = nullptr);

// Creates an object with a given name, also through calls whose outcome is unknown: then it looks,
// before it tries again, whether the object is there. `is_ours` tells whether an object found is
// the one that an earlier try made (by the owner's uid, say). Returns the object, made now or found
// ours. AlreadyExists: another's object has the name. At most `tries` creations.
absl::StatusOr<Json> CreateOrFind(Client* client, const ResourceType& type, absl::string_view ns,
                                  const Json& object, const WriteOptions& options,
                                  const std::function<bool(const Json&)>& is_ours, int tries);

}  // namespace sluice::kube

#endif  // SLUICE_OPERATOR_KUBE_CLIENT_H_
