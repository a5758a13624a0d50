#include "services/transport/security/transport_security.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <grpcpp/client_context.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/control.grpc.pb.h"
#include "proto/jobcontrol.grpc.pb.h"
#include "services/common/status_macros.h"
#include "services/transport/grpc_settings.h"
#include "services/transport/grpc_status.h"
#include "services/transport/security/credential_directories.h"
#include "services/transport/security/handshake.h"
#include "services/transport/security/job_secret.h"
#include "services/transport/server/connection_guard.h"
#include "services/transport/server/grpc_server.h"
#include "services/transport/testing/watched.h"

namespace sluice::security {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// Answers with the caller's role.
class EchoService final : public v1::JobControl::Service {
 public:
  grpc::Status GetProgress(grpc::ServerContext* context, const v1::GetProgressRequest*,
                           v1::JobProgress* progress) override {
    const std::optional<PeerIdentity> peer = PeerOf(*context->auth_context());
    progress->set_reason(peer.has_value() ? peer->ToString() : "plain text");
    context->AddTrailingMetadata("peer", context->peer());
    return grpc::Status::OK;
  }
  grpc::Status SetDesired(grpc::ServerContext*, const v1::SetDesiredRequest*,
                          v1::SetDesiredResponse*) override {
    return grpc::Status::OK;
  }
};

// Credentials of a client that shows its certificate to a server of any job.
std::shared_ptr<grpc::ChannelCredentials> TrustsAnyServer(const std::string& bundle,
                                                          const tls::KeyPair& pair) {
  return grpc::SslCredentials({.pem_root_certs = bundle,
                               .pem_private_key = pair.private_key,
                               .pem_cert_chain = pair.certificate});
}

class TransportSecurityTest : public ::testing::Test {
 protected:
  TransportSecurityTest()
      : root_(std::filesystem::path(::testing::TempDir()) /
              ::testing::UnitTest::GetInstance()->current_test_info()->name()) {
    std::filesystem::remove_all(root_);
    Make("job");
  }

  void Make(const std::string& name, absl::Time now = absl::Now()) {
    const auto made = WriteCredentialDirectories(files_.get(), root_ / name,
                                                 {.job = "default/mnist", .shards = 2}, now);
    ASSERT_TRUE(made.ok()) << made.status();
  }

  absl::StatusOr<std::shared_ptr<const TransportSecurity>> Open(
      const std::string& directory, v1::Role role, std::optional<uint32_t> index = {}) {
    return TransportSecurity::Open(
        files_.get(),
        {.directory = root_ / directory, .role = role, .index = index, .refresh = absl::Seconds(1)},
        absl::Now());
  }
  std::shared_ptr<const TransportSecurity> MustOpen(const std::string& directory) {
    auto opened = Open(directory, v1::ROLE_UNSPECIFIED);
    EXPECT_TRUE(opened.ok()) << opened.status();
    return opened.ok() ? *std::move(opened) : nullptr;
  }

  void Serve(const std::string& directory) {
    const auto security = directory.empty() ? nullptr : MustOpen(directory);
    auto server = GrpcServer::Start(
        {.credentials = ServerCredentialsOf(security), .grace = absl::Milliseconds(200)},
        {&generated_});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  std::unique_ptr<v1::JobControl::Stub> Dial(std::shared_ptr<grpc::ChannelCredentials> credentials,
                                             ChannelKind kind = ChannelKind::kControl) {
    return v1::JobControl::NewStub(
        MakeChannel({.address = absl::StrCat(host_, ":", server_->port()),
                     .kind = kind,
                     .credentials = std::move(credentials)}));
  }

  struct Answer {
    std::string caller;  // its role, as the server knows it
    std::string peer;    // the server's name of this connection
  };
  static absl::StatusOr<Answer> Call(v1::JobControl::Stub& stub, size_t metadata_bytes) {
    static int number = 0;
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    if (metadata_bytes > 0) {
      context.AddMetadata("x", absl::StrCat(++number, std::string(metadata_bytes, 'x')));
    }
    v1::JobProgress progress;
    const grpc::Status status = stub.GetProgress(&context, {}, &progress);
    if (!status.ok()) return FromGrpcStatus(status);
    Answer answer{progress.reason(), ""};
    const auto& trailers = context.GetServerTrailingMetadata();
    if (const auto peer = trailers.find("peer"); peer != trailers.end()) {
      answer.peer.assign(peer->second.data(), peer->second.size());
    }
    return answer;
  }
  // The identity that the server sees for this client.
  static absl::StatusOr<std::string> Ask(v1::JobControl::Stub& stub) {
    ASSIGN_OR_RETURN(const Answer answer, Call(stub, 0));
    return answer.caller;
  }
  // The server's name of this connection, by a call with some KiB of metadata.
  static absl::StatusOr<std::string> AskMuch(v1::JobControl::Stub& stub) {
    ASSIGN_OR_RETURN(const Answer answer, Call(stub, 6000));
    return answer.peer;
  }

  // A client whose calls are admitted sends more than any other client may, and keeps its
  // connection.
  void ExpectKeepsThatOneAndDisconnectsThis(
      std::shared_ptr<grpc::ChannelCredentials> honest_credentials,
      std::shared_ptr<grpc::ChannelCredentials> hostile_credentials) {
    const auto honest = Dial(std::move(honest_credentials));
    const absl::StatusOr<std::string> peer = AskMuch(*honest);
    ASSERT_TRUE(peer.ok()) << peer.status();
    for (uint64_t sent = 0; sent < 2 * kMaxBytesBeforeCall; sent += 6000) {
      ASSERT_EQ(AskMuch(*honest), peer);
    }
    const auto hostile = Dial(std::move(hostile_credentials));
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    while (disconnected_.Now().size() < 2 && absl::Now() < deadline) (void)AskMuch(*hostile);
    EXPECT_EQ(AskMuch(*honest), peer);
    EXPECT_THAT(disconnected_.Now(),
                AllOf(SizeIs(Ge(2)), Each(HasSubstr(host_ == "[::1]" ? "ipv6:[::1]:" : "ipv4:"))));
  }

  absl::StatusOr<std::string> AskAs(const std::string& directory) {
    return Ask(*Dial(ChannelCredentialsOf(directory.empty() ? nullptr : MustOpen(directory))));
  }

  // Without the checks of Open, which a peer may omit.
  std::shared_ptr<const TransportSecurity> Unchecked(const std::string& directory) {
    const auto read = [&](const char* name) {
      return files_->Read(root_ / directory / name, 1 << 20).value();
    };
    return TransportSecurity::FromMemory(read(kAuthorityFile),
                                         {read(kCertificateFile), read(kKeyFile)});
  }

  tls::KeyPair Authority() {
    return {files_->Read(root_ / "job/ca/ca.crt", 1 << 20).value(),
            files_->Read(root_ / "job/ca/ca.key", 1 << 20).value()};
  }
  // Issued by the authority in the directory "job", for any subject.
  tls::KeyPair Issued(const tls::Subject& subject) {
    return tls::Issue(Authority(), subject,
                      {absl::Now() - absl::Hours(1), absl::Now() + absl::Hours(1)})
        .value();
  }
  std::shared_ptr<const TransportSecurity> With(const tls::KeyPair& pair) {
    return TransportSecurity::FromMemory(Authority().certificate, pair);
  }

  std::string SecretFile(const std::string& name) {
    std::filesystem::create_directories(root_);
    std::string path = root_ / name;
    EXPECT_TRUE(WriteSecretFile(path, MakeSecret()).ok());
    return path;
  }
  std::shared_ptr<const TransportSecurity> WithSecret(const std::string& file) {
    auto opened = TransportSecurity::Open(files_.get(), {.secret_file = file}, absl::Now());
    EXPECT_TRUE(opened.ok()) << opened.status();
    return opened.ok() ? *std::move(opened) : nullptr;
  }
  void ServeWith(const std::shared_ptr<const TransportSecurity>& security,
                 const std::string& host = "127.0.0.1") {
    host_ = host;
    disconnected_.Change([](std::vector<std::string>* all) { all->clear(); });
    auto server = GrpcServer::Start(
        {.address = absl::StrCat(host, ":0"),
         .credentials = ServerCredentialsOf(security, [this](const CallRefusal&) { ++refused_; }),
         .guard = {.on_disconnected =
                       [this](const Disconnection& disconnection) {
                         disconnected_.Change([&](std::vector<std::string>* all) {
                           all->push_back(disconnection.text);
                         });
                       }},
         .grace = absl::Milliseconds(200)},
        {&generated_});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  const std::unique_ptr<FileSystem> files_ = MakeRealFileSystem();
  const std::filesystem::path root_;
  std::string host_ = "127.0.0.1";
  std::atomic<int> refused_{0};
  Watched<std::vector<std::string>> disconnected_;
  EchoService service_;
  GeneratedService generated_{&service_};
  std::unique_ptr<GrpcServer> server_;
};

TEST_F(TransportSecurityTest, BothSidesIdentifyEachOtherByCertificate) {
  Serve("job/coordinator");
  EXPECT_EQ(AskAs("job/worker-0").value(), "worker 0 of default/mnist");
  EXPECT_EQ(AskAs("job/ps-1").value(), "ps 1 of default/mnist");
}

TEST_F(TransportSecurityTest, RefusesCallNotAllowedForRole) {
  Serve("job/coordinator");
  const auto set_desired = [&](const std::string& directory) {
    const auto stub = Dial(ChannelCredentialsOf(MustOpen(directory)));
    grpc::ClientContext context;
    v1::SetDesiredResponse response;
    return FromGrpcStatus(stub->SetDesired(&context, {}, &response));
  };
  EXPECT_TRUE(set_desired("job/operator").ok());
  const absl::Status refused = set_desired("job/worker-0");
  EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(refused.message(), HasSubstr("SetDesired is not for worker 0"));
}

TEST_F(TransportSecurityTest, RefusesClientWithoutCertificateAndServesOthers) {
  Serve("job/coordinator");
  const absl::Status plain = AskAs("").status();
  EXPECT_EQ(plain.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(ExplainHandshake(plain, false, "").message(),
              HasSubstr("the other side may use TLS"));
  const auto without = grpc::SslCredentials(
      {.pem_root_certs = files_->Read(root_ / "job/reader/ca.crt", 1 << 20).value(),
       .pem_private_key = {},
       .pem_cert_chain = {}});
  EXPECT_EQ(Ask(*Dial(without)).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(AskAs("job/worker-0").ok());
}

TEST_F(TransportSecurityTest, RefusesCertificateOfAnotherJob) {
  Make("other");
  Serve("job/coordinator");
  const absl::Status status = AskAs("other/worker-0").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(ExplainHandshake(status, true, "").message(),
              HasSubstr("not issued by this job's authority"))
      << status;
  // Also a client that trusts this job's authority.
  const auto read = [&](const char* path) { return files_->Read(root_ / path, 1 << 20).value(); };
  const auto intruder = TransportSecurity::FromMemory(
      read("job/worker-0/ca.crt"),
      {read("other/worker-0/tls.crt"), read("other/worker-0/tls.key")});
  EXPECT_FALSE(Ask(*Dial(intruder->channel_credentials())).ok());
  EXPECT_TRUE(AskAs("job/worker-0").ok());
}

// Jobs may share an authority, so the job in the certificate decides.
TEST_F(TransportSecurityTest, RefusesCertificateOfAnotherJobByTheSameAuthority) {
  ServeWith(MustOpen("job/coordinator"));
  for (const v1::Role role : {v1::WORKER, v1::SHARD, v1::READER, v1::OPERATOR, v1::COORDINATOR}) {
    // A client that trusts any job, as a hostile one would.
    const tls::KeyPair intruder = Issued(SubjectOf({"default/other", role, 0}));
    const absl::Status status =
        Ask(*Dial(TrustsAnyServer(Authority().certificate, intruder))).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated) << status;
    EXPECT_THAT(status.message(), HasSubstr("this is job default/mnist")) << status;
  }
  EXPECT_EQ(refused_, 5);
  const tls::KeyPair own = Issued(SubjectOf({"default/mnist", v1::WORKER, 7}));
  EXPECT_TRUE(Ask(*Dial(With(own)->channel_credentials())).ok());
}

TEST_F(TransportSecurityTest, RefusesServerOfAnotherJobByTheSameAuthority) {
  ServeWith(With(Issued(SubjectOf({"default/other", v1::COORDINATOR, 0}))));
  const absl::Status status = AskAs("job/worker-0").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(status.message(), HasSubstr("not one of job default/mnist")) << status;
  EXPECT_THAT(ExplainHandshake(status, true, "").message(), HasSubstr("belongs to another job"))
      << status;
}

TEST_F(TransportSecurityTest, RefusesCertificateWithoutJob) {
  Serve("job/coordinator");
  const tls::KeyPair nameless = Issued({"worker-0", {"worker.sluice.internal"}, ""});
  const absl::Status status =
      Ask(*Dial(TrustsAnyServer(Authority().certificate, nameless))).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated) << status;
  EXPECT_THAT(status.message(), HasSubstr("names no process"));
  ASSERT_TRUE(WriteCredentialDirectory(files_.get(), root_ / "job/worker-0",
                                       Authority().certificate, nameless)
                  .ok());
  EXPECT_EQ(Open("job/worker-0", v1::WORKER, 0).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(TransportSecurityTest, ServesOnlyClientsThatShowSecret) {
  const std::string file = SecretFile("secret");
  ServeWith(WithSecret(file));
  EXPECT_EQ(Ask(*Dial(WithSecret(file)->channel_credentials())).value(), "plain text");
  const absl::Status without = AskAs("").status();
  EXPECT_EQ(without.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_THAT(without.message(), HasSubstr(file));
  const absl::Status wrong =
      Ask(*Dial(WithSecret(SecretFile("other"))->channel_credentials())).status();
  EXPECT_EQ(wrong.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_THAT(wrong.message(), HasSubstr("a wrong secret"));
  EXPECT_EQ(refused_, 2);
}

TEST_F(TransportSecurityTest, StoppedServerReleasesItsCredentials) {
  auto credentials = ServerCredentialsOf(nullptr);
  const std::weak_ptr<grpc::ServerCredentials> observed = credentials;
  auto server = GrpcServer::Start({.credentials = std::move(credentials)}, {&generated_});
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_FALSE(observed.expired());
  *server = nullptr;
  EXPECT_TRUE(observed.expired());
}

TEST_F(TransportSecurityTest, ProgramMustChooseOneKindOfSecurity) {
  const auto open = [&](const TransportSecurity::Options& options) {
    return TransportSecurity::OpenChosen(files_.get(), options, absl::Now()).status();
  };
  const std::string file = SecretFile("secret");
  EXPECT_TRUE(open({.insecure = true}).ok());
  EXPECT_TRUE(open({.secret_file = file}).ok());
  EXPECT_TRUE(open({.directory = root_ / "job/ps-0"}).ok());
  EXPECT_EQ(open({}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(open({}).message(), HasSubstr("--secret-file"));
  EXPECT_THAT(open({}).message(), HasSubstr("--insecure"));
  EXPECT_FALSE(open({.secret_file = file, .insecure = true}).ok());
  EXPECT_FALSE(open({.directory = root_ / "job/ps-0", .secret_file = file}).ok());
}

TEST_F(TransportSecurityTest, ProcessDoesNotStartWithCertificateOfAnotherJob) {
  const absl::Status status =
      TransportSecurity::Open(
          files_.get(),
          {.directory = root_ / "job/ps-0", .job = "default/b", .role = v1::SHARD, .index = 0},
          absl::Now())
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("that of ps 0 of default/mnist, but this is ps 0 of "
                                          "default/b"));
}

// It would occupy a place for handshakes, and other peers would wait.
TEST_F(TransportSecurityTest, DisconnectsPeerThatBeginsNoHandshake) {
  Serve("job/coordinator");
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(server_->port()));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::vector<int> silent;
  for (int i = 0; i < 100; ++i) {
    silent.push_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(connect(silent[i], reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    const timeval patience = {40, 0};
    setsockopt(silent[i], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  }
  EXPECT_TRUE(AskAs("job/worker-0").ok());
  for (const int fd : silent) {
    char byte = 0;
    const ssize_t size = recv(fd, &byte, 1, 0);
    EXPECT_TRUE(size == 0 || (size < 0 && errno == ECONNRESET)) << size << " " << errno;
    close(fd);
  }
  EXPECT_TRUE(AskAs("job/worker-0").ok());
}

// Bounds the work that a client with one connection can cause, whatever it calls.
TEST_F(TransportSecurityTest, RefusesConnectionThatCallsTooOftenAndServesOthers) {
  ServeWith(nullptr);
  const auto busy = Dial(nullptr);
  int refused = 0;
  const absl::Time start = absl::Now();
  constexpr int kCalls = static_cast<int>(kCallRate.at_once + kRefusalRate.at_once);
  for (int i = 0; i < kCalls; ++i) {
    refused += absl::IsResourceExhausted(Ask(*busy).status());
  }
  const double allowed =
      kCallRate.at_once + kCallRate.per_second * absl::ToDoubleSeconds(absl::Now() - start);
  EXPECT_GE(refused, kCalls - allowed - 1);
  EXPECT_TRUE(Ask(*Dial(nullptr)).ok());
}

TEST_F(TransportSecurityTest, KeepsClientThatMayCallAndDisconnectsTheOther) {
  for (const char* host : {"127.0.0.1", "[::1]"}) {
    ServeWith(MustOpen("job/coordinator"), host);
    const tls::KeyPair intruder = Issued(SubjectOf({"default/other", v1::WORKER, 0}));
    ExpectKeepsThatOneAndDisconnectsThis(MustOpen("job/operator")->channel_credentials(),
                                         TrustsAnyServer(Authority().certificate, intruder));
  }
}

TEST_F(TransportSecurityTest, KeepsClientWithTheSecretAndDisconnectsTheOther) {
  for (const char* host : {"127.0.0.1", "[::1]"}) {
    const std::string file = SecretFile("secret");
    ServeWith(WithSecret(file), host);
    ExpectKeepsThatOneAndDisconnectsThis(WithSecret(file)->channel_credentials(),
                                         WithSecret(SecretFile("other"))->channel_credentials());
  }
}

TEST_F(TransportSecurityTest, KeepsClientWithFewCallsAndDisconnectsTheOtherInPlainText) {
  for (const char* host : {"127.0.0.1", "[::1]"}) {
    ServeWith(nullptr, host);
    ExpectKeepsThatOneAndDisconnectsThis(nullptr, nullptr);
  }
}

TEST_F(TransportSecurityTest, RefusesExpiredCertificateOfPeerAndOwn) {
  const tls::KeyPair authority = {files_->Read(root_ / "job/ca/ca.crt", 1 << 20).value(),
                                  files_->Read(root_ / "job/ca/ca.key", 1 << 20).value()};
  const auto expired = tls::Issue(authority, SubjectOf({"default/mnist", v1::WORKER, 0}),
                                  {absl::Now() - absl::Hours(2), absl::Now() - absl::Hours(1)});
  ASSERT_TRUE(WriteCredentialDirectory(files_.get(), root_ / "job/worker-0", authority.certificate,
                                       *expired)
                  .ok());
  Serve("job/coordinator");
  EXPECT_FALSE(Ask(*Dial(Unchecked("job/worker-0")->channel_credentials())).ok());
  const absl::Status status = Open("job/worker-0", v1::WORKER, 0).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("tls.crt: CN = worker-0 expired on"));
  EXPECT_THAT(status.message(), HasSubstr("renew it"));
}

TEST_F(TransportSecurityTest, RefusesServerOfAnotherRole) {
  Serve("job/worker-0");  // it shows a certificate of the job, but is not a coordinator
  const absl::Status status = AskAs("job/ps-0").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(ExplainHandshake(status, true, "").message(), HasSubstr("belongs to another role"))
      << status;
  Serve("job/ps-0");
  EXPECT_FALSE(AskAs("job/worker-0").ok());
  EXPECT_TRUE(Ask(*Dial(MustOpen("job/worker-0")->channel_credentials(), ChannelKind::kBulk)).ok());
}

TEST_F(TransportSecurityTest, RefusesServerInPlainText) {
  Serve("");
  const absl::Status status = AskAs("job/worker-0").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(ExplainHandshake(status, true, "").message(), HasSubstr("uses plain text")) << status;
  EXPECT_EQ(AskAs("").value(), "plain text");
}

TEST_F(TransportSecurityTest, ProcessDoesNotStartWithCertificateOfAnotherProcess) {
  EXPECT_TRUE(Open("job/ps-1", v1::SHARD, 1).ok());
  EXPECT_THAT(Open("job/ps-1", v1::SHARD, 0).status().message(),
              HasSubstr("is that of ps 1 of default/mnist, but this is ps 0"));
  EXPECT_THAT(Open("job/reader", v1::WORKER, 0).status().message(),
              HasSubstr("give --tls-directory the directory of its own certificate"));
}

TEST_F(TransportSecurityTest, ProcessDoesNotStartWithInconsistentFiles) {
  EXPECT_EQ(Open("nowhere", v1::WORKER).status().code(), absl::StatusCode::kNotFound);
  const auto copy = std::filesystem::copy_options::overwrite_existing;
  std::filesystem::copy_file(root_ / "job/ps-0/tls.key", root_ / "job/ps-1/tls.key", copy);
  EXPECT_THAT(Open("job/ps-1", v1::SHARD, 1).status().message(),
              HasSubstr("tls.key: the private key is not that of CN = ps-1"));
  Make("other");
  std::filesystem::copy_file(root_ / "other/ca/ca.crt", root_ / "job/ps-0/ca.crt", copy);
  EXPECT_THAT(Open("job/ps-0", v1::SHARD, 0).status().message(),
              HasSubstr("no authority of the bundle issued CN = ps-0"));
}

// The bundle has both authorities while one takes over from the other.
TEST_F(TransportSecurityTest, NewConnectionsUseRenewedFilesAndOldOnesStay) {
  Serve("job/coordinator");
  const auto old_client = Dial(MustOpen("job/worker-0")->channel_credentials());
  ASSERT_TRUE(Ask(*old_client).ok());
  Make("next");
  ASSERT_FALSE(AskAs("next/worker-0").ok());
  const auto read = [&](const char* path) { return files_->Read(root_ / path, 1 << 20).value(); };
  const tls::KeyPair renewed = {read("next/coordinator/tls.crt"), read("next/coordinator/tls.key")};
  ASSERT_TRUE(WriteCredentialDirectory(files_.get(), root_ / "job/coordinator",
                                       absl::StrCat(read("job/ca/ca.crt"), read("next/ca/ca.crt")),
                                       renewed)
                  .ok());
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  absl::StatusOr<std::string> answer = absl::UnavailableError("not asked");
  while (!answer.ok() && absl::Now() < deadline) answer = AskAs("next/worker-0");
  EXPECT_EQ(answer.value(), "worker 0 of default/mnist");
  EXPECT_TRUE(Ask(*old_client).ok());
}

TEST_F(TransportSecurityTest, ReusesAuthorityUnlessItExpiresTooEarly) {
  const std::string before = files_->Read(root_ / "job/ca/ca.crt", 1 << 20).value();
  const std::string leaf = files_->Read(root_ / "job/ps-0/tls.crt", 1 << 20).value();
  Make("job");
  EXPECT_EQ(files_->Read(root_ / "job/ca/ca.crt", 1 << 20).value(), before);
  EXPECT_NE(files_->Read(root_ / "job/ps-0/tls.crt", 1 << 20).value(), leaf);
  const auto late = WriteCredentialDirectories(
      files_.get(), root_ / "job", {.job = "default/mnist"}, absl::Now() + absl::Hours(24 * 300));
  EXPECT_THAT(late.status().message(), HasSubstr("the authority ends on"));
}

TEST_F(TransportSecurityTest, OnlyOwnerMayReadKeys) {
  using std::filesystem::perms;
  const perms others = perms::group_all | perms::others_all;
  for (const char* directory : {"job/ca", "job/worker-0", "job/operator"}) {
    EXPECT_EQ(std::filesystem::status(root_ / directory).permissions() & others, perms::none);
  }
}

}  // namespace
}  // namespace sluice::security
