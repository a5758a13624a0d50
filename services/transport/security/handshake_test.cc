#include "services/transport/security/handshake.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice::security {
namespace {

using ::testing::HasSubstr;

std::string FactOf(const absl::Status& status, bool tls) {
  const std::optional<HandshakeProblem> problem = FindHandshakeProblem(status, tls);
  return problem.has_value() ? problem->fact : "";
}

TEST(HandshakeTest, ExplainsTlsOnOneSideOnly) {
  EXPECT_THAT(
      FactOf(absl::UnavailableError("Ssl handshake failed: SSL_ERROR_SSL: error:100000f7:SSL "
                                    "routines:OPENSSL_internal:WRONG_VERSION_NUMBER "
                                    "wrong version number"),
             true),
      HasSubstr("the other side uses plain text, and this side uses TLS"));
  EXPECT_THAT(FactOf(absl::UnavailableError("Socket closed"), false),
              HasSubstr("this side uses plain text; the other side may use TLS"));
  EXPECT_THAT(FactOf(absl::UnavailableError("recvmsg:Connection reset by peer"), false),
              HasSubstr("the other side may use TLS"));
}

TEST(HandshakeTest, ExplainsRefusedCertificates) {
  EXPECT_THAT(FactOf(absl::UnavailableError("error: certificate verify failed"), true),
              HasSubstr("not issued by this job's authority"));
  EXPECT_THAT(FactOf(absl::UnavailableError("Hostname Verification Check failed."), true),
              HasSubstr("belongs to another role"));
  EXPECT_THAT(FactOf(absl::UnavailableError("Socket closed"), true),
              HasSubstr("this side's certificate was refused"));
}

TEST(HandshakeTest, LeavesOtherErrorsUnchanged) {
  for (const bool tls : {false, true}) {
    EXPECT_EQ(FactOf(absl::UnavailableError("connection refused"), tls), "");
    EXPECT_EQ(FactOf(absl::NotFoundError("socket closed"), tls), "");
    EXPECT_EQ(FactOf(absl::OkStatus(), tls), "");
  }
  const absl::Status other = absl::UnavailableError("connection refused");
  EXPECT_EQ(ExplainHandshake(other, true, ""), other);
}

TEST(HandshakeTest, AppendsExplanationAndHelpToMessage) {
  const absl::Status closed = absl::UnavailableError("Socket closed");
  EXPECT_EQ(ExplainHandshake(closed, false, "").message(),
            "Socket closed (this side uses plain text; the other side may use TLS; if the job "
            "uses TLS, start this process with --tls-directory too)");
  EXPECT_THAT(ExplainHandshake(closed, false, "ask the cluster").message(),
              HasSubstr("TLS; ask the cluster)"));
}

}  // namespace
}  // namespace sluice::security
