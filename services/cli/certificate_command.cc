// certificates.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "services/cli/command.h"
#include "services/common/exit_code.h"
#include "services/transport/security/credential_folders.h"

namespace sluice::cli {
namespace {

struct CertificateFlags {
  security::CredentialFoldersOptions folders;
  std::string output = "tls";
  int days = 90;
};

int MakeCertificates(const Environment& environment, CertificateFlags flags) {
  if (!absl::StrContains(flags.folders.job, '/')) {
    flags.folders.job = absl::StrCat("default/", flags.folders.job);
  }
  flags.folders.valid = absl::Hours(24 * flags.days);
  const absl::StatusOr<std::vector<std::string>> written = security::WriteCredentialFolders(
      environment.files, flags.output, flags.folders, environment.clock->Now());
  if (!written.ok()) return Complain(environment, written.status());
  *environment.out << "Wrote certificates of " << flags.folders.job << ", valid for " << flags.days
                   << " days:\n";
  for (const std::string& folder : *written) *environment.out << "  " << folder << "\n";
  *environment.out << "Give each process only its own folder: --tls-directory FOLDER\n";
  return kExitOk;
}

}  // namespace

void AddCertificateCommand(CLI::App* app, const Environment& environment, Action* action) {
  auto flags = std::make_shared<CertificateFlags>();
  CLI::App* command =
      app->add_subcommand("certificates",
                          "Make certificates for a job whose processes are started by hand\n\n"
                          "  sluice certificates my-job -o tls --shards 2 --workers 4\n\n"
                          "The same command renews them, also while the job runs, and keeps the "
                          "authority in tls/ca.\n");
  command->add_option("JOB", flags->folders.job, "the job: name, or namespace/name")->required();
  command->add_option("-o,--output", flags->output, "the folder to write into")
      ->capture_default_str();
  command->add_option("--shards", flags->folders.shards, "how many shards")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  command->add_option("--workers", flags->folders.workers, "how many workers")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  command->add_option("--days", flags->days, "number of days that they are valid")
      ->capture_default_str()
      ->check(CLI::Range(1, 365));
  command->callback([=, &environment] {
    *action = [=, &environment] { return MakeCertificates(environment, *flags); };
  });
}

}  // namespace sluice::cli
