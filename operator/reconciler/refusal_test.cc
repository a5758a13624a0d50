#include "operator/reconciler/refusal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "operator/kube/api_error.h"

namespace sluice::reconciler {
namespace {

using ::testing::HasSubstr;

// An answer of an API server, as kube::HttpClient returns it.
absl::Status Answer(int code, const std::string& reason, const std::string& message,
                    const std::string& call = "create pods ns/a-worker-0") {
  return kube::Annotate(kube::ApiError{code, reason, message, {}}.ToStatus(), call);
}

struct Case {
  std::string name;
  absl::Status status;
  std::string reason;
  std::string advice;
  bool may_pass = false;
};

class RefusalTest : public ::testing::TestWithParam<Case> {};

TEST_P(RefusalTest, HasTheReasonAndAdviceOfItsCause) {
  const Case& given = GetParam();
  const Refusal refusal = RefusalOf(given.status);
  EXPECT_EQ(refusal.problem.reason, given.reason);
  EXPECT_THAT(refusal.problem.message, HasSubstr(std::string(given.status.message())));
  EXPECT_THAT(refusal.problem.message, HasSubstr(given.advice));
  EXPECT_EQ(refusal.may_pass, given.may_pass);
}

// The texts are from Kubernetes 1.34.
INSTANTIATE_TEST_SUITE_P(
    Causes, RefusalTest,
    ::testing::Values(
        Case{"QuotaUsedUp",
             Answer(403, "Forbidden",
                    "pods \"a-worker-0\" is forbidden: exceeded quota: small, requested: pods=1, "
                    "used: pods=2, limited: pods=2"),
             "QuotaExceeded", "raise the quota"},
        Case{"QuotaOnResourcesNotSet",
             Answer(403, "Forbidden",
                    "pods \"a-worker-0\" is forbidden: failed quota: small: must specify "
                    "limits.cpu for: worker; limits.memory for: worker"),
             "ResourcesNotSet", "set these resources"},
        Case{"LimitRangeMaximum",
             Answer(403, "Forbidden",
                    "pods \"a-worker-0\" is forbidden: maximum memory usage per Container is "
                    "512Mi, but limit is 1Gi"),
             "LimitRangeRefused", "the namespace's LimitRange"},
        Case{"LimitRangeRatio",
             Answer(403, "Forbidden",
                    "pods \"a-worker-0\" is forbidden: cpu max limit to request ratio per "
                    "Container is 2, but provided ratio is 4.000000"),
             "LimitRangeRefused", "the namespace's LimitRange"},
        Case{"PodSecurity",
             Answer(403, "Forbidden",
                    "pods \"a-worker-0\" is forbidden: violates PodSecurity \"restricted:latest\": "
                    "unrestricted capabilities (container \"worker\" must not include "
                    "\"SYS_ADMIN\" in securityContext.capabilities.add)"),
             "PodSecurityRefused", "correct the templates"},
        Case{"NoServiceAccount",
             Answer(403, "Forbidden",
                    "pods \"a-worker-0\" is forbidden: error looking up service account ns/train: "
                    "serviceaccount \"train\" not found"),
             "ServiceAccountMissing", "serviceAccountName"},
        Case{"NamespaceTerminating",
             Answer(403, "Forbidden",
                    "pods \"a-worker-0\" is forbidden: unable to create new content in namespace "
                    "ns because it is being terminated"),
             "NamespaceTerminating", "is being deleted"},
        Case{"Rights",
             Answer(403, "Forbidden",
                    "pods is forbidden: User \"system:serviceaccount:sluice-system:sluice\" cannot "
                    "create resource \"pods\" in API group \"\" in the namespace \"ns\""),
             "Forbidden", "the roles of its chart"},
        Case{"AdmissionPolicy",
             Answer(422, "Invalid",
                    "pods \"a-worker-0\" is forbidden: ValidatingAdmissionPolicy 'labels' with "
                    "binding 'labels' denied request: every pod names its team"),
             "Forbidden", "a ValidatingAdmissionPolicy"},
        Case{"AdmissionPolicyThatMentionsQuotas",
             Answer(403, "Forbidden",
                    "pods \"a-worker-0\" is forbidden: ValidatingAdmissionPolicy 'p' with binding "
                    "'p' denied request: exceeded quota: of our own"),
             "Forbidden", "a ValidatingAdmissionPolicy"},
        Case{"Webhook",
             Answer(400, "",
                    "admission webhook \"validate.example.com\" denied the request: no team"),
             "Forbidden", "an admission webhook"},
        Case{"WebhookWithoutAMessage",
             Answer(403, "Forbidden",
                    "admission webhook \"validate.example.com\" denied the request without "
                    "explanation"),
             "Forbidden", "an admission webhook"},
        Case{"DeadWebhook",
             Answer(500, "InternalError",
                    "Internal error occurred: failed calling webhook \"validate.example.com\": "
                    "failed to call webhook: Post \"https://gate.policy.svc:443/?timeout=10s\": "
                    "dial tcp 10.96.0.7:443: connect: connection refused"),
             "WebhookUnavailable", "its failurePolicy", true},
        Case{"Template",
             Answer(422, "Invalid",
                    "Pod \"a-worker-0\" is invalid: spec.containers[0].resources.requests: Invalid "
                    "value: \"2\": must be less than or equal to cpu limit of 1"),
             "InvalidTemplate", "correct the template"},
        Case{"UnknownFieldOfATemplate",
             Answer(400, "BadRequest",
                    "Pod in version \"v1\" cannot be handled as a Pod: strict decoding error: "
                    "unknown field \"spec.containers[0].comand\""),
             "InvalidTemplate", "correct the template"},
        Case{"ObjectOtherThanAPod",
             Answer(422, "Invalid", "Service \"a\" is invalid: spec.clusterIPs[0]: Invalid value",
                    "create services ns/a"),
             "ObjectRefused", "correct the job's field"},
        Case{"ForeignName",
             absl::AlreadyExistsError("the Service ns/a already exists and was created by helm"),
             "NameTaken", "delete it, or give the job another name"},
        Case{"Unauthorized", Answer(401, "Unauthorized", "Unauthorized"), "APIServerUnavailable",
             "operator's log", true},
        Case{"NoSuchKind",
             Answer(404, "NotFound", "the server could not find the requested resource"),
             "APIServerUnavailable", "operator's log", true},
        Case{"TooManyRequests",
             Answer(429, "TooManyRequests", "the server has received too many requests"),
             "APIServerUnavailable", "operator's log", true},
        Case{"Storage",
             Answer(500, "InternalError", "Internal error occurred: etcdserver: request timed out"),
             "APIServerUnavailable", "operator's log", true},
        Case{"NoAnswer", absl::UnavailableError("create pods ns/a-worker-0: connection refused"),
             "APIServerUnavailable", "operator's log", true}),
    [](const auto& info) { return info.param.name; });

TEST(NoRefusalTest, ErrorsThatARetryResolvesAreNotReported) {
  for (const absl::Status& status :
       {absl::OkStatus(),
        Answer(409, "Conflict", "Operation cannot be fulfilled on services \"a\": modified"),
        absl::FailedPreconditionError("not the leader"), absl::CancelledError("stopping")}) {
    EXPECT_TRUE(RefusalOf(status).problem.empty()) << status;
  }
}

}  // namespace
}  // namespace sluice::reconciler
