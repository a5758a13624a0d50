#include "services/transport/security/security_flags.h"

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"

namespace sluice::security {

void AddSecurityFlags(CLI::App* app, TransportSecurity::Options* options) {
  app->add_option("--tls-directory", options->directory, kDirectoryHelp);
  app->add_option("--secret-file", options->secret_file, kSecretHelp);
  app->add_flag("--insecure", options->insecure, kInsecureHelp);
  // Any flag overrides the environment's variables for the others.
  app->parse_complete_callback([options] {
    if (!options->directory.empty() || !options->secret_file.empty() || options->insecure) return;
    const auto variable = [](const char* name) {
      const char* const value = std::getenv(name);
      return std::string(value == nullptr ? "" : value);
    };
    options->directory = variable(kDirectoryVariable);
    options->secret_file = variable(kSecretVariable);
  });
}

std::string JobOfIdentity(absl::string_view identity) {
  const std::vector<absl::string_view> parts = absl::StrSplit(identity, '/');
  if (parts.size() != 3 || parts[0].empty() || parts[1].empty()) return "";
  return absl::StrCat(parts[0], "/", parts[1]);
}

absl::StatusOr<std::shared_ptr<const TransportSecurity>> OpenForProcess(
    FileSystem* files, TransportSecurity::Options chosen, absl::string_view job, v1::Role role,
    uint32_t index) {
  chosen.job = JobOfIdentity(job);
  chosen.role = role;
  chosen.index = index;
  return TransportSecurity::OpenChosen(files, chosen, absl::Now());
}

}  // namespace sluice::security
