// Carries out job_tls.h's plans for one job, through a cache that lags behind.
#ifndef SLUICE_OPERATOR_RECONCILER_SECRET_KEEPER_H_
#define SLUICE_OPERATOR_RECONCILER_SECRET_KEEPER_H_

#include <grpcpp/security/credentials.h>

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "operator/kube/client.h"
#include "operator/kube/object.h"
#include "operator/reconciler/job_tls.h"
#include "operator/reconciler/job_view.h"
#include "operator/runtime/informer.h"

namespace sluice::reconciler {

// What it keeps only saves work and may be lost at any time. One call at a time.
class SecretKeeper {
 public:
  // Makes and renews the job's Secrets, where something is to be done. Blocks for the API server.
  // ALREADY_EXISTS: another's object has the name. A conflict (kube::IsConflict): a Secret was
  // written meanwhile, the cache will show it.
  absl::Status Keep(const JobView& job, uint32_t shards, kube::Client* client,
                    const runtime::Informer& cache, absl::Time now);

  // What the operator shows the job's coordinator; the same until it is renewed. Null while there
  // is no authority.
  std::shared_ptr<grpc::ChannelCredentials> ForOperator(const JobView& job,
                                                        const runtime::Informer& cache,
                                                        absl::Time now);

  // Keep, then, though nothing changes.
  absl::Time look_again() const { return look_again_; }

  // When the first of the processes' certificates expires, as of the last Keep; infinite future:
  // there is none.
  absl::Time expiry() const { return expiry_; }

 private:
  LiveSecrets Gather(const JobView& job, const runtime::Informer& cache, absl::Time now);
  absl::Status Write(const JobView& job, const kube::Json& secret, kube::Client* client,
                     absl::Time now);

  // Written, and not seen in the cache yet.
  std::map<std::string, std::pair<runtime::ObjectPtr, absl::Time>> written_;
  // What the last plan that wanted nothing began with; while that is so, no other is made.
  std::string settled_;
  absl::Time settled_until_ = absl::InfinitePast();
  absl::Time look_again_ = absl::InfiniteFuture();
  absl::Time expiry_ = absl::InfiniteFuture();

  std::string issued_by_;  // version of the authority's Secret
  absl::Time issued_until_ = absl::InfinitePast();
  std::shared_ptr<grpc::ChannelCredentials> credentials_;
};

}  // namespace sluice::reconciler

#endif  // SLUICE_OPERATOR_RECONCILER_SECRET_KEEPER_H_
