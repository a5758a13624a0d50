#include "cli/cluster/credential_plugin.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "operator/kube/object.h"
#include "services/common/status_macros.h"

namespace sluice::cli {
namespace {

using kube::Json;

constexpr size_t kMaxOutput = 1 << 20;

absl::Status Failed(const kube::CredentialPlugin& plugin, absl::string_view what) {
  return absl::FailedPreconditionError(
      absl::StrCat("the kubeconfig's credential plugin \"", plugin.command, "\" ", what,
                   plugin.install_hint.empty() ? "" : ". ", plugin.install_hint));
}

// The plugin's variables, then those of this process: the first of a name counts.
std::vector<std::string> VariablesOf(const kube::CredentialPlugin& plugin) {
  const Json info = {{"apiVersion", plugin.api_version},
                     {"kind", "ExecCredential"},
                     {"spec", {{"interactive", isatty(STDIN_FILENO) != 0}}}};

  std::vector<std::string> variables = {absl::StrCat("KUBERNETES_EXEC_INFO=", info.dump())};
  for (const auto& [name, value] : plugin.env) {
    variables.push_back(absl::StrCat(name, "=", value));
  }

  for (char** own = environ; *own != nullptr; ++own) {
    const absl::string_view text = *own;
    const absl::string_view name = text.substr(0, text.find('=') + 1);
    bool set = false;
    for (const std::string& variable : variables) set = set || absl::StartsWith(variable, name);
    if (!set) variables.emplace_back(text);
  }
  return variables;
}

std::vector<char*> Raw(std::vector<std::string>* texts) {
  std::vector<char*> raw;
  for (std::string& text : *texts) raw.push_back(text.data());
  raw.push_back(nullptr);
  return raw;
}

// Returns what the plugin printed to standard output, if it exited with code 0.
absl::StatusOr<std::string> OutputOf(const kube::CredentialPlugin& plugin) {
  std::vector<std::string> arguments = plugin.args;
  arguments.insert(arguments.begin(), plugin.command);
  std::vector<std::string> variables = VariablesOf(plugin);

  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "pipe");

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  // This process's threads may block signals; the plugin must not inherit that.
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);

  pid_t pid = 0;
  const int error = posix_spawnp(&pid, plugin.command.c_str(), &actions, &attributes,
                                 Raw(&arguments).data(), Raw(&variables).data());

  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  close(ends[1]);

  std::string output;
  if (error == 0) {
    char buffer[4096];
    ssize_t got = 0;
    while ((got = read(ends[0], buffer, sizeof(buffer))) > 0 || (got < 0 && errno == EINTR)) {
      if (got > 0 && output.size() < kMaxOutput) output.append(buffer, static_cast<size_t>(got));
    }
  }

  close(ends[0]);
  if (error == ENOENT) return Failed(plugin, "is not installed");
  if (error != 0) return Failed(plugin, absl::ErrnoToStatus(error, "cannot be run").message());

  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }

  if (WIFEXITED(status) && WEXITSTATUS(status) == 127) return Failed(plugin, "cannot be run");
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return output;
  return Failed(plugin, WIFEXITED(status)
                            ? absl::StrCat("failed with exit code ", WEXITSTATUS(status))
                            : absl::StrCat("was killed by signal ", WTERMSIG(status)));
}

}  // namespace

absl::StatusOr<kube::ClientConfig> RunCredentialPlugin(const kube::ClientConfig& config) {
  const kube::CredentialPlugin& plugin = config.plugin;
  ASSIGN_OR_RETURN(const std::string output, OutputOf(plugin));

  const Json made = Json::parse(output, nullptr, false);
  if (kube::GetString(made, {"kind"}) != "ExecCredential") {
    return Failed(plugin, "printed no ExecCredential");
  }

  kube::ClientConfig with = config;
  with.plugin = {};
  with.token = kube::GetString(made, {"status", "token"});
  with.client_certificate.pem = kube::GetString(made, {"status", "clientCertificateData"});
  with.client_key.pem = kube::GetString(made, {"status", "clientKeyData"});

  if (with.client_certificate.pem.empty() != with.client_key.pem.empty()) {
    return Failed(plugin,
                  "returned a certificate without its key, or a key without its certificate");
  }

  if (with.token.empty() && with.client_certificate.pem.empty()) {
    return Failed(plugin, "returned neither a token nor a certificate");
  }

  return with;
}

PluginTransport::PluginTransport(kube::ClientConfig config, Connect connect)
    : config_(std::move(config)), connect_(std::move(connect)) {}

absl::StatusOr<std::shared_ptr<kube::HttpTransport>> PluginTransport::Current(
    const std::shared_ptr<kube::HttpTransport>& refused) {
  MutexLock lock(&mutex_);
  // Another thread may have replaced it in the meantime.
  if (current_ != refused) return current_;
  ASSIGN_OR_RETURN(const kube::ClientConfig config, RunCredentialPlugin(config_));
  ASSIGN_OR_RETURN(current_, connect_(config));
  return current_;
}

absl::StatusOr<kube::HttpResponse> PluginTransport::Do(const kube::HttpRequest& request) {
  return Stream(request, nullptr, nullptr);
}

absl::StatusOr<kube::HttpResponse> PluginTransport::Stream(const kube::HttpRequest& request,
                                                           const BodySink& sink,
                                                           kube::Cancellation* cancellation) {
  std::shared_ptr<kube::HttpTransport> refused;
  {
    MutexLock lock(&mutex_);
    refused = current_;
  }

  std::shared_ptr<kube::HttpTransport> transport = refused;
  for (bool again = false;; again = true) {
    if (transport == nullptr || again) {
      ASSIGN_OR_RETURN(transport, Current(refused));
    }
    absl::StatusOr<kube::HttpResponse> response =
        sink ? transport->Stream(request, sink, cancellation) : transport->Do(request);
    const bool refuses = response.ok() && response->code == 401;
    // If the server refuses fresh credentials, another run of the plugin does not help.
    if (!refuses || again || refused == nullptr) return response;
  }
}

}  // namespace sluice::cli
