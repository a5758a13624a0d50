// sluice, the command line for users.

#include <curl/curl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "cli/cli.h"
#include "operator/kube/curl_http.h"
#include "services/common/process/program.h"
#include "services/common/version.h"
#include "services/download/curl_get.h"
#include "services/download/download_cache.h"
#include "services/ps/plugins/plugins.h"
#include "services/transport/grpc_settings.h"

namespace sluice::cli {
namespace {

int TerminalColumns() {
  winsize size = {};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

std::string VariableOr(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : value;
}

// Follows the C library's choice of LC_CTYPE.
bool LocaleIsUtf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const std::string value = absl::AsciiStrToLower(VariableOr(name, ""));
    if (!value.empty()) {
      return absl::StrContains(value, "utf-8") || absl::StrContains(value, "utf8");
    }
  }
  return false;
}

// Whether standard output is a pipe whose reader has closed its end.
bool ReaderGone() {
  pollfd output = {STDOUT_FILENO, POLLOUT, 0};
  return poll(&output, 1, 0) == 1 && (output.revents & POLLERR) != 0;
}

// SLUICE_BIN_DIR, this program's directory, and the directories of Bazel's bazel-bin around it.
std::vector<std::string> ProgramDirectories() {
  std::vector<std::string> directories;
  if (const std::string chosen = VariableOr("SLUICE_BIN_DIR", ""); !chosen.empty()) {
    directories.push_back(chosen);
  }

  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) {
    directories.push_back(self.parent_path().string());
    directories.push_back(self.parent_path().parent_path().string());
  }
  return directories;
}

int Main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  curl_global_init(CURL_GLOBAL_DEFAULT);
  // Child processes inherit the environment. Sluice's programs choose gRPC's experiments
  // themselves; a user's program has its own gRPC, which may not have these experiments.
  ConfigureGrpcProcess({.experiments = false, .data_plane = false});

  const std::unique_ptr<FileSystem> files = MakeRealFileSystem();
  const RealClock clock;
  Environment environment;
  environment.in = &std::cin;
  environment.out = &std::cout;
  environment.err = &std::cerr;

  environment.in_is_terminal = isatty(STDIN_FILENO) != 0;
  environment.live = isatty(STDOUT_FILENO) != 0 && VariableOr("TERM", "dumb") != "dumb";
  environment.color = environment.live && VariableOr("NO_COLOR", "").empty();
  environment.unicode = LocaleIsUtf8();
  environment.reader_gone = ReaderGone;
  environment.columns = TerminalColumns;

  environment.program_directories = ProgramDirectories();
  environment.data_directory = VariableOr("SLUICE_DATA", "");
  environment.plugin_path = VariableOr(kPluginPathVariable, "");
  environment.cache_directory =
      CacheDirectory([](const char* name) { return VariableOr(name, ""); });

  CurlGet::Options download_options;
  download_options.user_agent = absl::StrCat("sluice/", Version());
  CurlGet http(std::move(download_options));

  environment.http = &http;
  environment.files = files.get();
  environment.clock = &clock;

  environment.cluster.kubeconfig = VariableOr("KUBECONFIG", "");
  environment.cluster.home = VariableOr("HOME", "");
  environment.cluster.service_host = VariableOr("KUBERNETES_SERVICE_HOST", "");
  environment.cluster.service_port = VariableOr("KUBERNETES_SERVICE_PORT", "");
  environment.cluster.path = VariableOr("PATH", "");
  environment.cluster.connect = [&](const kube::ClientConfig& config)
      -> absl::StatusOr<std::unique_ptr<kube::HttpTransport>> {
    kube::CurlTransport::Options options;
    options.config = config;
    options.user_agent = absl::StrCat("sluice/", Version());
    return kube::CurlTransport::Make(std::move(options), files.get(), &clock);
  };

  // Only the commands that run a job handle signals, to stop it in order; a signal kills other
  // commands.
  // StopRequests blocks the signals for threads that start later, so it is created here.
  std::unique_ptr<StopRequests> stop;
  for (const std::string& argument : arguments) {
    if (argument == "run" || argument == "chaos" || argument == "verify") {
      stop = std::make_unique<StopRequests>();
    }
    if (argument.empty() || argument[0] != '-') break;
  }
  if (stop != nullptr) {
    // If the reader of the output goes away, the job must still save its checkpoint.
    signal(SIGPIPE, SIG_IGN);
    environment.set_interrupt_handler = [&](std::function<void(int)> handler) {
      stop->SetHandler(std::move(handler));
    };
  }
  return RunCommandLine(arguments, environment);
}

}  // namespace
}  // namespace sluice::cli

int main(int argc, char** argv) { return sluice::cli::Main(argc, argv); }
