// certificates.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/command.h"
#include "services/common/exit_code.h"
#include "services/common/status_macros.h"
#include "services/transport/security/credential_directories.h"

namespace sluice::cli {
namespace {

struct CertificateFlags {
  security::CredentialDirectoriesOptions directories;
  std::string output = "tls";
  int days = 90;
};

int MakeCertificates(const Environment& environment, CertificateFlags flags) {
  if (!absl::StrContains(flags.directories.job, '/')) {
    flags.directories.job = absl::StrCat("default/", flags.directories.job);
  }

  flags.directories.valid = absl::Hours(24 * flags.days);
  ASSIGN_OR_RETURN(
      const std::vector<std::string> written,
      security::WriteCredentialDirectories(environment.files, flags.output, flags.directories,
                                           environment.clock->Now()),
      PrintError(environment, _));

  *environment.out << "Wrote certificates of " << flags.directories.job << ", valid for "
                   << flags.days << " days:\n";
  for (const std::string& directory : written) *environment.out << "  " << directory << "\n";
  *environment.out << "Give each process only its own directory: --tls-directory DIRECTORY\n";
  return kExitOk;
}

}  // namespace

void AddCertificateCommand(CLI::App* app, const Environment& environment, Action* action) {
  auto flags = std::make_shared<CertificateFlags>();
  CLI::App* command = app->add_subcommand(
      "certificates",
      "Make certificates for a job whose processes are started by hand\n\n"
      "  sluice certificates my-job -o tls --shards 2 --workers 4\n\n"
      "Run the same command to renew the certificates, also while the job runs. "
      "The\ncertificate authority is kept in tls/ca.\n");
  command->add_option("JOB", flags->directories.job, "the job: name, or namespace/name")
      ->required();
  command->add_option("-o,--output", flags->output, "the directory to write into")
      ->capture_default_str();

  command->add_option("--shards", flags->directories.shards, "number of shards")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  command->add_option("--workers", flags->directories.workers, "number of workers")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));

  command->add_option("--days", flags->days, "number of days for which the certificates are valid")
      ->capture_default_str()
      ->check(CLI::Range(1, 365));

  command->callback([=, &environment] {
    *action = [=, &environment] { return MakeCertificates(environment, *flags); };
  });
}

}  // namespace sluice::cli
