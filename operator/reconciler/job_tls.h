// The certificates of a job on a cluster: plans which Secrets it needs. Pure except for the keys,
// which are random.
//
// `<job>-tls-ca` has the job's certificate authority with its key; only the operator reads it, and
// no pod mounts it. `<job>-tls-<role>` has the certificates of one role, one for each index (for
// many processes there are several such Secrets), and each pod mounts only its own entries. A
// certificate is renewed when a third of its validity is left; an entry that is missing, damaged,
// expired or issued to another process is replaced at once.
//
// The authority is renewed in two steps: first every bundle (ca.crt) trusts the next one; it signs
// only after kubelets have had time to bring the bundles to all pods. Certificates that the old
// authority signed stay valid until their own renewal. If the authority's Secret is lost, the
// operator creates a new authority, and the bundles trust the lost one until it expires.
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
#include "operator/reconciler/observed_job.h"
#include "services/common/tls/certificates.h"

namespace sluice::reconciler {

constexpr char kTlsDirectory[] = "/etc/sluice-tls";  // in pods

// How long certificates are valid, and how long a bundle takes to reach every pod.
constexpr absl::Duration kAuthorityLife = absl::Hours(24 * 365);
constexpr absl::Duration kCertificateLife = absl::Hours(24 * 30);
constexpr absl::Duration kBundleSpread = absl::Hours(1);

// The Secret with the job's certificate authority.
std::string AuthoritySecretName(const std::string& job);
// The Secret with the certificate of `index` in that role.
std::string TlsSecretName(const std::string& job, v1::Role role, uint32_t index);

// A volume with the files of one process, and nothing else of its Secret.
kube::Json TlsVolume(const std::string& name, const std::string& job,
                     const policy::Replica& replica);

// A job's Secrets, by name.
using LiveSecrets = std::map<std::string, std::shared_ptr<const kube::Json>>;

// The objects to write now, and the time to plan again.
struct TlsPlan {
  // Objects to write, in this order; an object with a resourceVersion replaces that version, the
  // others are created. If the authority has to be written, the plan has only that: it signs
  // certificates once it is stored.
  std::vector<kube::Json> writes;
  absl::Time look_again = absl::InfiniteFuture();
  // The earliest expiry of the processes' certificates in `live`; infinite future: none was read.
  absl::Time expiry = absl::InfiniteFuture();
};

// Plans the Secrets of the coordinator, `shards` shards, `workers` workers and the readers. `live`:
// the Secrets as the caches show them. Errors are those of making keys and certificates; damaged
// Secrets are not errors, but replaced.
absl::StatusOr<TlsPlan> PlanTls(const ObservedJob& job, uint32_t shards, uint32_t workers,
                                const LiveSecrets& live, absl::Time now);

// The certificate of one process, and the bundle that it trusts.
struct ProcessCredentials {
  std::string bundle;
  tls::KeyPair pair;
};
// The credentials of `index` in a Secret named TlsSecretName. INVALID_ARGUMENT: they are missing or
// incomplete. UNAUTHENTICATED: not valid at `now`.
absl::StatusOr<ProcessCredentials> CredentialsIn(const kube::Json& secret, uint32_t index,
                                                 absl::Time now);

// The operator's credentials for the job's coordinator; they are stored nowhere. NOT_FOUND: the job
// has no authority.
struct OperatorCredentials {
  std::string bundle;
  tls::KeyPair pair;
  absl::Time renew_at;
};
absl::StatusOr<OperatorCredentials> IssueForOperator(const ObservedJob& job,
                                                     const kube::Json& authority_secret,
                                                     absl::Time now);

}  // namespace sluice::reconciler

#endif  // SLUICE_OPERATOR_RECONCILER_JOB_TLS_H_
