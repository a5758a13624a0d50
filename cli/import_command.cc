// import: writes a PyTorch model, and the state of its optimizer, as a checkpoint.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "cli/command.h"
#include "cli/common/progress_text.h"
#include "cli/common/tensor_text.h"
#include "cli/describe_model.h"
#include "cli/optimizer_file.h"
#include "services/checkpoint/local_storage.h"
#include "services/checkpoint/optimizer_state.h"
#include "services/checkpoint/safetensors.h"
#include "services/common/exit_code.h"
#include "services/common/io/file_util.h"
#include "services/common/status_macros.h"
#include "services/common/text/json_text.h"
#include "services/common/time/clock.h"
#include "services/common/version.h"
#include "services/manifest/manifest.h"
#include "services/protocol/arithmetic.h"
#include "services/protocol/layout.h"
#include "services/protocol/stages.h"

namespace sluice::cli {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxFileBytes = size_t{1} << 40;
constexpr size_t kMaxKindsDepth = 8;
constexpr char kModelFormat[] = "sluice-model-1";  // of sluice.save_checkpoint
constexpr uint64_t kAttempt = 1;
constexpr uint64_t kMaxPosition = uint64_t{1} << 62;  // a checkpoint with more counts as damaged

struct ImportFlags {
  std::string manifest;
  std::string model;
  std::string optimizer;
  std::string output;
  std::string program_directory;
  std::optional<uint64_t> step;
};

struct TensorFile {
  std::vector<SafetensorsArray> arrays;
  std::map<std::string, std::string> metadata;
};

absl::StatusOr<TensorFile> ReadTensorFile(const Environment& environment, const std::string& path) {
  for (const char* extension : {".pt", ".pth", ".bin", ".ckpt"}) {
    if (!absl::EndsWith(path, extension)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        path,
        ": a file of torch.save can only be read by PyTorch: load it there, and write the "
        "checkpoint with sluice.save_checkpoint (docs/checkpoints.md, \"There and back\")"));
  }

  ASSIGN_OR_RETURN(std::string content, environment.files->Read(path, kMaxFileBytes));
  TensorFile file;
  ASSIGN_OR_RETURN(
      file.arrays, ReadSafetensors(absl::Cord(std::move(content)), &file.metadata),
      absl::InvalidArgumentError(absl::StrCat(path, " is not a safetensors file: ", _.message())));
  return file;
}

// The tensors that sluice.save_checkpoint lists: names and kinds, in the state_dict's order.
absl::StatusOr<v1::TensorTable> ListedTable(const TensorFile& file) {
  const auto listed = file.metadata.find("tensors");
  const absl::Status wrong = absl::InvalidArgumentError(
      "its metadata 'tensors' is not a list of the names and kinds of its tensors");
  if (listed == file.metadata.end()) return wrong;

  RETURN_IF_ERROR(CheckJsonText(listed->second, kMaxKindsDepth));
  const Json json = Json::parse(listed->second, nullptr, /*allow_exceptions=*/false);
  if (!json.is_array()) return wrong;

  std::map<std::string, const SafetensorsArray*> arrays;
  for (const SafetensorsArray& array : file.arrays) arrays[array.name] = &array;

  v1::TensorTable table;
  for (const Json& entry : json) {
    v1::TensorKind kind;
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_string() ||
        !v1::TensorKind_Parse(entry[1].get<std::string>(), &kind)) {
      return wrong;
    }

    const auto array = arrays.find(entry[0].get<std::string>());
    if (array == arrays.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the tensor '", entry[0].get<std::string>(), "' is missing"));
    }

    v1::TensorSpec& tensor = *table.add_tensors();
    tensor.set_name(array->second->name);
    tensor.set_dtype(array->second->dtype);
    tensor.set_kind(kind);
    for (const int64_t extent : array->second->shape) tensor.add_shape(extent);
  }
  return table;
}

// Sets `table` to that of the job's model. Returns an exit code, as DescribeModel does.
int TableOf(const Environment& environment, const ImportFlags& flags, const v1::JobSpec& job,
            const TensorFile& file, v1::TensorTable* table) {
  const auto format = file.metadata.find("format");
  if (format != file.metadata.end() && format->second == kModelFormat) {
    ASSIGN_OR_RETURN(*table, ListedTable(file),
                     PrintError(environment, absl::InvalidArgumentError(
                                                 absl::StrCat(flags.model, ": ", _.message()))));
    return kExitOk;
  }

  if (job.model().type() == v1::ModelSpec::CUSTOM) {
    return PrintError(
        environment,
        absl::InvalidArgumentError(absl::StrCat(
            flags.model,
            " does not say which of its tensors are trained, and only the job's own program knows "
            "that: load the file into the module there, and write the checkpoint with "
            "sluice.save_checkpoint (docs/checkpoints.md, \"There and back\")")));
  }

  v1::Description description;
  const int code = DescribeModel(environment, flags.program_directory, job, &description);
  if (code == kExitOk) *table = description.ready().table();
  return code;
}

std::string FirstOf(std::vector<std::string> names) {
  constexpr size_t kShown = 5;
  const size_t more = names.size() > kShown ? names.size() - kShown : 0;
  names.resize(names.size() - more);
  return absl::StrCat(absl::StrJoin(names, ", "),
                      more > 0 ? absl::StrCat(" and ", more, " more") : "");
}

absl::Status CheckTensor(const v1::TensorSpec& spec, const SafetensorsArray& array) {
  const std::vector<int64_t> shape(spec.shape().begin(), spec.shape().end());
  if (array.shape != shape || array.dtype != spec.dtype()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", array.name, "' is ",
        array.other_type.empty() ? TypeText(array.dtype) : array.other_type, ShapeText(array.shape),
        ", and in the job's model ", TypeText(spec.dtype()), ShapeText(shape)));
  }

  const std::vector<double> values = ElementsOf(array);
  const auto bad = std::find_if(values.begin(), values.end(),
                                [](double value) { return !std::isfinite(value); });
  if (bad == values.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("element ", bad - values.begin(), " of '",
                                                 array.name, "' is ", *bad,
                                                 ": a model must have finite numbers"));
}

// The tensors in the table's order. Errors name what is missing, unexpected or different.
absl::StatusOr<std::vector<SafetensorsArray>> TensorsOf(const v1::TensorTable& table,
                                                        const TensorFile& file) {
  std::map<std::string, const SafetensorsArray*> unused;
  for (const SafetensorsArray& array : file.arrays) unused[array.name] = &array;

  std::vector<SafetensorsArray> tensors;
  std::vector<std::string> missing;
  for (const v1::TensorSpec& spec : table.tensors()) {
    const auto found = unused.find(spec.name());
    if (found == unused.end()) {
      missing.push_back(spec.name());
      continue;
    }
    RETURN_IF_ERROR(CheckTensor(spec, *found->second));
    tensors.push_back(*found->second);
    unused.erase(found);
  }

  std::vector<std::string> unexpected;
  for (const auto& [name, array] : unused) unexpected.push_back(name);
  if (missing.empty() && unexpected.empty()) return tensors;

  std::string text;
  if (!missing.empty()) absl::StrAppend(&text, "missing: ", FirstOf(std::move(missing)));
  if (!unexpected.empty()) {
    absl::StrAppend(&text, text.empty() ? "" : "; ",
                    "not in the job's model: ", FirstOf(std::move(unexpected)));
  }
  return absl::InvalidArgumentError(text);
}

absl::StatusOr<v1::Layout> LayoutOf(const v1::JobSpec& job, const v1::TensorTable& table) {
  const uint32_t wanted = job.parameter_server().partitions();
  const uint32_t partitions = wanted != 0 ? wanted : kDefaultPartitions;
  if (job.training().execution() == v1::TrainingSpec::SERVER) {
    return MakeStagedLayout(table, job.model(), partitions);
  }
  return MakeLayout(table, partitions);
}

// A checkpoint of attempt 1 in a storage of its own, with the attempt's claim.
absl::StatusOr<std::string> WriteStorage(const Environment& environment, const ImportFlags& flags,
                                         const v1::JobSpec& job, v1::CheckpointIndex index,
                                         const std::vector<SafetensorsArray>& tensors,
                                         const std::vector<TensorState>& states) {
  const auto storage =
      MakeLocalStorage(environment.files, flags.output, absl::StrCat("import-", getpid()));
  ASSIGN_OR_RETURN(const std::vector<v1::Claim> claims, storage->ReadClaims());
  ASSIGN_OR_RETURN(const std::vector<v1::CheckpointRef> checkpoints, storage->ListCheckpoints());
  if (!claims.empty() || !checkpoints.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        flags.output, " has checkpoints already: name a directory that does not exist"));
  }

  RETURN_IF_ERROR(storage->Probe());

  index.set_job(absl::StrCat(job.namespace_(), "/", job.name(), "/imported"));
  index.set_seed(job.training().seed());
  index.set_optimizer(v1::OptimizerSpec::Name_Name(job.optimizer().name()));
  index.set_time(
      absl::FormatTime(absl::RFC3339_full, environment.clock->Now(), absl::UTCTimeZone()));
  index.set_build(std::string(Version()));
  index.set_isa(JobArithmetic(ThisMachine(), job.training()));
  index.set_mode(v1::SYNCHRONOUS);
  index.set_samples(index.checkpoint().step() * job.training().global_batch_size());
  RETURN_IF_ERROR(WriteCheckpoint(*storage, &index, tensors, states));

  v1::Claim claim;
  claim.set_attempt(kAttempt);
  claim.mutable_term()->set_counter(1);
  claim.set_job(index.job());
  claim.set_time(index.time());
  RETURN_IF_ERROR(storage->CreateClaim(claim));
  return JoinPath(flags.output, CheckpointDirectory(index.checkpoint()));
}

// Without a state, each tensor is as before its first update.
std::vector<TensorState> InitialStates(const v1::TensorTable& table) {
  return std::vector<TensorState>(static_cast<size_t>(table.tensors_size()));
}

absl::StatusOr<ImportedState> StateOf(const Environment& environment, const ImportFlags& flags,
                                      const v1::JobSpec& job, const v1::TensorTable& table) {
  ImportedState state;
  if (flags.optimizer.empty()) {
    state.states = InitialStates(table);
    state.notes = {"the state of the optimizer starts afresh (--optimizer takes a file with it)"};
  } else {
    ASSIGN_OR_RETURN(const TensorFile file, ReadTensorFile(environment, flags.optimizer));
    ASSIGN_OR_RETURN(state, ReadOptimizerFile(flags.optimizer, job.optimizer(), table, file.arrays,
                                              file.metadata));
  }

  if (flags.step.has_value()) state.step = *flags.step;
  for (int i = 0; i < table.tensors_size(); ++i) {
    TensorState& tensor = state.states[static_cast<size_t>(i)];
    if (table.tensors(i).kind() != v1::PARAMETER) tensor.updates = tensor.fewest = state.step;
  }
  return state;
}

int Import(const Environment& environment, const ImportFlags& flags) {
  absl::StatusOr<api::TrainingJob> job = api::ReadManifest(flags.manifest);
  if (!job.ok()) {
    *environment.err << job.status().message() << "\n";
    return kExitUsage;
  }

  ASSIGN_OR_RETURN(const TensorFile file, ReadTensorFile(environment, flags.model),
                   PrintError(environment, _));

  v1::CheckpointIndex index;
  v1::TensorTable* const table = index.mutable_table();
  const int code = TableOf(environment, flags, job->spec, file, table);
  if (code != kExitOk) return code;

  ASSIGN_OR_RETURN(const std::vector<SafetensorsArray> tensors, TensorsOf(*table, file),
                   PrintError(environment, absl::InvalidArgumentError(
                                               absl::StrCat(flags.model, ": ", _.message()))));
  ASSIGN_OR_RETURN(*index.mutable_layout(), LayoutOf(job->spec, *table),
                   PrintError(environment, _));

  ASSIGN_OR_RETURN(const ImportedState state, StateOf(environment, flags, job->spec, *table),
                   PrintError(environment, _));
  if (const uint64_t batch = job->spec.training().global_batch_size();
      state.step > kMaxPosition / std::max<uint64_t>(batch, 1)) {
    return PrintError(environment, absl::InvalidArgumentError(absl::StrCat(
                                       "step ", state.step, " is more than a job can have with ",
                                       batch, " samples a step")));
  }

  index.mutable_checkpoint()->set_attempt(kAttempt);
  index.mutable_checkpoint()->set_step(state.step);
  ASSIGN_OR_RETURN(
      const std::string written,
      WriteStorage(environment, flags, job->spec, std::move(index), tensors, state.states),
      PrintError(environment, _));

  std::ostream& out = *environment.out;
  for (const std::string& note : state.notes) out << "Note: " << note << "\n";
  out << "Wrote " << written << ": " << tensors.size() << " tensors. The job continues at step "
      << CountText(state.step) << " with\n\n  checkpoint: {restoreFrom: "
      << std::filesystem::absolute(flags.output).lexically_normal().string() << "}\n";
  return kExitOk;
}

}  // namespace

void AddImportCommand(CLI::App* app, const Environment& environment, Action* action) {
  auto flags = std::make_shared<ImportFlags>();
  CLI::App* command = app->add_subcommand(
      "import",
      "Write a PyTorch model as a checkpoint that a job can begin with\n\n"
      "  sluice import job.yaml --model model.safetensors -o restored\n"
      "  sluice import job.yaml --model model.safetensors --optimizer optimizer.safetensors -o "
      "restored\n\n"
      "The job begins with it where its manifest says checkpoint.restoreFrom. Options of the\n"
      "optimizer are the manifest's; those that differ are printed. In Python,\n"
      "sluice.save_checkpoint writes the files and calls this command.\n");

  command->add_option("FILE", flags->manifest, "the manifest of the job")->required();
  command->add_option("--model", flags->model, "a safetensors file with the model's state_dict")
      ->required();

  command->add_option("--optimizer", flags->optimizer,
                      "the state of the optimizer, as sluice export --optimizer and "
                      "sluice.save_checkpoint write it (default: it starts afresh)");
  command
      ->add_option("--step", flags->step,
                   "the step at which the job continues (default: that of the state, or 0)")
      ->type_name("NUMBER");

  command->add_option("-o,--output", flags->output, "the directory to write")->required();
  command->add_option("--bin-dir", flags->program_directory,
                      "directory of sluice-worker (default: beside sluice; SLUICE_BIN_DIR)");

  command->callback(
      [=, &environment] { *action = [=, &environment] { return Import(environment, *flags); }; });
}

}  // namespace sluice::cli
