// inspect, export.
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "cli/command.h"
#include "cli/common/jobs.h"
#include "cli/common/progress_text.h"
#include "cli/common/tensor_text.h"
#include "cli/local/job_directory.h"
#include "cli/optimizer_file.h"
#include "cli/run/preparation.h"
#include "cli/run_program.h"
#include "proto/job.pb.h"
#include "services/checkpoint/checkpoint_reader.h"
#include "services/checkpoint/existing_job.h"
#include "services/checkpoint/local_storage.h"
#include "services/checkpoint/optimizer_state.h"
#include "services/checkpoint/restore_source.h"
#include "services/checkpoint/state_dict_extras.h"
#include "services/common/exit_code.h"
#include "services/common/status_macros.h"
#include "services/common/text/utf8.h"
#include "services/manifest/enum_names.h"
#include "services/protocol/kernels.h"
#include "services/protocol/worker_limits.h"
#include "services/snapshot/running_snapshot.h"

namespace sluice::cli {
namespace {

constexpr size_t kMaxExtrasBytes = size_t{64} << 30;
constexpr size_t kMaxFileBytes = size_t{1} << 40;
constexpr size_t kValuesShown = 64;
constexpr size_t kValuesWatched = 10;
constexpr double kWatchSeconds = 1;  // default interval of --watch
constexpr absl::Duration kSnapshotTimeout = absl::Seconds(30);

struct CheckpointFlags {
  std::string state_directory = ".sluice";
  ClusterFlags cluster;
  std::string target;
  std::string tensor;
  std::string output;
  std::string optimizer;
  std::string format;
  std::string model;
  std::string program_directory;
  double watch_seconds = 0;
  bool stats = false;
};

// A checkpoint, and the model of the job that wrote it.
struct Found {
  std::string directory;  // of the checkpoint
  std::unique_ptr<CheckpointStorage> storage;
  v1::CheckpointIndex checkpoint_index;
  absl::StatusOr<std::vector<SafetensorsArray>> tensors;
  std::vector<std::string> damaged;            // newer checkpoints that were skipped
  std::string model;                           // the job's TorchScript file, if it has one
  std::optional<v1::OptimizerSpec> optimizer;  // the job's, if the target is a job
};

std::unique_ptr<CheckpointStorage> OpenStorage(const Environment& environment,
                                               const std::string& directory) {
  return MakeLocalStorage(environment.files, directory, absl::StrCat("cli-", getpid()));
}

bool Exists(const Environment& environment, const std::string& path) {
  const absl::StatusOr<bool> exists = environment.files->Exists(path);
  return exists.ok() && *exists;
}

absl::StatusOr<Found> NewestIn(const Environment& environment, const std::string& directory) {
  Found found;
  found.storage = OpenStorage(environment, directory);
  ASSIGN_OR_RETURN(NewestCheckpoint newest, ReadNewestCheckpoint(*found.storage),
                   absl::Status(_.code(), absl::StrCat(directory, ": ", _.message())));
  found.checkpoint_index = std::move(newest.point.checkpoint_index);
  found.damaged = std::move(newest.point.damaged);
  found.tensors = std::move(newest.tensors);
  found.directory = JoinPath(directory, CheckpointDirectory(found.checkpoint_index.checkpoint()));
  return found;
}

// The target is a checkpoint's directory, a directory of checkpoints, the name `best` in it, or the
// name of a job.
absl::StatusOr<Found> FindCheckpoint(const Environment& environment, const CheckpointFlags& flags) {
  std::string target = flags.target;
  while (target.size() > 1 && absl::EndsWith(target, "/")) target.pop_back();
  if (NamesBestCheckpoint(environment.files, target)) {
    ASSIGN_OR_RETURN(RestoreSource best, FindRestoreSource(environment.files, target));
    target = best.directory;
  }

  if (Exists(environment, JoinPath(target, "manifest.json"))) {
    ASSIGN_OR_RETURN(const v1::CheckpointRef ref, ParseCheckpointDirectory(FileNameOf(target)));
    Found found;
    found.directory = target;
    found.storage = OpenStorage(environment, DirectoryOf(target));
    ASSIGN_OR_RETURN(found.checkpoint_index, found.storage->ReadCheckpointIndex(ref));
    found.tensors = ReadCheckpointTensors(*found.storage, found.checkpoint_index);
    return found;
  }

  if (Exists(environment, JoinPath(target, "claims"))) return NewestIn(environment, target);

  const local::JobDirectory directory(environment.files, flags.state_directory, target);
  const absl::StatusOr<api::TrainingJob> job = directory.ReadJob();
  if (!job.ok()) {
    return absl::NotFoundError(absl::StrCat(
        flags.target, " is neither a checkpoint's directory nor a job in ", flags.state_directory));
  }

  absl::StatusOr<Found> found = NewestIn(environment, directory.CheckpointsOf(job->spec));
  if (found.ok()) {
    found->model = job->spec.model().path();
    found->optimizer = job->spec.optimizer();
  }
  return found;
}

absl::Status KeepOnly(const std::string& name, std::vector<SafetensorsArray>* tensors) {
  if (name.empty()) return absl::OkStatus();
  std::string known;
  for (const SafetensorsArray& tensor : *tensors) absl::StrAppend(&known, "\n  ", tensor.name);
  tensors->erase(std::remove_if(tensors->begin(), tensors->end(),
                                [&](const SafetensorsArray& t) { return t.name != name; }),
                 tensors->end());
  if (!tensors->empty()) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("there is no tensor ", name, "; there are:", known));
}

void PrintTensors(const Environment& environment, const CheckpointFlags& flags,
                  const std::vector<SafetensorsArray>& tensors,
                  const std::map<std::string, std::string>& owners) {
  const bool one = !flags.tensor.empty();
  for (const std::string& line : TensorTableLines(tensors, flags.stats || one, owners)) {
    *environment.out << line << "\n";
  }
  if (!one) return;
  for (const std::string& line : ValueLines(tensors[0], kValuesShown)) {
    *environment.out << line << "\n";
  }
}

// The name that manifests use.
std::string ModeText(v1::Mode mode) {
  const std::string name = api::EnumName("spec.training.mode", mode);
  return name.empty() ? v1::Mode_Name(mode) : name;
}

// The optimizers' names in a manifest, of one or more ("SGD, ADAGRAD").
std::string OptimizerText(const std::string& written) {
  const auto append = [](std::string* out, absl::string_view one) {
    v1::OptimizerSpec::Name optimizer;
    const bool known = v1::OptimizerSpec::Name_Parse(std::string(one), &optimizer);
    const std::string name =
        known ? api::EnumName("spec.optimizer.name", optimizer) : std::string(one);
    absl::StrAppend(out, name.empty() ? std::string(one) : name);
  };
  return absl::StrJoin(absl::StrSplit(written, ", "), ", ", append);
}

// The line of what the checkpoint's version was evaluated to; empty if that is not recorded.
std::string MetricsText(const v1::CheckpointIndex& index) {
  std::vector<std::string> metrics;
  for (const v1::Metric& metric : index.metrics()) {
    metrics.push_back(
        absl::StrFormat("%s %.6g", CleanUtf8(metric.name(), kMaxMetricNameBytes), metric.value()));
  }
  return metrics.empty() ? "" : absl::StrCat("evaluation  ", absl::StrJoin(metrics, ", "), "\n");
}

int InspectCheckpoint(const Environment& environment, const CheckpointFlags& flags) {
  ASSIGN_OR_RETURN(Found found, FindCheckpoint(environment, flags), PrintError(environment, _));

  const v1::CheckpointIndex& checkpoint_index = found.checkpoint_index;
  std::ostream& out = *environment.out;

  for (const std::string& damaged : found.damaged) out << "skipped: " << damaged << "\n";
  out << "checkpoint  " << found.directory << "\n"
      << "job         " << checkpoint_index.job() << "\n"
      << "step        " << CountText(checkpoint_index.checkpoint().step()) << " of attempt "
      << checkpoint_index.checkpoint().attempt() << ", " << CountText(checkpoint_index.samples())
      << " samples\n"
      << "written     " << checkpoint_index.time() << " by " << checkpoint_index.isa() << "\n"
      << (checkpoint_index.has_environment()
              ? absl::StrCat("workers     ", EnvironmentText(checkpoint_index.environment()), "\n")
              : "")
      << "training    " << ModeText(checkpoint_index.mode()) << ", "
      << OptimizerText(checkpoint_index.optimizer()) << ", seed " << checkpoint_index.seed()
      << ", loss " << LossText(checkpoint_index.loss()) << "\n";

  out << MetricsText(checkpoint_index);
  for (const v1::DataDigest& digest : checkpoint_index.digests()) {
    out << "data        " << CleanUtf8(digest.name(), kMaxDigestNameBytes) << ": "
        << absl::StrCat(absl::Hex(digest.hash(), absl::kZeroPad16)) << "\n";
  }

  uint64_t bytes = 0;
  int bad = 0;
  for (const v1::PartitionFile& file : checkpoint_index.files()) {
    bytes += file.bytes();
    if (found.tensors.ok()) continue;
    const absl::Status status =
        found.storage->ReadFile(checkpoint_index.checkpoint(), file).status();
    if (status.ok()) continue;
    ++bad;
    out << "damaged     " << status.message() << "\n";
  }

  out << "files       " << checkpoint_index.files_size() << ", " << BytesText(bytes)
      << (bad == 0 ? ", all intact" : absl::StrCat(", ", bad, " damaged")) << "\n\n";
  if (bad > 0) return kExitFailed;

  RETURN_IF_ERROR(found.tensors.status(), PrintError(environment, _));
  RETURN_IF_ERROR(KeepOnly(flags.tensor, &*found.tensors), PrintError(environment, _));
  PrintTensors(environment, flags, *found.tensors, /*owners=*/{});
  return kExitOk;
}

// Reads one snapshot; the access is kept for the next.
absl::StatusOr<RunningSnapshot> PullFrom(Jobs* jobs, const std::string& name,
                                         std::unique_ptr<Jobs::Access>* access) {
  if (*access == nullptr) {
    ASSIGN_OR_RETURN(*access, jobs->Reach(name));
  }
  absl::StatusOr<RunningSnapshot> snapshot =
      PullSnapshot((*access)->Source(), (*access)->Identity(), kSnapshotTimeout);
  // The job's processes may have been replaced by the next time.
  if (!snapshot.ok()) access->reset();
  return snapshot;
}

void PrintSnapshot(const Environment& environment, const CheckpointFlags& flags,
                   const RunningSnapshot& snapshot) {
  std::ostream& out = *environment.out;
  out << flags.target << " (running) at step " << CountText(snapshot.version);
  if (flags.watch_seconds > 0 && !flags.stats) {
    out << ": " << WatchText(snapshot.tensors, kValuesWatched) << "\n";
  } else {
    out << "\n";
    PrintTensors(environment, flags, snapshot.tensors, snapshot.owners);
  }
  out.flush();
}

int InspectRunning(const Environment& environment, const CheckpointFlags& flags, Jobs* jobs) {
  std::unique_ptr<Jobs::Access> access;
  const bool watch = flags.watch_seconds > 0;
  std::optional<uint64_t> shown;  // the step that was printed last
  absl::Status reported;          // the last error that was printed
  for (bool again = false;; again = true) {
    absl::StatusOr<RunningSnapshot> snapshot = PullFrom(jobs, flags.target, &access);

    // With --watch, the end of the job is not a failure.
    if (again && absl::IsFailedPrecondition(snapshot.status())) return kExitOk;

    if (!snapshot.ok()) {
      if (!watch || absl::IsFailedPrecondition(snapshot.status()) ||
          absl::IsNotFound(snapshot.status())) {
        return PrintError(environment, snapshot.status());
      }
      if (std::exchange(reported, snapshot.status()) != snapshot.status()) {
        *environment.err << "sluice: " << snapshot.status().message() << "\n";
      }
    } else {
      reported = absl::OkStatus();
      RETURN_IF_ERROR(KeepOnly(flags.tensor, &snapshot->tensors), PrintError(environment, _));
      // Each version is printed once.
      if (std::exchange(shown, snapshot->version) != snapshot->version) {
        PrintSnapshot(environment, flags, *snapshot);
      }
    }

    if (!watch) return kExitOk;
    std::this_thread::sleep_for(absl::ToChronoMilliseconds(absl::Seconds(flags.watch_seconds)));
    if (access != nullptr && !access->Running()) return kExitOk;
  }
}

// A safetensors file: a model, or the state of an optimizer.
int InspectFile(const Environment& environment, const CheckpointFlags& flags, uint64_t bytes) {
  ASSIGN_OR_RETURN(std::string content, environment.files->Read(flags.target, kMaxFileBytes),
                   PrintError(environment, _));

  std::map<std::string, std::string> metadata;
  ASSIGN_OR_RETURN(
      std::vector<SafetensorsArray> arrays,
      ReadSafetensors(absl::Cord(std::move(content)), &metadata),
      PrintError(environment, absl::InvalidArgumentError(absl::StrCat(
                                  flags.target, " is not a safetensors file: ", _.message()))));

  std::ostream& out = *environment.out;
  out << "file        " << flags.target << ", " << BytesText(bytes) << "\n";
  const std::vector<std::string> optimizer = OptimizerLines(arrays, metadata);

  for (const auto& [key, value] : metadata) {
    if (key == "optimizer" && !optimizer.empty()) continue;
    out << "metadata    " << key << ": " << value << "\n";
  }
  for (const std::string& line : optimizer) out << line << "\n";
  out << "\n";

  RETURN_IF_ERROR(KeepOnly(flags.tensor, &arrays), PrintError(environment, _));
  PrintTensors(environment, flags, arrays, /*owners=*/{});
  return kExitOk;
}

int Inspect(const Environment& environment, const CheckpointFlags& flags) {
  if (const absl::StatusOr<uint64_t> bytes = environment.files->Size(flags.target);
      bytes.ok() && !flags.cluster.wanted()) {
    return InspectFile(environment, flags, *bytes);
  }

  ASSIGN_OR_RETURN(const std::unique_ptr<Jobs> jobs,
                   FindJobs(environment, flags.state_directory, flags.cluster),
                   PrintError(environment, _));
  if (flags.cluster.wanted()) return InspectRunning(environment, flags, jobs.get());

  const local::JobDirectory directory(environment.files, flags.state_directory, flags.target);
  if (directory.LockedBy().has_value()) return InspectRunning(environment, flags, jobs.get());
  return InspectCheckpoint(environment, flags);
}

int ExportTorchScript(const Environment& environment, const CheckpointFlags& flags,
                      const std::string& model, const absl::Cord& tensors) {
  if (model.empty()) {
    return PrintError(environment, absl::InvalidArgumentError(
                                       "TorchScript is for jobs with a TorchScript model; name its "
                                       "file with --model, or export safetensors"));
  }
  ASSIGN_OR_RETURN(const auto programs,
                   FindPrograms(environment, flags.program_directory, {v1::WORKER}),
                   PrintError(environment, _));

  const std::string temporary = absl::StrCat(flags.output, ".tensors-", getpid());
  RETURN_IF_ERROR(AtomicWriteFile(environment.files, temporary, tensors, absl::StrCat(getpid())),
                  PrintError(environment, _));

  environment.out->flush();
  const int code = RunProgram({programs.worker, "export-torchscript", "--model", model, "--tensors",
                               temporary, "--output", flags.output});

  (void)environment.files->Remove(temporary);
  return code;
}

// The parameters of a job that runs on a cluster, in the form that a checkpoint has.
absl::StatusOr<Found> FindRunning(const Environment& environment, const CheckpointFlags& flags) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Jobs> jobs,
                   FindJobs(environment, flags.state_directory, flags.cluster));
  std::unique_ptr<Jobs::Access> access;
  ASSIGN_OR_RETURN(RunningSnapshot snapshot, PullFrom(jobs.get(), flags.target, &access));
  Found found;
  found.checkpoint_index.set_job(access->Identity());
  found.checkpoint_index.mutable_checkpoint()->set_step(snapshot.version);
  found.tensors = std::move(snapshot.tensors);
  return found;
}

// Adds the entries of the model's state_dict that are not trained, as the workers wrote them.
absl::Status AddStateDictExtras(const Environment& environment, const std::string& checkpoint,
                                std::vector<SafetensorsArray>* tensors) {
  const std::string path = JoinPath(DirectoryOf(checkpoint), kStateDictExtrasFile);
  const absl::StatusOr<std::string> content = environment.files->Read(path, kMaxExtrasBytes);
  if (absl::IsNotFound(content.status())) return absl::OkStatus();
  RETURN_IF_ERROR(content.status());
  const absl::StatusOr<StateDictExtras> extras = ReadStateDictExtras(absl::Cord(*content));
  absl::Status added = extras.ok() ? AddExtras(*extras, tensors) : extras.status();
  if (added.ok()) return added;
  return absl::DataLossError(absl::StrCat(
      path, ": ", added.message(), "; without this file, export writes only the trained tensors"));
}

// The format to write: --format, or what the file's extension implies.
absl::StatusOr<bool> IsTorchScript(const CheckpointFlags& flags) {
  if (!flags.format.empty()) return flags.format == "torchscript";
  if (absl::EndsWith(flags.output, ".safetensors")) return false;
  if (absl::EndsWith(flags.output, ".pt") || absl::EndsWith(flags.output, ".pth")) return true;
  return absl::InvalidArgumentError(
      absl::StrCat(flags.output,
                   ": the extension does not name a format; use .safetensors, .pt or .pth "
                   "(TorchScript), or set --format"));
}

int ExportModel(const Environment& environment, const CheckpointFlags& flags, bool script,
                Found found) {
  absl::StatusOr<std::vector<SafetensorsArray>>& tensors = found.tensors;
  RETURN_IF_ERROR(tensors.status(), PrintError(environment, _));
  // A TorchScript file already contains the second names of tied tensors and the constants.
  if (!script && !found.directory.empty()) {
    RETURN_IF_ERROR(AddStateDictExtras(environment, found.directory, &*tensors),
                    PrintError(environment, _));
  }

  const absl::Cord file = WriteSafetensors(
      *tensors, {{"format", "pt"},
                 {"job", found.checkpoint_index.job()},
                 {"step", absl::StrCat(found.checkpoint_index.checkpoint().step())}});

  if (script) {
    const int code = ExportTorchScript(environment, flags,
                                       flags.model.empty() ? found.model : flags.model, file);
    if (code != kExitOk) return code;
  } else {
    RETURN_IF_ERROR(AtomicWriteFile(environment.files, flags.output, file, absl::StrCat(getpid())),
                    PrintError(environment, _));
  }

  *environment.out << "Wrote " << flags.output << ": " << tensors->size() << " tensors of step "
                   << CountText(found.checkpoint_index.checkpoint().step()) << ". In Python:\n\n";

  if (script) {
    *environment.out << "  import torch\n  model = torch.jit.load(\"" << flags.output << "\")\n";
  } else {
    const bool running = found.directory.empty();
    *environment.out << "  from safetensors.torch import load_file\n  model.load_state_dict("
                     << "load_file(\"" << flags.output << "\")" << (running ? ", strict=False" : "")
                     << ")\n";
    if (running) {
      *environment.out << "\nstrict=False: the shards of a running job store each tied tensor "
                          "under its first name only, and no constant buffers.\n";
    }
  }
  return kExitOk;
}

// The optimizer with which the checkpoint was made.
absl::StatusOr<v1::OptimizerSpec> OptimizerOf(const Found& found) {
  const v1::CheckpointRef& ref = found.checkpoint_index.checkpoint();
  ASSIGN_OR_RETURN(const std::vector<v1::Claim> claims, found.storage->ReadClaims());
  for (const v1::Claim& claim : claims) {
    if (claim.attempt() != ref.attempt() || claim.settings().empty()) continue;
    const std::optional<v1::OptimizerSpec> optimizer = ClaimedOptimizer(claim);
    if (!optimizer.has_value()) break;
    return *optimizer;
  }

  if (found.optimizer.has_value()) return *found.optimizer;
  return absl::FailedPreconditionError(
      absl::StrCat("the claim of attempt ", ref.attempt(), " beside ", found.directory,
                   " does not have the job's settings, so the optimizer's options are not known: "
                   "name the job instead of its checkpoint"));
}

absl::StatusOr<OptimizerFile> OptimizerFileOf(const Found& found) {
  if (found.storage == nullptr) {
    return absl::InvalidArgumentError(
        "--optimizer reads a checkpoint: a running job's shards give the parameters alone. Export "
        "from the checkpoint's directory");
  }
  ASSIGN_OR_RETURN(const v1::OptimizerSpec optimizer, OptimizerOf(found));
  ASSIGN_OR_RETURN(const SlotsOf slots, SlotsOfOptimizer(optimizer));
  ASSIGN_OR_RETURN(std::vector<TensorState> states,
                   ReadOptimizerState(*found.storage, found.checkpoint_index, slots));
  return MakeOptimizerFile(optimizer, found.checkpoint_index, std::move(states));
}

int ExportOptimizer(const Environment& environment, const CheckpointFlags& flags,
                    const OptimizerFile& file) {
  RETURN_IF_ERROR(
      AtomicWriteFile(environment.files, flags.optimizer,
                      WriteSafetensors(file.arrays, file.metadata), absl::StrCat(getpid())),
      PrintError(environment, _));
  for (const std::string& note : file.notes) *environment.err << "sluice: " << note << "\n";
  *environment.out << "Wrote " << flags.optimizer
                   << ": the state of the optimizer. In Python:\n\n  import sluice\n"
                      "  optimizer.load_state_dict(sluice.load_optimizer(\""
                   << flags.optimizer << "\", optimizer, model))\n";
  return kExitOk;
}

int Export(const Environment& environment, const CheckpointFlags& flags) {
  if (flags.output.empty() && flags.optimizer.empty()) {
    return PrintError(
        environment,
        absl::InvalidArgumentError("name a file with --output, with --optimizer, or with both"));
  }

  bool script = false;
  if (!flags.output.empty()) {
    ASSIGN_OR_RETURN(script, IsTorchScript(flags), PrintError(environment, _));
  }

  if (!flags.optimizer.empty() && !absl::EndsWith(flags.optimizer, ".safetensors")) {
    return PrintError(environment, absl::InvalidArgumentError(absl::StrCat(
                                       flags.optimizer,
                                       ": --optimizer writes a safetensors file; name it "
                                       ".safetensors (sluice.load_optimizer reads it)")));
  }

  if (flags.optimizer == flags.output) {
    return PrintError(environment, absl::InvalidArgumentError(absl::StrCat(
                                       flags.output, ": --output and --optimizer name one file")));
  }

  ASSIGN_OR_RETURN(
      Found found,
      flags.cluster.wanted() ? FindRunning(environment, flags) : FindCheckpoint(environment, flags),
      PrintError(environment, _));

  for (const std::string& damaged : found.damaged) {
    *environment.err << "sluice: skipped: " << damaged << "\n";
  }

  std::optional<OptimizerFile> optimizer;
  if (!flags.optimizer.empty()) {
    ASSIGN_OR_RETURN(optimizer, OptimizerFileOf(found), PrintError(environment, _));
  }

  if (!flags.output.empty()) {
    const int code = ExportModel(environment, flags, script, std::move(found));
    if (code != kExitOk) return code;
  }
  return optimizer.has_value() ? ExportOptimizer(environment, flags, *optimizer) : +kExitOk;
}

}  // namespace

void AddCheckpointCommands(CLI::App* app, const Environment& environment, Action* action) {
  auto flags = std::make_shared<CheckpointFlags>();
  CLI::App* inspect = app->add_subcommand(
      "inspect",
      "Show the contents of a checkpoint or of a safetensors file, or the parameters of a running "
      "job and the shards that own them\n\n"
      "  sluice inspect fashion-mnist --stats\n"
      "  sluice inspect fashion-mnist --tensor fc1.weight --watch\n"
      "  sluice inspect fashion-mnist --cluster --stats\n"
      "  sluice inspect .sluice/fashion-mnist/checkpoints/attempt-0001-step-000000000500\n"
      "  sluice inspect model.safetensors\n");

  inspect
      ->add_option("TARGET", flags->target,
                   "a checkpoint's directory, a job's name, or a .safetensors file")
      ->required();

  inspect->add_option("--tensor", flags->tensor, "one tensor only, with its first values");
  inspect->add_flag("--stats", flags->stats, "minimum, maximum, mean, deviation of each tensor");

  inspect
      ->add_option_function<std::string>(
          "--watch",
          [flags](const std::string& seconds) {
            flags->watch_seconds = kWatchSeconds;
            if (seconds.empty()) return;
            if (!absl::SimpleAtod(seconds, &flags->watch_seconds) || !(flags->watch_seconds > 0)) {
              throw CLI::ValidationError("--watch", seconds + " is not a number of seconds");
            }
          },
          "for a running job: print a line for each new version (with --stats: the table), "
          "checking "
          "at this interval (default: 1)")
      ->expected(0, 1)
      ->type_name("SECONDS");

  AddStateDirectory(inspect, &flags->state_directory);
  AddClusterFlags(inspect, &flags->cluster);
  inspect->callback(
      [=, &environment] { *action = [=, &environment] { return Inspect(environment, *flags); }; });

  CLI::App* exporter = app->add_subcommand(
      "export",
      "Write a checkpoint's model for PyTorch, and print how to load it\n\n"
      "  sluice export fashion-mnist -o model.safetensors\n"
      "  sluice export fashion-mnist -o model.safetensors --optimizer optimizer.safetensors\n"
      "  sluice export fashion-mnist --cluster -o model.safetensors\n"
      "  sluice export my-net -o trained.pt\n\n"
      "On a cluster it writes the parameters of a running job, each tied tensor\n"
      "under its first name.\n");
  exporter->add_option("SOURCE", flags->target, "a checkpoint's directory, or a job's name")
      ->required();

  exporter->add_option("-o,--output", flags->output, "the file to write");
  exporter->add_option("--optimizer", flags->optimizer,
                       "a safetensors file for the state of the optimizer, which "
                       "sluice.load_optimizer reads");

  exporter
      ->add_option(
          "--format", flags->format,
          "safetensors, or torchscript (default: by the file's name, .safetensors, .pt or .pth)")
      ->check(CLI::IsMember({"safetensors", "torchscript"}));

  exporter->add_option("--model", flags->model,
                       "the TorchScript file whose parameters are replaced (default: the job's)");
  exporter->add_option("--bin-dir", flags->program_directory,
                       "directory of sluice-worker, for TorchScript (default: beside sluice; "
                       "SLUICE_BIN_DIR)");

  AddStateDirectory(exporter, &flags->state_directory);
  AddClusterFlags(exporter, &flags->cluster);
  exporter->callback(
      [=, &environment] { *action = [=, &environment] { return Export(environment, *flags); }; });
}

}  // namespace sluice::cli
