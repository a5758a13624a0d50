#include "cli/cluster/credential_plugin.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace sluice::cli {
namespace {

using ::testing::HasSubstr;

// A server that accepts one token.
class OneTokenTransport final : public kube::HttpTransport {
 public:
  explicit OneTokenTransport(bool taken) : taken_(taken) {}
  absl::StatusOr<kube::HttpResponse> Do(const kube::HttpRequest&) override {
    kube::HttpResponse response;
    response.code = taken_ ? 200 : 401;
    return response;
  }
  absl::StatusOr<kube::HttpResponse> Stream(const kube::HttpRequest& request, const BodySink&,
                                            kube::Cancellation*) override {
    return Do(request);
  }

 private:
  const bool taken_;
};

class CredentialPluginTest : public ::testing::Test {
 protected:
  CredentialPluginTest()
      : directory_(absl::StrCat(std::getenv("TEST_TMPDIR"), "/",
                                ::testing::UnitTest::GetInstance()->current_test_info()->name())) {
    std::filesystem::create_directories(directory_);
    config_.server = "https://api.test";
    config_.plugin.command = directory_ + "/plugin";
    config_.plugin.api_version = "client.authentication.k8s.io/v1";
  }

  void WritePlugin(const std::string& script) {
    std::ofstream(config_.plugin.command) << "#!/bin/sh\n" << script << "\n";
    chmod(config_.plugin.command.c_str(), 0755);
  }
  static std::string Print(const std::string& status) {
    return absl::StrCat(R"(echo '{"kind": "ExecCredential", "status": )", status, "}'");
  }

  const std::string directory_;
  kube::ClientConfig config_;
};

TEST_F(CredentialPluginTest, AcceptsTokenOrCertificate) {
  WritePlugin(Print(R"({"token": "abc"})"));
  auto config = RunCredentialPlugin(config_);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->token, "abc");
  EXPECT_EQ(config->server, "https://api.test");
  EXPECT_EQ(config->plugin.command, "");
  WritePlugin(Print(R"({"clientCertificateData": "C", "clientKeyData": "K"})"));
  config = RunCredentialPlugin(config_);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->client_certificate.pem, "C");
  EXPECT_EQ(config->client_key.pem, "K");
}

TEST_F(CredentialPluginTest, PassesArgumentsVariablesAndApiVersion) {
  config_.plugin.args = {"token", "prod"};
  config_.plugin.env = {{"PROFILE", "me"}};
  WritePlugin(absl::StrCat("echo \"$@ $PROFILE $KUBERNETES_EXEC_INFO ${PATH:+path}\" > ",
                           directory_, "/seen; ", Print(R"({"token": "abc"})")));
  ASSERT_TRUE(RunCredentialPlugin(config_).ok());
  std::ifstream file(directory_ + "/seen");
  const std::string seen{std::istreambuf_iterator<char>(file), {}};
  EXPECT_THAT(seen, HasSubstr("token prod me {"));
  EXPECT_THAT(seen, HasSubstr(R"("apiVersion":"client.authentication.k8s.io/v1")"));
  EXPECT_THAT(seen, HasSubstr("path"));
}

TEST_F(CredentialPluginTest, ReportsPluginErrors) {
  config_.plugin.install_hint = "Get it from the intranet";
  EXPECT_THAT(RunCredentialPlugin(config_).status().message(),
              HasSubstr("is not installed. Get it from the intranet"));
  WritePlugin("exit 3");
  EXPECT_THAT(RunCredentialPlugin(config_).status().message(),
              HasSubstr("failed with exit code 3"));
  WritePlugin("echo hello");
  EXPECT_THAT(RunCredentialPlugin(config_).status().message(),
              HasSubstr("printed no ExecCredential"));
  WritePlugin(Print("{}"));
  EXPECT_THAT(RunCredentialPlugin(config_).status().message(),
              HasSubstr("neither a token nor a certificate"));
  WritePlugin(Print(R"({"clientKeyData": "K"})"));
  EXPECT_THAT(RunCredentialPlugin(config_).status().message(),
              HasSubstr("a key without its certificate"));
}

TEST_F(CredentialPluginTest, RejectedCredentialsAreRenewedOnce) {
  WritePlugin(
      absl::StrCat("echo run >> ", directory_, "/runs; ",
                   Print(absl::StrCat("{\"token\": \"'$(wc -l < ", directory_, "/runs)'\"}"))));
  int connections = 0;
  // The token of the first run expires.
  bool expired = false;
  class Expiring final : public kube::HttpTransport {
   public:
    Expiring(std::string token, const bool* expired)
        : token_(std::move(token)), expired_(expired) {}
    absl::StatusOr<kube::HttpResponse> Do(const kube::HttpRequest& request) override {
      return OneTokenTransport(!*expired_ || token_ != "1").Do(request);
    }
    absl::StatusOr<kube::HttpResponse> Stream(const kube::HttpRequest& request, const BodySink&,
                                              kube::Cancellation*) override {
      return Do(request);
    }

   private:
    const std::string token_;
    const bool* const expired_;
  };
  PluginTransport transport(config_,
                            [&](const kube::ClientConfig& config)
                                -> absl::StatusOr<std::unique_ptr<kube::HttpTransport>> {
                              ++connections;
                              return std::make_unique<Expiring>(config.token, &expired);
                            });
  EXPECT_EQ(transport.Do({})->code, 200);
  EXPECT_EQ(transport.Do({})->code, 200);
  EXPECT_EQ(connections, 1);
  expired = true;
  EXPECT_EQ(transport.Do({})->code, 200);
  EXPECT_EQ(connections, 2);
}

TEST_F(CredentialPluginTest, ReturnsTheRefusalOfFreshCredentials) {
  WritePlugin(Print(R"({"token": "abc"})"));
  int connections = 0;
  PluginTransport transport(
      config_,
      [&](const kube::ClientConfig&) -> absl::StatusOr<std::unique_ptr<kube::HttpTransport>> {
        ++connections;
        return std::make_unique<OneTokenTransport>(false);
      });
  EXPECT_EQ(transport.Do({})->code, 401);
  EXPECT_EQ(connections, 1);
}

}  // namespace
}  // namespace sluice::cli
