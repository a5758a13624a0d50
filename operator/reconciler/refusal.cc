#include "operator/reconciler/refusal.h"

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "operator/kube/api_error.h"

namespace sluice::reconciler {
namespace {

struct Words {
  const char* text;
  const char* reason;
  const char* advice;
};

// Admission plugins choose code and reason freely (a policy's 422, a webhook's 400), but the texts
// below are Kubernetes' own. The first match decides. Policies come first, because their messages
// may contain any text.
constexpr Words kWords[] = {
    {" denied request: ", "Forbidden",
     "a ValidatingAdmissionPolicy of the cluster refuses it: correct the job's templates, or have "
     "the policy changed"},
    {" denied the request", "Forbidden",
     "an admission webhook of the cluster refuses it: correct the job's templates, or have the "
     "webhook's policy changed"},
    {"failed calling webhook", "WebhookUnavailable",
     "an admission webhook of the cluster does not answer: repair it, or have its failurePolicy "
     "changed"},
    {"exceeded quota: ", "QuotaExceeded", "raise the quota, or request less in the templates"},
    {"failed quota: ", "ResourcesNotSet",
     "the quota limits resources that the templates do not set: set these resources in them"},
    {"violates PodSecurity", "PodSecurityRefused", "correct the templates"},
    {" usage per ", "LimitRangeRefused",
     "correct the resources in the templates, or the namespace's LimitRange"},
    {" limit to request ratio per ", "LimitRangeRefused",
     "correct the resources in the templates, or the namespace's LimitRange"},
    {"error looking up service account ", "ServiceAccountMissing",
     "create the service account, or correct serviceAccountName in the templates"},
    {" because it is being terminated", "NamespaceTerminating",
     "the namespace is being deleted, and the job with it"},
};

bool IsOfPods(absl::string_view message) { return absl::StartsWith(message, "create pods "); }

}  // namespace

Refusal RefusalOf(const absl::Status& status) {
  // FailedPrecondition: the write gate.
  if (status.ok() || kube::IsConflict(status) || absl::IsFailedPrecondition(status) ||
      absl::IsCancelled(status)) {
    return {};
  }

  const std::string message(status.message());
  const auto refusal = [&](const char* reason, const char* advice, bool may_pass = false) {
    return Refusal{{reason, absl::StrCat(message, "; ", advice)}, may_pass};
  };

  if (absl::IsAlreadyExists(status)) {
    return refusal(
        "NameTaken",
        "it is left as it is: delete it, or give the job another name; the job continues "
        "automatically when the name is free");
  }

  for (const Words& words : kWords) {
    if (!absl::StrContains(message, words.text)) continue;
    return refusal(words.reason, words.advice,
                   absl::string_view(words.reason) == "WebhookUnavailable");
  }

  if (absl::IsPermissionDenied(status)) {
    return refusal(
        "Forbidden",
        "if the operator has no permission for this, restore the roles of its chart (helm "
        "upgrade); otherwise change the policy that this message names");
  }

  if (absl::IsInvalidArgument(status) && IsOfPods(message)) {
    return refusal("InvalidTemplate", "correct the template of the role in the job");
  }
  if (absl::IsInvalidArgument(status)) {
    return refusal(
        "ObjectRefused",
        "the API server rejects an object that the operator creates for the job: correct the "
        "job's field from which the named field is made, or report a bug of the operator");
  }

  return refusal(
      "APIServerUnavailable",
      "the operator retries at least every 30 s: check the API server, and the operator's "
      "log",
      /*may_pass=*/true);
}

}  // namespace sluice::reconciler
