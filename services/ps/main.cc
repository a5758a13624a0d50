// sluice-ps: a shard of a job's parameter server. sluice-ps-torch is the same with an extension.

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "services/common/io/file_util.h"
#include "services/common/process/number_range.h"
#include "services/common/process/process.h"
#include "services/common/process/program.h"
#include "services/common/status_macros.h"
#include "services/protocol/ids.h"
#include "services/protocol/member_exit.h"
#include "services/ps/plugins/plugins.h"
#include "services/ps/shard_extension.h"
#include "services/ps/shard_server.h"
#include "services/transport/endpoint.h"
#include "services/transport/grpc_settings.h"
#include "services/transport/security/security_flags.h"
#include "services/transport/security/transport_security.h"

namespace sluice::ps {
namespace {

struct Flags {
  ProgramFlags program;
  security::TransportSecurity::Options security;
  std::string job;
  std::string coordinator;
  uint32_t index = 0;
  std::string listen_address = "127.0.0.1:0";
  std::string advertised_address;
  bool shared_memory = true;
  int threads = 1;
  double grace_seconds = 60;
};

// The address by which workers reach this shard; without a port, that on which it listens.
std::string AdvertisedAddress(const Flags& flags) {
  if (flags.advertised_address.empty()) return HostOfEndpoint(flags.listen_address);
  const std::string& address = flags.advertised_address;
  // A pod's IPv6 address has no brackets, but needs them in front of a port.
  const bool bare = std::count(address.begin(), address.end(), ':') > 1 && address.front() != '[';
  return bare ? absl::StrCat("[", address, "]") : address;
}

v1::Register Identity(const Flags& flags) {
  v1::Register identity;
  identity.mutable_process()->set_role(v1::SHARD);
  identity.mutable_process()->set_index(flags.index);
  identity.mutable_process()->set_incarnation(RandomIncarnation());
  identity.set_job(flags.job);
  identity.set_host(HostName());
  identity.set_pid(getpid());
  return identity;
}

absl::StatusOr<int> Run(const Flags& flags, const Logger& base_logger, StopRequests* stop) {
  const Logger logger =
      base_logger.With({{"job", ShortJobName(flags.job)}, {"role", "ps"}, {"index", flags.index}});
  const std::unique_ptr<FileSystem> files = MakeRealFileSystem();
  Metrics metrics(ShardMetrics(), {{"training_job", ShortJobName(flags.job)},
                                   {"index", absl::StrCat(flags.index)}});
  // Destroyed after the server.
  const std::unique_ptr<ShardExtension> extension = MakeShardExtension(logger, &metrics);

  ShardServer::Options options;
  ASSIGN_OR_RETURN(options.coordinator, CoordinatorEndpoint(flags.coordinator));
  ASSIGN_OR_RETURN(options.security, security::OpenForProcess(files.get(), flags.security,
                                                              flags.job, v1::SHARD, flags.index));
  if (extension != nullptr) {
    options.core.references = extension->references();
    options.services = extension->services();
  }
  options.core.libraries = LibrariesIn(absl::NullSafeStringView(std::getenv(kPluginPathVariable)));
  options.core.identity = Identity(flags);
  options.listen_address = flags.listen_address;
  options.advertised_address = AdvertisedAddress(flags);
  options.shared_memory = flags.shared_memory;
  options.compute_threads = flags.threads;

  const std::string coordinator = options.coordinator;
  ASSIGN_OR_RETURN(std::unique_ptr<ShardServer> server,
                   ShardServer::Start(std::move(options), files.get(), &metrics, logger));
  logger.Info("Listening", {{"port", server->port()}, {"coordinator", coordinator}});
  if (!flags.program.port_file.empty()) {
    RETURN_IF_ERROR(WritePortFile(flags.program.port_file, server->port()));
  }

  const auto on_stop = [&](int count) {
    if (count == 1) {
      server->Leave("asked to stop by a signal", absl::Seconds(flags.grace_seconds));
    } else {
      server->Abandon("asked to stop by a second signal");
    }
  };
  ASSIGN_OR_RETURN(
      const ShardServer::Result result,
      WaitForEnd(server.get(), flags.program, &metrics, stop, on_stop,
                 [](const ShardServer::Result& end) { return ExitCodeOf(end.reason); }));
  return ExitCodeOf(result.reason);
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app{"Holds a part of a Sluice job's parameters, applies gradients and answers pulls."};
  app.add_option("--job", flags.job, "the job: namespace/name/uid")->required();
  app.add_option("--coordinator", flags.coordinator,
                 "host:port of the job's coordinator (default: MASTER_ADDR and MASTER_PORT)");
  app.add_option("--index", flags.index, "index of this shard among the job's shards, from 0")
      ->required()
      ->check(NumberBetween<uint32_t>(0, kMaxReplicas - 1));
  app.add_option("--listen", flags.listen_address, "host:port to listen on (port 0: any)")
      ->capture_default_str();
  app.add_option("--advertise", flags.advertised_address,
                 "host, or host:port, by which workers reach this shard (default: as --listen)");
  app.add_flag("--shared-memory,!--no-shared-memory", flags.shared_memory,
               "take the shared memory that clients of this machine offer (default: yes)");
  app.add_option("--threads", flags.threads, "threads for arithmetic")
      ->capture_default_str()
      ->check(CLI::Range(1, 256));
  app.add_option("--grace", flags.grace_seconds,
                 "seconds that SIGTERM leaves the job to move or save this shard's state")
      ->capture_default_str();

  security::AddSecurityFlags(&app, &flags.security);
  AddProgramFlags(&app, &flags.program);
  if (const int code = ParseFlags(&app, argc, argv); code >= 0) return code;

  StopRequests stop;
  ASSIGN_OR_RETURN(Logger logger, BeginProgram(flags.program), ExitWith("sluice-ps", _));
  ConfigureGrpcProcess({.experiments = flags.program.grpc_experiments});
  absl::StatusOr<int> code = Run(flags, logger, &stop);
  return code.ok() ? *code : ExitWith("sluice-ps", code.status());
}

}  // namespace
}  // namespace sluice::ps

int main(int argc, char** argv) { return sluice::ps::Main(argc, argv); }
