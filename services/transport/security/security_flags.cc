#include "services/transport/security/security_flags.h"

namespace sluice::security {

void AddSecurityFlags(CLI::App* app, TransportSecurity::Options* options) {
  app->add_option("--tls-directory", options->directory, kDirectoryHelp)
      ->envname(kDirectoryVariable);
  app->add_option("--secret-file", options->secret_file, kSecretHelp)->envname(kSecretVariable);
  app->add_flag("--insecure", options->insecure, kInsecureHelp);
}

}  // namespace sluice::security
