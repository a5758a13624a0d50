#include "services/transport/security/identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace sluice::security {
namespace {

using ::testing::HasSubstr;

const PeerIdentity kWorker3 = {"team-a/mnist", v1::WORKER, 3};

v1::ProcessId Process(v1::Role role, uint32_t index) {
  v1::ProcessId process;
  process.set_role(role);
  process.set_index(index);
  return process;
}

TEST(IdentityTest, EveryRoleSurvivesRoundTripThroughUri) {
  for (const v1::Role role : {v1::COORDINATOR, v1::SHARD, v1::WORKER, v1::READER, v1::OPERATOR}) {
    const absl::StatusOr<PeerIdentity> parsed = ParseUri(UriOf({"team-a/mnist", role, 7}));
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->role, role);
    EXPECT_EQ(parsed->index, 7u);
    EXPECT_EQ(parsed->job, "team-a/mnist");
  }
  EXPECT_EQ(UriOf(kWorker3), "spiffe://sluice/team-a/mnist/worker/3");
}

TEST(IdentityTest, RefusesOtherUris) {
  for (const char* uri :
       {"", "spiffe://sluice/", "spiffe://other/team-a/mnist/worker/3",
        "spiffe://sluice/team-a/mnist/worker", "spiffe://sluice/team-a/mnist/worker/3/4",
        "spiffe://sluice/team-a/mnist/king/0", "spiffe://sluice/team-a/mnist/worker/-1",
        "spiffe://sluice/team-a/mnist/worker/x", "spiffe://sluice//mnist/worker/0"}) {
    EXPECT_EQ(ParseUri(uri).status().code(), absl::StatusCode::kInvalidArgument) << uri;
  }
}

TEST(IdentityTest, CertificateNamesProcessInOneUri) {
  tls::Certificate certificate;
  certificate.subject = "CN = alice";
  EXPECT_THAT(IdentityOf(certificate).status().message(), HasSubstr("CN = alice"));
  certificate.uris = {UriOf(kWorker3)};
  EXPECT_EQ(IdentityOf(certificate)->ToString(), "worker 3 of team-a/mnist");
  certificate.uris.push_back(UriOf({"team-a/mnist", v1::OPERATOR, 0}));
  EXPECT_EQ(IdentityOf(certificate).status().code(), absl::StatusCode::kUnauthenticated);
}

TEST(IdentityTest, ClaimMustMatchRoleAndIndexOfCertificate) {
  EXPECT_TRUE(CheckClaim(kWorker3, Process(v1::WORKER, 3)).ok());
  for (const v1::ProcessId& other :
       {Process(v1::WORKER, 2), Process(v1::SHARD, 3), Process(v1::COORDINATOR, 0),
        Process(v1::READER, 3), Process(v1::ROLE_UNSPECIFIED, 3)}) {
    const absl::Status status = CheckClaim(kWorker3, other);
    EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << other.DebugString();
    EXPECT_THAT(status.message(), HasSubstr("worker 3 of team-a/mnist"));
  }
}

TEST(IdentityTest, ReadersHaveNoIndex) {
  const PeerIdentity reader = {"team-a/mnist", v1::READER, 0};
  EXPECT_TRUE(CheckClaim(reader, Process(v1::READER, 9)).ok());
  EXPECT_FALSE(CheckClaim(reader, Process(v1::WORKER, 0)).ok());
}

TEST(IdentityTest, AcceptsAnyClaimWithoutCertificates) {
  EXPECT_TRUE(CheckClaim(std::nullopt, Process(v1::WORKER, 3)).ok());
}

}  // namespace
}  // namespace sluice::security
