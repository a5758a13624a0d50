#include "operator/kube/config.h"

#include <yaml-cpp/yaml.h>

#include <exception>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace sluice::kube {
namespace {

absl::Status Wrong(absl::string_view where, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("kubeconfig: ", where, ": ", what));
}

std::string Text(const YAML::Node& map, const char* key) {
  if (!map.IsMap()) return "";
  const YAML::Node value = map[key];
  return value && value.IsScalar() ? value.Scalar() : std::string();
}

bool True(const YAML::Node& map, const char* key) { return Text(map, key) == "true"; }

// The entry `name` of a list of {name, <member>}; sets `where` for messages.
absl::StatusOr<YAML::Node> Named(const YAML::Node& root, const char* list, const char* member,
                                 const std::string& name, std::string* where) {
  const YAML::Node entries = root[list];
  if (entries && entries.IsSequence()) {
    for (size_t i = 0; i < entries.size(); ++i) {
      if (Text(entries[i], "name") != name) continue;
      *where = absl::StrCat(list, "[", i, "] \"", name, "\"");
      const YAML::Node found = entries[i][member];
      if (!found || !found.IsMap()) return Wrong(*where, absl::StrCat(member, " is missing"));
      return found;
    }
  }
  return Wrong(list, absl::StrCat("no entry is named \"", name, "\""));
}

std::string Resolve(absl::string_view directory, const std::string& file) {
  if (file.empty() || file[0] == '/' || directory.empty()) return file;
  return absl::StrCat(directory, "/", file);
}

// `key` names a file, `key`-data holds base64; the data win, as in kubectl.
absl::StatusOr<Credential> ReadCredential(const YAML::Node& map, const std::string& key,
                                          absl::string_view directory, const std::string& where) {
  Credential credential;
  const std::string data_key = key + "-data";
  const std::string data = Text(map, data_key.c_str());
  if (data.empty()) {
    credential.file = Resolve(directory, Text(map, key.c_str()));
    return credential;
  }
  if (!absl::Base64Unescape(data, &credential.pem)) {
    return Wrong(where, absl::StrCat(data_key, " is not base64"));
  }
  if (!absl::StrContains(credential.pem, "-----BEGIN ")) {
    return Wrong(where, absl::StrCat(data_key, " holds no PEM block"));
  }
  return credential;
}

absl::Status ReadCluster(const YAML::Node& cluster, const std::string& where,
                         absl::string_view directory, ClientConfig* config) {
  config->server = std::string(absl::StripSuffix(Text(cluster, "server"), "/"));
  if (!absl::StartsWith(config->server, "https://") &&
      !absl::StartsWith(config->server, "http://")) {
    return Wrong(where, absl::StrCat("server \"", config->server,
                                     "\" does not begin with https:// or http://"));
  }
  if (!Text(cluster, "proxy-url").empty()) return Wrong(where, "proxy-url is not supported");
  config->tls_server_name = Text(cluster, "tls-server-name");
  config->insecure_skip_tls_verify = True(cluster, "insecure-skip-tls-verify");
  auto authority = ReadCredential(cluster, "certificate-authority", directory, where);
  if (!authority.ok()) return authority.status();
  if (config->insecure_skip_tls_verify && !authority->empty()) {
    return Wrong(where, "insecure-skip-tls-verify and a certificate-authority exclude each other");
  }
  config->certificate_authority = *std::move(authority);
  return absl::OkStatus();
}

absl::Status ReadUser(const YAML::Node& user, const std::string& where, absl::string_view directory,
                      ClientConfig* config) {
  if (user["exec"]) {
    return Wrong(where, absl::StrCat("the credential plugin \"", Text(user["exec"], "command"),
                                     "\" (exec) is not run; use a user with a certificate or a "
                                     "token (`kubectl create token` makes one)"));
  }
  if (user["auth-provider"]) {
    return Wrong(where, "auth-provider is not supported; use a certificate or a token");
  }
  if (user["username"] || user["password"]) {
    return Wrong(where, "API servers know no basic authentication; use a certificate or a token");
  }
  if (user["as"]) return Wrong(where, "impersonation (as) is not supported");
  auto certificate = ReadCredential(user, "client-certificate", directory, where);
  if (!certificate.ok()) return certificate.status();
  auto key = ReadCredential(user, "client-key", directory, where);
  if (!key.ok()) return key.status();
  if (certificate->empty() != key->empty()) {
    return Wrong(where, "client-certificate and client-key belong together; one is missing");
  }
  config->client_certificate = *std::move(certificate);
  config->client_key = *std::move(key);
  config->token = Text(user, "token");
  config->token_file = Resolve(directory, Text(user, "tokenFile"));
  return absl::OkStatus();
}

absl::StatusOr<ClientConfig> Read(const YAML::Node& root, absl::string_view directory,
                                  absl::string_view context_name) {
  if (!root.IsMap()) return Wrong("the file", "is no map");
  ClientConfig config;
  config.context = context_name.empty() ? Text(root, "current-context") : std::string(context_name);
  if (config.context.empty())
    return Wrong("current-context", "is not set, and no context is given");
  std::string where;
  auto context = Named(root, "contexts", "context", config.context, &where);
  if (!context.ok()) return context.status();
  if (const std::string ns = Text(*context, "namespace"); !ns.empty()) {
    config.default_namespace = ns;
  }
  auto cluster = Named(root, "clusters", "cluster", Text(*context, "cluster"), &where);
  if (!cluster.ok()) return cluster.status();
  absl::Status status = ReadCluster(*cluster, where, directory, &config);
  if (!status.ok()) return status;
  const std::string user_name = Text(*context, "user");
  if (user_name.empty()) return config;  // anonymous
  auto user = Named(root, "users", "user", user_name, &where);
  if (!user.ok()) return user.status();
  status = ReadUser(*user, where, directory, &config);
  if (!status.ok()) return status;
  return config;
}

}  // namespace

absl::StatusOr<ClientConfig> ParseKubeconfig(absl::string_view text, absl::string_view directory,
                                             absl::string_view context) {
  // yaml-cpp reports by exceptions, also when a node is asked for what it is not.
  try {
    return Read(YAML::Load(std::string(text)), directory, context);
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("kubeconfig: line ", error.mark.line + 1, ": ", error.msg));
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("kubeconfig: ", error.what()));
  }
}

std::vector<std::string> SplitKubeconfigPath(absl::string_view value) {
  return absl::StrSplit(value, ':', absl::SkipEmpty());
}

absl::StatusOr<ClientConfig> InClusterConfig(absl::string_view host, absl::string_view port,
                                             absl::string_view directory,
                                             absl::string_view default_namespace) {
  if (host.empty() || port.empty()) {
    return absl::FailedPreconditionError(
        "not inside of a cluster: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set");
  }
  ClientConfig config;
  const bool ipv6 = absl::StrContains(host, ":");
  config.server = absl::StrCat("https://", ipv6 ? "[" : "", host, ipv6 ? "]" : "", ":", port);
  config.certificate_authority.file = absl::StrCat(directory, "/ca.crt");
  config.token_file = absl::StrCat(directory, "/token");
  const absl::string_view ns = absl::StripAsciiWhitespace(default_namespace);
  if (!ns.empty()) config.default_namespace = std::string(ns);
  config.context = "in-cluster";
  return config;
}

}  // namespace sluice::kube
