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
#include "services/common/status_macros.h"
#include "services/common/text/utf8.h"

namespace sluice::kube {
namespace {

// A file may contain any bytes, even as escapes; a message about it must be valid UTF-8.
std::string Quotable(const std::string& text) { return CleanUtf8(text, 4096); }

absl::Status Wrong(absl::string_view where, absl::string_view what) {
  return absl::InvalidArgumentError(Quotable(absl::StrCat("kubeconfig: ", where, ": ", what)));
}

std::string Text(const YAML::Node& map, const char* key) {
  if (!map.IsMap()) return "";
  const YAML::Node value = map[key];
  return value && value.IsScalar() ? value.Scalar() : std::string();
}

bool True(const YAML::Node& map, const char* key) { return Text(map, key) == "true"; }

struct Document {
  YAML::Node root;
  std::string directory;
};
using Documents = std::vector<Document>;

// An entry of a list of {name, <member>}.
struct Entry {
  YAML::Node node;        // the member
  std::string where;      // for messages
  std::string directory;  // of the entry's file
};

absl::StatusOr<Entry> Named(const Documents& documents, const char* list, const char* member,
                            const std::string& name) {
  for (const Document& document : documents) {
    const YAML::Node entries = document.root[list];
    if (!entries || !entries.IsSequence()) continue;
    for (size_t i = 0; i < entries.size(); ++i) {
      if (Text(entries[i], "name") != name) continue;
      const std::string where = absl::StrCat(list, "[", i, "] \"", name, "\"");
      const YAML::Node found = entries[i][member];
      if (!found || !found.IsMap()) return Wrong(where, absl::StrCat(member, " is missing"));
      return Entry{found, where, document.directory};
    }
  }
  return Wrong(list, absl::StrCat("no entry is named \"", name, "\""));
}

std::string Resolve(absl::string_view directory, const std::string& file) {
  if (file.empty() || file[0] == '/' || directory.empty()) return file;
  return absl::StrCat(directory, "/", file);
}

// `key` names a file, `key`-data contains base64; the data take precedence, as in kubectl.
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
    return Wrong(where, absl::StrCat(data_key, " contains no PEM block"));
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

  ASSIGN_OR_RETURN(auto authority,
                   ReadCredential(cluster, "certificate-authority", directory, where));
  if (config->insecure_skip_tls_verify && !authority.empty()) {
    return Wrong(
        where,
        "insecure-skip-tls-verify and certificate-authority are both set; remove one of them");
  }
  config->certificate_authority = std::move(authority);
  return absl::OkStatus();
}

absl::Status ReadPlugin(const YAML::Node& exec, const std::string& where,
                        absl::string_view directory, CredentialPlugin* plugin) {
  plugin->command = Text(exec, "command");
  if (plugin->command.empty()) return Wrong(where, "exec: command is missing");

  // A command without a slash is looked up in $PATH.
  if (absl::StrContains(plugin->command, "/")) {
    plugin->command = Resolve(directory, plugin->command);
  }

  plugin->api_version = Text(exec, "apiVersion");
  plugin->install_hint = Text(exec, "installHint");
  if (const YAML::Node args = exec["args"]; args && args.IsSequence()) {
    for (const YAML::Node& arg : args) plugin->args.push_back(arg.Scalar());
  }
  if (const YAML::Node env = exec["env"]; env && env.IsSequence()) {
    for (const YAML::Node& variable : env) {
      plugin->env.emplace_back(Text(variable, "name"), Text(variable, "value"));
    }
  }

  return absl::OkStatus();
}

absl::Status ReadUser(const YAML::Node& user, const std::string& where, absl::string_view directory,
                      Plugins plugins, ClientConfig* config) {
  if (user["exec"] && plugins == Plugins::kRead) {
    return ReadPlugin(user["exec"], where, directory, &config->plugin);
  }

  if (user["exec"]) {
    return Wrong(where,
                 absl::StrCat("the credential plugin \"", Text(user["exec"], "command"),
                              "\" (exec) is not supported here; use a user with a certificate or a "
                              "token (`kubectl create token` creates one)"));
  }
  if (user["auth-provider"]) {
    return Wrong(where, "auth-provider is not supported; use a certificate or a token");
  }
  if (user["username"] || user["password"]) {
    return Wrong(
        where,
        "basic authentication is not supported by API servers; use a certificate or a token");
  }
  if (user["as"]) return Wrong(where, "impersonation (as) is not supported");

  ASSIGN_OR_RETURN(auto certificate, ReadCredential(user, "client-certificate", directory, where));
  ASSIGN_OR_RETURN(auto key, ReadCredential(user, "client-key", directory, where));
  if (certificate.empty() != key.empty()) {
    return Wrong(where, "client-certificate and client-key belong together; one is missing");
  }

  config->client_certificate = std::move(certificate);
  config->client_key = std::move(key);
  config->token = Text(user, "token");
  config->token_file = Resolve(directory, Text(user, "tokenFile"));
  return absl::OkStatus();
}

absl::StatusOr<ClientConfig> Read(const Documents& documents, absl::string_view context_name,
                                  Plugins plugins) {
  ClientConfig config;
  config.context = std::string(context_name);

  for (const Document& document : documents) {
    if (!document.root.IsMap()) return Wrong("the file", "must be a map");
    if (config.context.empty()) config.context = Text(document.root, "current-context");
  }
  if (config.context.empty())
    return Wrong("current-context", "is not set, and no context is given");

  ASSIGN_OR_RETURN(auto context, Named(documents, "contexts", "context", config.context));
  if (const std::string ns = Text(context.node, "namespace"); !ns.empty()) {
    config.default_namespace = ns;
  }

  ASSIGN_OR_RETURN(auto cluster,
                   Named(documents, "clusters", "cluster", Text(context.node, "cluster")));
  RETURN_IF_ERROR(ReadCluster(cluster.node, cluster.where, cluster.directory, &config));

  const std::string user_name = Text(context.node, "user");
  if (user_name.empty()) return config;  // anonymous
  ASSIGN_OR_RETURN(auto user, Named(documents, "users", "user", user_name));
  RETURN_IF_ERROR(ReadUser(user.node, user.where, user.directory, plugins, &config));
  return config;
}

}  // namespace

absl::StatusOr<ClientConfig> ParseKubeconfig(absl::string_view text, absl::string_view directory,
                                             absl::string_view context) {
  return ParseKubeconfigs({{std::string(text), std::string(directory)}}, context,
                          Plugins::kRefused);
}

absl::StatusOr<ClientConfig> ParseKubeconfigs(const std::vector<KubeconfigFile>& files,
                                              absl::string_view context, Plugins plugins) {
  // yaml-cpp throws, also if a node has an unexpected type.
  try {
    Documents documents;
    for (const KubeconfigFile& file : files) {
      documents.push_back({YAML::Load(file.text), file.directory});
    }
    return Read(documents, context, plugins);
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(
        Quotable(absl::StrCat("kubeconfig: line ", error.mark.line + 1, ": ", error.msg)));
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(Quotable(absl::StrCat("kubeconfig: ", error.what())));
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
        "not inside a cluster: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set");
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
