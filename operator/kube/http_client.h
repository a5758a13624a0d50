#ifndef SLUICE_OPERATOR_KUBE_HTTP_CLIENT_H_
#define SLUICE_OPERATOR_KUBE_HTTP_CLIENT_H_

#include <functional>
#include <string>

#include "operator/kube/client.h"
#include "operator/kube/http.h"
#include "operator/kube/retry.h"
#include "operator/kube/write_gate.h"

namespace sluice::kube {

// A Client on top of a transport.
//
// Failed calls are retried according to RetryDelay. Idempotent calls are reads, applies, updates,
// and deletes and patches with a uid or resourceVersion as precondition. A repeated write whose
// first try took effect may return NotFound (delete) or Aborted (the resourceVersion has changed):
// the object is as wanted, and the next read shows it. Creations are never retried: see
// CreateOrFind.
class HttpClient final : public Client {
 public:
  struct Options {
    absl::Duration timeout = absl::Seconds(30);  // of one try
    RetryPolicy retry;
    // Blocks for this long; absl::SleepFor in the product.
    std::function<void(absl::Duration)> sleep;
    // Checked before each write is sent, retries included; null: no check. Outlives this.
    WriteGate* write_gate = nullptr;
    // For metrics; called after each try, on the caller's thread. `code` is 0 if there was no
    // answer.
    std::function<void(const std::string& verb, const std::string& resource, int code,
                       absl::Duration)>
        on_call;
    std::function<absl::Time()> now;  // for on_call; may be null without it
  };

  // `transport` outlives this.
  HttpClient(HttpTransport* transport, Options options);

  absl::StatusOr<Json> Get(const ResourceType& type, const ObjectKey& key,
                           Subresource subresource) override;
  absl::StatusOr<ListPage> List(const ResourceType& type, const ListOptions& options) override;
  absl::StatusOr<Json> Create(const ResourceType& type, absl::string_view ns, const Json& object,
                              const WriteOptions& options) override;
  absl::StatusOr<Json> Update(const ResourceType& type, const ObjectKey& key, const Json& object,
                              const WriteOptions& options) override;
  absl::StatusOr<Json> Patch(const ResourceType& type, const ObjectKey& key, PatchKind kind,
                             const Json& body, const WriteOptions& options) override;
  absl::StatusOr<Json> Delete(const ResourceType& type, const ObjectKey& key,
                              const DeleteOptions& options) override;
  absl::Status Watch(const ResourceType& type, const WatchOptions& options, const WatchSink& sink,
                     Cancellation* cancellation) override;

 private:
  // One call of the API: the request, and how it may be repeated.
  struct Call {
    std::string verb;  // "get", "list", ...: in messages and metrics
    const ResourceType* type;
    ObjectKey key;
    HttpRequest request;
    bool write = false;
    bool idempotent = false;
  };

  // Sends the call with retries, and parses the answer as an object. DATA_LOSS: it is not one.
  absl::StatusOr<Json> Run(const Call& call);
  // Sends the call once, if the write gate allows it, and reports it to on_call. An answer other
  // than 2xx is an error.
  absl::StatusOr<HttpResponse> Try(const Call& call);

  HttpTransport* const transport_;
  const Options options_;
};

}  // namespace sluice::kube

#endif  // SLUICE_OPERATOR_KUBE_HTTP_CLIENT_H_
