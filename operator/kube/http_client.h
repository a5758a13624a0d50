#ifndef SLUICE_OPERATOR_KUBE_HTTP_CLIENT_H_
#define SLUICE_OPERATOR_KUBE_HTTP_CLIENT_H_

#include <functional>
#include <string>

#include "operator/kube/client.h"
#include "operator/kube/http.h"
#include "operator/kube/retry.h"
#include "operator/kube/write_gate.h"

namespace sluice::kube {

// Client over a transport.
//
// A call is tried again as RetryDelay says. Idempotent are: reads, apply, deletes and patches that
// have a uid or resourceVersion as precondition, and updates. A repeated write whose first try had
// its effect may come back as NotFound (delete) or Aborted (a resourceVersion that is used up): the
// world is as wanted, and reading again shows it. Creations are never repeated: CreateOrFind.
class HttpClient final : public Client {
 public:
  struct Options {
    absl::Duration timeout = absl::Seconds(30);  // of one try
    RetryPolicy retry;
    // Blocks for so long; absl::SleepFor where the product runs.
    std::function<void(absl::Duration)> sleep;
    // Asked before each write that is sent, each try anew; null: none. Outlives this.
    WriteGate* write_gate = nullptr;
    // For metrics; called after each try, on the caller's thread. `code` is 0 without an answer.
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
  struct Call {
    std::string verb;  // "get", "list", ...: in messages and metrics
    const ResourceType* type;
    ObjectKey key;
    HttpRequest request;
    bool write = false;
    bool idempotent = false;
  };

  absl::StatusOr<Json> Run(const Call& call);
  absl::StatusOr<HttpResponse> Try(const Call& call);

  HttpTransport* const transport_;
  const Options options_;
};

}  // namespace sluice::kube

#endif  // SLUICE_OPERATOR_KUBE_HTTP_CLIENT_H_
