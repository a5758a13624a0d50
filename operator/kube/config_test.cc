#include "operator/kube/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace sluice::kube {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Pem(const std::string& what) {
  return absl::Base64Escape("-----BEGIN " + what + "-----\nabc\n-----END " + what + "-----\n");
}

std::string Kubeconfig() {
  return absl::StrCat(R"(apiVersion: v1
kind: Config
current-context: here
contexts:
- name: here
  context: {cluster: local, user: admin, namespace: team}
- name: there
  context: {cluster: remote, user: robot}
- name: plugin
  context: {cluster: remote, user: cloud}
- name: incomplete
  context: {cluster: remote, user: missing}
clusters:
- name: local
  cluster:
    server: https://127.0.0.1:6443/
    certificate-authority-data: )",
                      Pem("CERTIFICATE"), R"(
- name: remote
  cluster: {server: "https://[::1]:6443", certificate-authority: ca.crt, tls-server-name: kubernetes}
users:
- name: admin
  user:
    client-certificate-data: )",
                      Pem("CERTIFICATE"), "\n    client-key-data: ", Pem("PRIVATE KEY"), R"(
- name: robot
  user: {tokenFile: /secrets/token, token: old}
- name: cloud
  user: {exec: {command: aws-iam-authenticator}}
)");
}

std::string ErrorOf(const std::string& text, const std::string& context) {
  return std::string(ParseKubeconfig(text, "/home/me/.kube", context).status().message());
}

TEST(KubeconfigTest, CurrentContextSelectsClusterUserAndNamespace) {
  const auto config = ParseKubeconfig(Kubeconfig(), "/home/me/.kube", "");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->server, "https://127.0.0.1:6443");
  EXPECT_EQ(config->default_namespace, "team");
  EXPECT_THAT(config->certificate_authority.pem, HasSubstr("BEGIN CERTIFICATE"));
  EXPECT_THAT(config->client_certificate.pem, HasSubstr("BEGIN CERTIFICATE"));
  EXPECT_THAT(config->client_key.pem, HasSubstr("BEGIN PRIVATE KEY"));
  EXPECT_FALSE(config->insecure_skip_tls_verify);
}

TEST(KubeconfigTest, FilesAreRelativeToTheKubeconfig) {
  const auto config = ParseKubeconfig(Kubeconfig(), "/home/me/.kube", "there");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->certificate_authority.file, "/home/me/.kube/ca.crt");
  EXPECT_EQ(config->token_file, "/secrets/token");
  EXPECT_EQ(config->tls_server_name, "kubernetes");
  EXPECT_EQ(config->default_namespace, "default");
}

TEST(KubeconfigTest, RejectsACredentialPluginWithAdvice) {
  const std::string error = ErrorOf(Kubeconfig(), "plugin");
  EXPECT_THAT(error, HasSubstr("users[2] \"cloud\""));
  EXPECT_THAT(error, HasSubstr("aws-iam-authenticator"));
  EXPECT_THAT(error, HasSubstr("kubectl create token"));
}

TEST(KubeconfigTest, NamesMissingEntries) {
  EXPECT_THAT(ErrorOf(Kubeconfig(), "nowhere"),
              HasSubstr("contexts: no entry is named \"nowhere\""));
  EXPECT_THAT(ErrorOf(Kubeconfig(), "incomplete"),
              HasSubstr("users: no entry is named \"missing\""));
  EXPECT_THAT(ErrorOf("kind: Config", ""), HasSubstr("current-context"));
}

TEST(KubeconfigTest, ReportsTheLineOfDamagedText) {
  EXPECT_THAT(ErrorOf("a: [1,\nb: }", ""), HasSubstr("line "));
  const std::string text = Kubeconfig();
  for (size_t length = 0; length < text.size(); length += 7) {
    ParseKubeconfig(text.substr(0, length), "", "").status().IgnoreError();
    std::string damaged = text;
    damaged[length] = '[';
    ParseKubeconfig(damaged, "", "").status().IgnoreError();
  }
  EXPECT_FALSE(ParseKubeconfig("- 1\n- 2\n", "", "").ok());
  EXPECT_FALSE(ParseKubeconfig("", "", "").ok());
}

TEST(KubeconfigTest, RejectsInvalidPemAndAnIncompleteKeyPair) {
  EXPECT_THAT(ErrorOf(absl::StrReplaceAll(Kubeconfig(), {{Pem("PRIVATE KEY"), "a*b"}}), ""),
              HasSubstr("client-key-data is not base64"));
  EXPECT_THAT(ErrorOf(absl::StrReplaceAll(Kubeconfig(), {{Pem("PRIVATE KEY"), "YWJj"}}), ""),
              HasSubstr("client-key-data contains no PEM block"));
  EXPECT_THAT(ErrorOf(absl::StrReplaceAll(Kubeconfig(), {{"client-key-data", "other"}}), ""),
              HasSubstr("belong together"));
}

TEST(KubeconfigTest, SkippingVerificationExcludesAnAuthority) {
  const std::string insecure = absl::StrReplaceAll(
      Kubeconfig(), {{"certificate-authority: ca.crt", "insecure-skip-tls-verify: true"}});
  EXPECT_TRUE(ParseKubeconfig(insecure, "", "there")->insecure_skip_tls_verify);
  EXPECT_THAT(ErrorOf(absl::StrReplaceAll(Kubeconfig(), {{"tls-server-name: kubernetes",
                                                          "insecure-skip-tls-verify: true"}}),
                      "there"),
              HasSubstr("are both set"));
}

TEST(KubeconfigTest, SplitsTheEnvironmentVariable) {
  EXPECT_THAT(SplitKubeconfigPath("/a:/b::"), ElementsAre("/a", "/b"));
  EXPECT_TRUE(SplitKubeconfigPath("").empty());
}

TEST(KubeconfigTest, MergesFilesAndTheFirstWins) {
  const KubeconfigFile choice{"current-context: there\nusers:\n- {name: robot, user: {token: t}}\n",
                              "/first"};
  const auto config = ParseKubeconfigs({choice, {Kubeconfig(), "/second"}}, "", Plugins::kRefused);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->context, "there");
  EXPECT_EQ(config->certificate_authority.file, "/second/ca.crt");
  EXPECT_EQ(config->token, "t");
  EXPECT_EQ(config->token_file, "");
  EXPECT_FALSE(ParseKubeconfigs({}, "", Plugins::kRefused).ok());
}

TEST(KubeconfigTest, ReadsACredentialPluginIfTheCallerRunsPlugins) {
  const std::string text = absl::StrReplaceAll(
      Kubeconfig(), {{"{command: aws-iam-authenticator}",
                      "{apiVersion: client.authentication.k8s.io/v1, command: bin/helper, "
                      "args: [token, -i, prod], env: [{name: PROFILE, value: me}], "
                      "installHint: see the manual}"}});
  const auto config = ParseKubeconfigs({{text, "/home/me/.kube"}}, "plugin", Plugins::kRead);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->plugin.command, "/home/me/.kube/bin/helper");
  EXPECT_THAT(config->plugin.args, ElementsAre("token", "-i", "prod"));
  EXPECT_THAT(config->plugin.env, ElementsAre(std::make_pair("PROFILE", "me")));
  EXPECT_EQ(config->plugin.api_version, "client.authentication.k8s.io/v1");
  EXPECT_EQ(config->plugin.install_hint, "see the manual");
  EXPECT_FALSE(
      ParseKubeconfigs({{"users: [{name: cloud, user: {exec: {args: []}}}]", "/"}, {text, "/"}},
                       "plugin", Plugins::kRead)
          .ok());
}

TEST(InClusterConfigTest, UsesTheServiceAccountsFiles) {
  const auto config = InClusterConfig("10.0.0.1", "443", "/var/run/secrets", "sluice-system\n");
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->server, "https://10.0.0.1:443");
  EXPECT_EQ(config->certificate_authority.file, "/var/run/secrets/ca.crt");
  EXPECT_EQ(config->token_file, "/var/run/secrets/token");
  EXPECT_EQ(config->default_namespace, "sluice-system");
  EXPECT_EQ(InClusterConfig("fd00::1", "443", "/d", "")->server, "https://[fd00::1]:443");
}

TEST(InClusterConfigTest, FailsOutsideAPod) {
  EXPECT_TRUE(absl::IsFailedPrecondition(InClusterConfig("", "", "/d", "").status()));
}

}  // namespace
}  // namespace sluice::kube
