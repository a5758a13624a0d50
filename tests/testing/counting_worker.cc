// A worker with a counting model (counting_engine.h). Everything but the model is that of
// sluice-worker.

#include <unistd.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "services/common/io/file_util.h"
#include "services/common/process/process.h"
#include "services/common/process/program.h"
#include "services/common/status_macros.h"
#include "services/protocol/member_exit.h"
#include "services/transport/grpc_settings.h"
#include "services/transport/security/security_flags.h"
#include "services/transport/security/transport_security.h"
#include "services/worker/worker_process.h"
#include "tests/testing/counting_engine.h"

namespace sluice::worker {
namespace {

int Main(int argc, char** argv) {
  ProgramFlags program;
  WorkerProcess::Options options;
  uint32_t index = 0;
  int threads = 0;
  std::string slow_while;

  CLI::App app{"A worker that counts samples."};
  app.add_option("--job", options.core.job)->required();
  app.add_option("--coordinator", options.coordinator)->required();
  app.add_option("--advertise", options.advertised_host);
  app.add_option("--index", index)->required();
  app.add_option("--threads", threads);
  app.add_option("--slow-while", slow_while, "batches are slow only while this file exists");
  security::TransportSecurity::Options security;
  security::AddSecurityFlags(&app, &security);
  AddProgramFlags(&app, &program);
  if (const int code = ParseFlags(&app, argc, argv); code >= 0) return code;

  StopRequests stop;
  ASSIGN_OR_RETURN(Logger logger, BeginProgram(program), ExitWith("counting_worker", _));
  ConfigureGrpcProcess({});

  const std::unique_ptr<FileSystem> files = MakeRealFileSystem();
  ASSIGN_OR_RETURN(options.security,
                   security::TransportSecurity::OpenChosen(files.get(), security, absl::Now()),
                   ExitWith("counting_worker", _));
  options.core.process.set_role(v1::WORKER);
  options.core.process.set_index(index);
  options.core.process.set_incarnation(RandomIncarnation());
  options.core.pid = getpid();
  options.make_engine = [slow_while](const v1::JobSpec& job, const DatasetInfo& data,
                                     int) -> absl::StatusOr<std::unique_ptr<ComputeEngine>> {
    return std::make_unique<testing::CountingEngine>(job, data.samples, slow_while);
  };

  Metrics metrics(WorkerMetrics(), {});
  const auto process = WorkerProcess::Start(std::move(options), &metrics,
                                            logger.With({{"role", "worker"}, {"index", index}}));
  stop.SetHandler([&](int) { process->Leave("asked to stop by a signal", absl::Seconds(5)); });
  const WorkerProcess::Result result = process->Wait();
  stop.SetHandler(nullptr);

  return ExitCodeOf(result.reason);
}

}  // namespace
}  // namespace sluice::worker

int main(int argc, char** argv) { return sluice::worker::Main(argc, argv); }
