#include "cli/cluster/job_credentials.h"

#include <gmock/gmock.h>
#include <grpcpp/server_context.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "operator/kube/fake/fake_api_server.h"
#include "operator/kube/http_client.h"
#include "operator/reconciler/names.h"
#include "proto/jobcontrol.grpc.pb.h"
#include "services/common/time/clock.h"
#include "services/common/tls/certificates.h"
#include "services/snapshot/running_snapshot.h"
#include "services/transport/security/identity.h"
#include "services/transport/security/transport_security.h"
#include "services/transport/server/grpc_server.h"

namespace sluice::cli {
namespace {

using kube::Json;
using ::testing::AllOf;
using ::testing::HasSubstr;

// A coordinator of a job without tensors; it records the peer of the last call.
class Coordinator final : public v1::JobControl::Service {
 public:
  grpc::Status OpenSnapshot(grpc::ServerContext* context, const v1::OpenSnapshotRequest*,
                            grpc::ServerWriter<v1::Snapshot>* writer) override {
    const auto peer = security::PeerOf(*context->auth_context());
    asked_by = peer.has_value() ? peer->ToString() : "no certificate";
    v1::Snapshot snapshot;
    snapshot.set_version(500);
    snapshot.mutable_layout()->set_partitions(1);
    writer->Write(snapshot);
    return grpc::Status::OK;
  }

  std::string asked_by;  // read only while no call is in progress
};

class JobCredentialsTest : public ::testing::Test {
 protected:
  JobCredentialsTest()
      : authority_(
            tls::MakeAuthority("mnist", {now_ - absl::Hours(2), now_ + absl::Hours(1)}).value()) {
    server_.RegisterType({reconciler::Secrets(), false, "", "", false});
    kube::HttpClient::Options options;
    options.sleep = [](absl::Duration) {};
    connection_.client = std::make_unique<kube::HttpClient>(&server_, std::move(options));
    connection_.ns = "team";
  }

  static Json Job(const Json& spec = Json::object(), const Json& status = Json::object()) {
    return {{"metadata", {{"name", "mnist"}, {"namespace", "team"}}},
            {"spec", spec},
            {"status", status}};
  }

  tls::KeyPair Issue(v1::Role role, absl::Duration valid = absl::Hours(1)) const {
    return tls::Issue(authority_, security::SubjectOf({"team/mnist", role, 0}),
                      {now_ - absl::Hours(2), now_ + valid})
        .value();
  }

  // The Secret as the operator writes it.
  void AddSecret(const std::map<std::string, std::string>& data) {
    Json secret = {{"metadata", {{"name", "mnist-tls-reader"}}}, {"data", Json::object()}};
    for (const auto& [key, text] : data) secret["data"][key] = absl::Base64Escape(text);
    ASSERT_TRUE(connection_.client->Create(reconciler::Secrets(), "team", secret, {}).ok());
  }
  void AddReader(const tls::KeyPair& pair) {
    AddSecret({{"ca.crt", authority_.certificate},
               {"0.crt", pair.certificate},
               {"0.key", pair.private_key}});
  }
  std::string Refusal() {
    const absl::Status status = ReaderCredentials(connection_, Job(), now_).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    return std::string(status.message());
  }

  std::string Serve(bool with_tls) {
    std::shared_ptr<grpc::ServerCredentials> credentials;
    if (with_tls) {
      credentials =
          security::TransportSecurity::FromMemory(authority_.certificate, Issue(v1::COORDINATOR))
              ->MakeServerCredentials();
    }
    auto started = GrpcServer::Start(
        {.credentials = std::move(credentials), .grace = absl::Milliseconds(200)}, {&generated_});
    EXPECT_TRUE(started.ok()) << started.status();
    coordinator_server_ = *std::move(started);
    return absl::StrCat("127.0.0.1:", coordinator_server_->port());
  }
  absl::StatusOr<RunningSnapshot> Pull(const std::string& address,
                                       std::shared_ptr<grpc::ChannelCredentials> credentials) {
    SnapshotSource source;
    source.coordinator = address;
    source.credentials = std::move(credentials);
    source.handshake_help = "look into its status";
    return PullSnapshot(source, "team/mnist/1", absl::Seconds(20));
  }

  const RealClock clock_;
  const absl::Time now_ = absl::Now();
  const tls::KeyPair authority_;
  kube::FakeApiServer server_{&clock_, {}};
  Connection connection_;
  Coordinator coordinator_;
  GeneratedService generated_{&coordinator_};
  std::unique_ptr<GrpcServer> coordinator_server_;
};

TEST_F(JobCredentialsTest, PlainTextJobNeedsNoCredentials) {
  for (const Json& job : {Job({{"tls", "Disabled"}}), Job({}, {{"tls", "Disabled"}}),
                          Job({}, {{"summary", "written by an operator without TLS"}})}) {
    const auto credentials = ReaderCredentials(connection_, job, now_);
    ASSERT_TRUE(credentials.ok()) << credentials.status();
    EXPECT_EQ(*credentials, nullptr);
  }
  EXPECT_TRUE(Pull(Serve(false), nullptr).ok());
}

TEST_F(JobCredentialsTest, ConnectsToTlsJobAsReader) {
  AddReader(Issue(v1::READER));
  const auto credentials = ReaderCredentials(connection_, Job({}, {{"tls", "Enabled"}}), now_);
  ASSERT_TRUE(credentials.ok()) << credentials.status();
  const auto snapshot = Pull(Serve(true), *credentials);
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  EXPECT_EQ(snapshot->version, 500u);
  EXPECT_EQ(coordinator_.asked_by, "reader of team/mnist");
}

TEST_F(JobCredentialsTest, ReportsThatOneSideUsesPlainText) {
  AddReader(Issue(v1::READER));
  const auto credentials = ReaderCredentials(connection_, Job(), now_);
  ASSERT_TRUE(credentials.ok()) << credentials.status();
  EXPECT_THAT(Pull(Serve(false), *credentials).status().message(),
              HasSubstr("(the other side uses plain text, and this side uses TLS; look into its "));
  EXPECT_THAT(Pull(Serve(true), nullptr).status().message(),
              HasSubstr("(this side uses plain text; the other side may use TLS; look into"));
}

TEST_F(JobCredentialsTest, ForbiddenSecretErrorShowsRequiredRole) {
  server_.SetFaultInjector([](const kube::HttpRequest&) {
    std::optional<kube::FakeApiServer::Fault> fault(std::in_place);
    fault->response.code = 403;
    fault->response.body = Json{{"kind", "Status"},
                                {"reason", "Forbidden"},
                                {"message",
                                 "secrets \"mnist-tls-reader\" is forbidden: User \"ann\" "
                                 "cannot get resource \"secrets\""}}
                               .dump();
    return fault;
  });
  EXPECT_THAT(Refusal(),
              AllOf(HasSubstr("mnist uses TLS"), HasSubstr("User \"ann\" cannot get resource"),
                    HasSubstr("kubectl create role mnist-reader -n team --verb=get "
                              "--resource=secrets --resource-name=mnist-tls-reader"),
                    HasSubstr("kubectl create rolebinding mnist-reader -n team")));
}

TEST_F(JobCredentialsTest, ReportsSecretThatDoesNotExistYet) {
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("mnist-tls-reader"), HasSubstr("does not exist (yet)"),
                               HasSubstr("kubectl describe stj mnist -n team")));
}

TEST_F(JobCredentialsTest, RejectsExpiredCertificateBeforeUse) {
  AddReader(Issue(v1::READER, -absl::Hours(1)));
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("Secret mnist-tls-reader: "), HasSubstr("expired"),
                               HasSubstr("kubectl delete secret mnist-tls-reader -n team")));
}

TEST_F(JobCredentialsTest, ReportsSecretWithoutEntries) {
  AddSecret({{"ca.crt", authority_.certificate}});
  EXPECT_THAT(Refusal(), HasSubstr("Secret mnist-tls-reader: "));
}

}  // namespace
}  // namespace sluice::cli
