// The certificates of a job on a cluster: which Secrets there are to be. Pure but for keys, which
// are random.
//
// Intuition. `<job>-tls-ca` has the job's authority with its key; nobody but the operator mounts or
// reads it. `<job>-tls-<role>` has the certificates of one role, one for each index (several such
// Secrets where there are many), and each pod mounts its own entries alone. A certificate is
// renewed when a third of its life is left, an entry that is missing, broken, expired or another's
// at once. The authority is renewed in two steps: the next one is trusted first, in every bundle
// (ca.crt), and signs only when kubelets have had the time to bring the bundles to all pods; what
// the old one signed stays good until it is renewed in its own turn. Whoever loses the authority's
// Secret gets a new one, and the bundles go on trusting the lost one until it expires.
#ifndef SLUICE_OPERATOR_RECONCILER_JOB_TLS_H_
#define SLUICE_OPERATOR_RECONCILER_JOB_TLS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "operator/kube/object.h"
#include "operator/policy/policy.h"
#include "operator/reconciler/job_view.h"
#include "services/common/tls/certificates.h"

namespace sluice::reconciler {

constexpr char kTlsFolder[] = "/etc/sluice-tls";  // in pods

// How long certificates live, and how long a bundle takes to reach every pod.
constexpr absl::Duration kAuthorityLife = absl::Hours(24 * 365);
constexpr absl::Duration kCertificateLife = absl::Hours(24 * 30);
constexpr absl::Duration kBundleSpread = absl::Hours(1);

std::string AuthoritySecretName(const std::string& job);
// Of the role's certificates, where that of `index` is.
std::string TlsSecretName(const std::string& job, v1::Role role, uint32_t index);

// A volume with one process's files, and nothing else of its Secret.
kube::Json TlsVolume(const std::string& name, const std::string& job, const policy::Slot& slot);

// A job's Secrets, by name.
using LiveSecrets = std::map<std::string, std::shared_ptr<const kube::Json>>;

struct TlsPlan {
  // Objects to be written, in this order; those with a resourceVersion replace that version, the
  // others are created. While the authority itself is to be written, that alone: what it signs
  // follows once it is kept.
  std::vector<kube::Json> writes;
  absl::Time look_again = absl::InfiniteFuture();
  // When the first certificate expires of the processes' certificates in `live`; infinite future:
  // none was read.
  absl::Time expiry = absl::InfiniteFuture();
};

absl::StatusOr<TlsPlan> PlanTls(const JobView& job, uint32_t shards, uint32_t workers,
                                const LiveSecrets& live, absl::Time now);

// What one process shows the others.
struct ProcessCredentials {
  std::string bundle;
  tls::KeyPair pair;
};
// Those of `index` in a Secret of TlsSecretName. INVALID_ARGUMENT: they are not there, or not
// whole. UNAUTHENTICATED: not valid at `now`.
absl::StatusOr<ProcessCredentials> CredentialsIn(const kube::Json& secret, uint32_t index,
                                                 absl::Time now);

// What the operator shows the job's coordinator; not kept anywhere. NOT_FOUND: there is no
// authority.
struct OperatorCredentials {
  std::string bundle;
  tls::KeyPair pair;
  absl::Time renew_at;
};
absl::StatusOr<OperatorCredentials> IssueForOperator(const JobView& job,
                                                     const kube::Json& authority_secret,
                                                     absl::Time now);

}  // namespace sluice::reconciler

#endif  // SLUICE_OPERATOR_RECONCILER_JOB_TLS_H_
