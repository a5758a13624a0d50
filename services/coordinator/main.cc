// sluice-coordinator: one per job.

#include <google/protobuf/util/json_util.h>

#include <memory>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "services/checkpoint/local_storage.h"
#include "services/checkpoint/restore_source.h"
#include "services/common/exit_code.h"
#include "services/common/io/file_util.h"
#include "services/common/process/number_range.h"
#include "services/common/process/process.h"
#include "services/common/process/program.h"
#include "services/common/status_macros.h"
#include "services/common/version.h"
#include "services/coordinator/coordinator_server.h"
#include "services/coordinator/termination_message.h"
#include "services/manifest/job_file.h"
#include "services/protocol/arithmetic.h"
#include "services/protocol/job_name.h"
#include "services/transport/endpoint.h"
#include "services/transport/grpc_settings.h"
#include "services/transport/security/security_flags.h"
#include "services/transport/security/transport_security.h"

namespace sluice {
namespace {

struct Flags {
  ProgramFlags program;
  security::TransportSecurity::Options security;
  std::string job_file;
  std::string address;
  std::string storage;
  std::string status_file;
  std::string termination_file;
  double linger_seconds = 2;
};

constexpr size_t kMaxJobBytes = 1 << 20;

absl::StatusOr<api::JobFile> ReadJob(FileSystem* files, const std::string& path) {
  ASSIGN_OR_RETURN(std::string text, files->Read(path, kMaxJobBytes));
  absl::StatusOr<api::JobFile> file = api::ParseJobFile(text);
  if (file.ok()) return file;
  return absl::Status(
      file.status().code(),
      absl::StrCat(path, ": ", file.status().message(), "; this is sluice-coordinator ", Version(),
                   ": if the sluice or operator that wrote the file is newer, give the job an "
                   "image of its release"));
}

using coordinator::CoordinatorServer;
using coordinator::ExitReason;

int ExitCodeOf(ExitReason reason) {
  switch (reason) {
    case ExitReason::kSucceeded:
    case ExitReason::kSuspended:
      return kExitOk;
    case ExitReason::kSuperseded:
      return kExitRetry;
    case ExitReason::kLeft:
      return kExitExpelled;
    case ExitReason::kFailed:
      break;
  }
  return kExitFailed;
}

absl::Status WriteStatusFile(FileSystem* files, const std::string& path,
                             const v1::JobProgress& progress) {
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  std::string json;
  (void)google::protobuf::util::MessageToJsonString(progress, &json, options);
  return AtomicWriteFile(files, path, absl::Cord(json), "status");
}

// It may be possible to write the file, but not to replace it.
absl::Status WriteTerminationFile(FileSystem* files, const std::string& path,
                                  const v1::JobProgress& progress) {
  ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, files->Create(path, /*exclusive=*/false));
  RETURN_IF_ERROR(file->Append(coordinator::TerminationMessage(progress)));
  return file->Close();
}

// The files of the end. A file that cannot be written changes nothing about the end.
void WriteEndFiles(const Flags& flags, FileSystem* files, const CoordinatorServer::Result& result,
                   const Logger& logger) {
  if (!flags.status_file.empty()) {
    const absl::Status status = WriteStatusFile(files, flags.status_file, result.progress);
    if (!status.ok()) {
      logger.Warning("The status file could not be written", {{"why", status.ToString()}});
    }
  }

  if (!flags.termination_file.empty() && result.reason != ExitReason::kSuperseded &&
      result.reason != ExitReason::kLeft) {
    const absl::Status status =
        WriteTerminationFile(files, flags.termination_file, result.progress);
    if (!status.ok()) {
      logger.Warning("The termination file could not be written", {{"why", status.ToString()}});
    }
  }
}

absl::StatusOr<std::shared_ptr<const security::TransportSecurity>> OpenSecurity(
    const v1::JobSpec& job, const Flags& flags, FileSystem* files) {
  if (job.tls() == v1::JobSpec::TLS_ENABLED && flags.security.directory.empty()) {
    return absl::InvalidArgumentError(
        "the job has tls: Enabled: set --tls-directory, the directory of the coordinator's "
        "certificate");
  }
  return security::OpenForProcess(files, flags.security, FullJobName(job), v1::COORDINATOR, 0);
}

coordinator::CoordinatorOptions CoreOptions(const api::JobFile& file,
                                            const std::string& storage_directory,
                                            uint64_t incarnation) {
  coordinator::CoordinatorOptions options;
  options.job = file.job;
  options.incarnation = incarnation;
  options.checkpoint_directory = [storage_directory](const v1::CheckpointRef& ref) {
    return JoinPath(storage_directory, CheckpointDirectory(ref));
  };

  options.build = std::string(Version());
  options.arithmetic = ThisMachine();

  if (!file.unknown_fields.empty()) {
    options.warnings.push_back(
        absl::StrCat("the job file has fields that sluice-coordinator ", Version(),
                     " does not know and ignores: ", absl::StrJoin(file.unknown_fields, ", "),
                     "; to use them, give the job an image of the release that wrote it"));
  }
  return options;
}

// A job that can never begin fails at once, unless it has begun before.
absl::Status CheckRestoreSource(CheckpointStorage& storage,
                                const CoordinatorServer::Options& options) {
  const absl::StatusOr<RestorePoint> own = FindRestorePoint(storage, FileCheck::kSizes);
  if (!own.ok() || own->found) return absl::OkStatus();
  RETURN_IF_ERROR(options.find_source(FileCheck::kContents).status(),
                  absl::Status(_.code(), absl::StrCat("checkpoint.restoreFrom: ", _.message())));
  return absl::OkStatus();
}

absl::StatusOr<int> Run(const Flags& flags, const Logger& base_logger, StopRequests* stop) {
  const std::unique_ptr<FileSystem> files = MakeRealFileSystem();
  const absl::StatusOr<api::JobFile> job_file = ReadJob(files.get(), flags.job_file);
  if (absl::IsFailedPrecondition(job_file.status())) {
    ExitWith("sluice-coordinator", job_file.status());
    return kExitRefused;
  }
  if (!job_file.ok()) return job_file.status();

  const v1::JobSpec& job = job_file->job;
  const Logger logger = base_logger.With({{"job", job.name()}, {"role", "coordinator"}});
  const std::string storage_directory =
      flags.storage.empty() ? job.checkpoint().directory() : flags.storage;
  if (storage_directory.empty()) {
    return absl::InvalidArgumentError(
        "no checkpoint storage: set --storage or the job's checkpoint directory");
  }

  const uint64_t incarnation = RandomIncarnation();
  const std::unique_ptr<CheckpointStorage> storage =
      MakeLocalStorage(files.get(), storage_directory, absl::StrCat(incarnation));
  Metrics metrics(coordinator::CoordinatorMetrics(), {{"training_job", job.name()}});

  CoordinatorServer::Options options;
  ASSIGN_OR_RETURN(options.security, OpenSecurity(job, flags, files.get()));
  options.core = CoreOptions(*job_file, storage_directory, incarnation);
  for (const std::string& warning : options.core.warnings) logger.Warning(warning);
  ASSIGN_OR_RETURN(options.address, CoordinatorListenAddress(flags.address));
  if (const std::string& path = job.checkpoint().restore_from(); !path.empty()) {
    options.find_source = [files = files.get(), path](FileCheck check) {
      return FindRestoreSource(files, path, check);
    };
    RETURN_IF_ERROR(CheckRestoreSource(*storage, options));
  }
  options.linger = absl::Seconds(flags.linger_seconds);

  ASSIGN_OR_RETURN(std::unique_ptr<CoordinatorServer> server,
                   CoordinatorServer::Start(std::move(options), storage.get(), &metrics, logger));
  if (!flags.program.port_file.empty()) {
    RETURN_IF_ERROR(WritePortFile(flags.program.port_file, server->port()));
  }

  const bool managed = flags.program.parent != 0 || std::getenv("KUBERNETES_SERVICE_HOST");
  ASSIGN_OR_RETURN(
      const CoordinatorServer::Result result,
      WaitForEnd(
          server.get(), flags.program, &metrics, stop,
          [&](int) {
            // Where no process starts another coordinator, the job cannot continue.
            if (managed) {
              server->AskToStop();
            } else {
              server->Suspend();
            }
          },
          [](const CoordinatorServer::Result& end) { return ExitCodeOf(end.reason); }));
  WriteEndFiles(flags, files.get(), result, logger);
  return ExitCodeOf(result.reason);
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app{"Decides what the shards and workers of one Sluice job do."};
  app.add_option("--job", flags.job_file, "the job, as `sluice render` prints it (JSON)")
      ->required();
  app.add_option("--listen", flags.address,
                 "host:port to listen on (port 0: any; default: MASTER_ADDR and MASTER_PORT, else "
                 "127.0.0.1:0)");
  app.add_option(
      "--storage", flags.storage,
      "directory for claims and checkpoints, seen by all processes (default: the job's)");
  app.add_option("--status-file", flags.status_file,
                 "write the job's last progress to this file at the end (JSON)");
  app.add_option("--termination-file", flags.termination_file,
                 "the same in at most 4 KiB, without processes and events, for a pod's "
                 "termination message");
  app.add_option("--linger", flags.linger_seconds,
                 "seconds for which progress can be read after the end")
      ->capture_default_str()
      ->check(NumberBetween(0.0, 3600.0));

  security::AddSecurityFlags(&app, &flags.security);
  AddProgramFlags(&app, &flags.program);
  if (const int code = ParseFlags(&app, argc, argv); code >= 0) return code;

  StopRequests stop;
  ASSIGN_OR_RETURN(Logger logger, BeginProgram(flags.program), ExitWith("sluice-coordinator", _));
  ConfigureGrpcProcess({.experiments = flags.program.grpc_experiments, .data_plane = false});
  absl::StatusOr<int> code = Run(flags, logger, &stop);
  return code.ok() ? *code : ExitWith("sluice-coordinator", code.status());
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) { return sluice::Main(argc, argv); }
