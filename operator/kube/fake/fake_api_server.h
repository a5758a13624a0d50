#ifndef SLUICE_OPERATOR_KUBE_FAKE_FAKE_API_SERVER_H_
#define SLUICE_OPERATOR_KUBE_FAKE_FAKE_API_SERVER_H_

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "operator/kube/fake/object_store.h"
#include "operator/kube/http.h"
#include "services/common/threads/mutex.h"
#include "services/common/time/clock.h"

namespace sluice::kube {

// An API server in memory. It handles the requests of the product's client, either directly (it is
// a transport) or behind the loopback server of http_front.h. Any thread.
class FakeApiServer final : public HttpTransport {
 public:
  struct Options {
    size_t history_limit = 1000;
    // A watch ends normally as soon as it has sent all existing changes, so tests need no threads.
    // Otherwise it lasts until its timeout by the clock, CutWatches, or its cancellation.
    bool end_watches_when_drained = true;
    // The answer to a watch from a forgotten version: an ERROR event in a 200 stream, or a plain
    // 410.
    bool gone_as_event = true;
    bool streaming_lists = true;  // false: refuses sendInitialEvents with 422
    // Sizes of the pieces in which a watch's bytes are sent; 0: one event at a time.
    size_t piece_bytes = 0;
  };

  // The fault of one call.
  struct Fault {
    // The call takes effect before the fault.
    bool after_effect = false;
    // If not OK: the connection breaks with this status.
    absl::Status status;
    // Otherwise this is the answer.
    HttpResponse response;
  };

  // `clock` outlives this.
  FakeApiServer(const Clock* clock, Options options);

  // To be called before the first request.
  void RegisterType(FakeType type);

  // Called for each request, without this object's lock; nullopt: no fault.
  using FaultInjector = std::function<std::optional<Fault>(const HttpRequest&)>;
  void SetFaultInjector(FaultInjector injector);

  absl::StatusOr<HttpResponse> Do(const HttpRequest& request) override;
  absl::StatusOr<HttpResponse> Stream(const HttpRequest& request, const BodySink& sink,
                                      Cancellation* cancellation) override;

  // Ends all running watches: normally, or like a broken connection.
  void CutWatches(bool cleanly);
  // Sends a bookmark of the newest version to running watches and, in drained mode, to each later
  // watch at its end.
  void SendBookmarks();
  // Forgets the history and the pages of lists, as etcd's compaction does.
  void Compact();
  // Does the work of the controller manager.
  int CollectGarbage();

  // "POST /api/v1/namespaces/ns/pods": all calls with a method other than GET, including failed
  // ones, in order.
  std::vector<std::string> Writes() const;
  // All calls, with their queries.
  std::vector<std::string> Requests() const;
  int64_t version() const;
  int running_watches() const;

 private:
  struct Route {
    const FakeType* type = nullptr;
    ObjectKey key;
    std::string subresource;
    std::map<std::string, std::string> query;
  };
  struct Watch;

  absl::StatusOr<Route> Parse(const HttpRequest& request) const;
  std::optional<Fault> Note(const HttpRequest& request);
  absl::StatusOr<Json> Serve(const HttpRequest& request, const Route& route)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Json> ServePatch(const HttpRequest& request, const Route& route, const Json& body)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Json> ServeList(const Route& route) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status StartWatch(const Route& route, Watch* watch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The next bytes for the watch; sets `ended` if it ends. Blocks.
  absl::StatusOr<std::string> NextBytes(Watch* watch, bool* ended)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status SendPieces(const std::string& bytes, const BodySink& sink) const;

  const Clock* const clock_;
  const Options options_;
  std::vector<FakeType> types_;
  mutable Mutex mutex_;
  CondVar changed_;
  ObjectStore store_ ABSL_GUARDED_BY(mutex_);
  FaultInjector injector_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> requests_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> writes_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::pair<int64_t, std::vector<Json>>> pages_ ABSL_GUARDED_BY(mutex_);
  int last_page_ ABSL_GUARDED_BY(mutex_) = 0;
  int cuts_ ABSL_GUARDED_BY(mutex_) = 0;
  bool cut_cleanly_ ABSL_GUARDED_BY(mutex_) = true;
  int bookmarks_ ABSL_GUARDED_BY(mutex_) = 0;
  int running_watches_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace sluice::kube

#endif  // SLUICE_OPERATOR_KUBE_FAKE_FAKE_API_SERVER_H_
