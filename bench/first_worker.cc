#include "bench/first_worker.h"

#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "services/common/io/file_util.h"
#include "services/common/process/process.h"
#include "services/transport/security/transport_security.h"

namespace sluice::bench {

absl::Status InNewDirectory(const std::string& benchmark,
                            absl::FunctionRef<absl::Status(const std::string& directory)> run) {
  const std::string directory =
      (std::filesystem::temp_directory_path() / absl::StrCat("sluice-", benchmark, "-", getpid()))
          .string();
  std::filesystem::create_directories(directory);
  absl::Status status = run(directory);
  if (status.ok()) {
    std::filesystem::remove_all(directory);
    return status;
  }
  return absl::Status(status.code(), absl::StrCat(status.message(), "; logs are in ", directory));
}

worker::WorkerProcess::Options FirstWorkerOptions(const testing::JobProcesses& processes) {
  worker::WorkerProcess::Options options;
  options.core.process.set_role(v1::WORKER);
  options.core.process.set_incarnation(RandomIncarnation());
  options.core.job = processes.JobName();
  options.core.pid = static_cast<uint64_t>(getpid());
  options.coordinator = processes.coordinator_address();
  const auto security = security::TransportSecurity::OpenIfAny(
      MakeRealFileSystem().get(), {.secret_file = processes.secret_file()}, absl::Now());
  if (security.ok())
    options.security = *security;  // without credentials the job refuses it with a clear error
  options.threads = 1;
  return options;
}

absl::Status WaitUntilFinished(worker::WorkerProcess* process) {
  const worker::WorkerProcess::Result result = process->Wait();
  if (result.reason == ExitReason::kFinished) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("the worker ended: ", result.message));
}

}  // namespace sluice::bench
