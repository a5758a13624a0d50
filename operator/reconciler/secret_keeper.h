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
#include "operator/reconciler/observed_job.h"
#include "operator/runtime/informer.h"

namespace sluice::reconciler {

// The state that it keeps only saves work, and may be lost at any time. One call at a time.
class SecretKeeper {
 public:
  // Creates and renews the job's Secrets where necessary. Blocks for the API server.
  // ALREADY_EXISTS: a foreign object has the name. A conflict (kube::IsConflict): a Secret was
  // written meanwhile, and the cache will show it.
  absl::Status Ensure(const ObservedJob& job, uint32_t shards, kube::Client* client,
                      const runtime::Informer& cache, absl::Time now);

  // The operator's credentials for the job's coordinator; the same until they are renewed. Null
  // while there is no authority.
  std::shared_ptr<grpc::ChannelCredentials> ForOperator(const ObservedJob& job,
                                                        const runtime::Informer& cache,
                                                        absl::Time now);

  // When Ensure should be called again even if nothing changes.
  absl::Time look_again() const { return look_again_; }

  // The earliest expiry of the processes' certificates, as of the last Ensure; infinite future:
  // there are none.
  absl::Time expiry() const { return expiry_; }

 private:
  // The job's Secrets as the cache shows them, corrected by `written_`.
  LiveSecrets Gather(const ObservedJob& job, const runtime::Informer& cache, absl::Time now);
  // Creates or replaces one Secret, and adds it to `written_`.
  absl::Status Write(const ObservedJob& job, const kube::Json& secret, kube::Client* client,
                     absl::Time now);

  // Secrets that were written and do not show in the cache yet.
  std::map<std::string, std::pair<runtime::ObjectPtr, absl::Time>> written_;
  // The state in which the last plan had nothing to do; while it is unchanged, no new plan is made.
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
