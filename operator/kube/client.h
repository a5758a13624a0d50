// The Kubernetes API as function calls.
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

// A part of an object that is written separately.
enum class Subresource { kNone, kStatus, kScale };

// The content type of a patch, which decides how the server merges it.
enum class PatchKind {
  kMerge,  // RFC 7386
  kJson,   // RFC 6902
  kApply,  // server-side apply
};

// Whether the objects that the deleted one owns are deleted too, and in which order. kDefault: as
// the server decides for the type.
enum class Propagation { kDefault, kBackground, kForeground, kOrphan };

struct WriteOptions {
  Subresource subresource = Subresource::kNone;
  std::string field_manager;  // required by kApply
  bool force = false;         // kApply: take over fields of other managers
  bool dry_run = false;       // everything is checked, nothing is stored
};

struct DeleteOptions {
  // Preconditions: the object is deleted only if these match (otherwise Aborted); empty: no
  // precondition.
  std::string uid;
  std::string resource_version;
  std::optional<int64_t> grace_period_seconds;  // 0: immediately
  Propagation propagation = Propagation::kDefault;
};

struct ListOptions {
  std::string ns;  // empty: all
  std::string label_selector;
  std::string field_selector;
  int64_t limit = 500;         // per page; 0: one page
  std::string continue_token;  // from the previous page
};

// One page of a list. All pages of one list show the same version.
struct ListPage {
  std::vector<Json> items;  // apiVersion and kind are filled in
  std::string resource_version;
  std::string continue_token;  // empty: this was the last page
};

// The objects to watch, and where to begin.
struct WatchOptions {
  std::string ns;
  std::string label_selector;
  std::string field_selector;
  // Events after this version. Empty with `send_initial_events`: all objects come first, as ADDED,
  // and then a bookmark for which EndsInitialEvents is true.
  std::string resource_version;
  bool send_initial_events = false;
  absl::Duration timeout = absl::Minutes(5);  // the server ends the watch after this time
  absl::Duration idle_timeout = absl::Seconds(150);
};

// One API server. Any thread; every call blocks, at most for the timeout and retries of the
// implementation. Errors are ApiError::ToStatus of the server's answer, prefixed with the call
// ("get pods ns/name: ..."), or Unavailable and DeadlineExceeded from the connection. If a call
// returns an error, nothing was written, unless IsOutcomeUnknown.
class Client {
 public:
  virtual ~Client() = default;

  // With Subresource::kScale, the Scale object.
  virtual absl::StatusOr<Json> Get(const ResourceType& type, const ObjectKey& key,
                                   Subresource subresource) = 0;
  virtual absl::StatusOr<ListPage> List(const ResourceType& type, const ListOptions& options) = 0;

  // Creates `object` in `ns`; its metadata has a name or a generateName. A missing apiVersion or
  // kind is filled in. Returns the object as the server stored it.
  virtual absl::StatusOr<Json> Create(const ResourceType& type, absl::string_view ns,
                                      const Json& object, const WriteOptions& options) = 0;
  // Replaces the object; if `object` has a resourceVersion, only that version.
  virtual absl::StatusOr<Json> Update(const ResourceType& type, const ObjectKey& key,
                                      const Json& object, const WriteOptions& options) = 0;
  // kApply creates an object that does not exist (even one that was deleted) unless `body` has a
  // metadata.uid.
  virtual absl::StatusOr<Json> Patch(const ResourceType& type, const ObjectKey& key, PatchKind kind,
                                     const Json& body, const WriteOptions& options) = 0;
  // Returns the object that is being deleted, or a metav1.Status.
  virtual absl::StatusOr<Json> Delete(const ResourceType& type, const ObjectKey& key,
                                      const DeleteOptions& options) = 0;

  using WatchSink = std::function<absl::Status(WatchEvent)>;
  // Blocks; calls `sink` on this thread. OK: the watch ended normally; continue from the last
  // version seen. OutOfRange: the server has forgotten that version; list again. InvalidArgument:
  // the server does not support initial events. Unavailable and DeadlineExceeded (no data for too
  // long): continue from the last version. Cancelled: `cancellation` was cancelled. If the sink
  // returns an error: that error.
  virtual absl::Status Watch(const ResourceType& type, const WatchOptions& options,
                             const WatchSink& sink, Cancellation* cancellation) = 0;
};

// Returns all pages. A list whose next page has expired starts again, at most `max_restarts` times.
// `strip` (may be null) is applied to the objects of each page before the next page is requested.
absl::StatusOr<ListPage> ListAll(Client* client, const ResourceType& type, ListOptions options,
                                 int max_restarts,
                                 const std::function<void(Json*)>& strip = nullptr);

// Creates an object with a given name, even if the outcome of a call is unknown: then it checks
// whether the object exists before it tries again. `is_ours` decides whether an object that exists
// was created by an earlier try (by the owner's uid, for example). Returns the object that was
// created or found. AlreadyExists: a foreign object has the name. At most `tries` creations.
absl::StatusOr<Json> CreateOrFind(Client* client, const ResourceType& type, absl::string_view ns,
                                  const Json& object, const WriteOptions& options,
                                  const std::function<bool(const Json&)>& is_ours, int tries);

}  // namespace sluice::kube

#endif  // SLUICE_OPERATOR_KUBE_CLIENT_H_
