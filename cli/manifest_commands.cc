// init, validate, render, explain.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/command.h"
#include "cli/local/job_paths.h"
#include "services/common/exit_code.h"
#include "services/common/status_macros.h"
#include "services/common/text/web_address.h"
#include "services/manifest/job_file.h"
#include "services/manifest/manifest.h"
#include "services/manifest/print/print.h"
#include "services/manifest/suggest.h"
#include "services/worker/data/csv_reader.h"
#include "services/worker/data/file.h"

namespace sluice::cli {
namespace {

struct InitFlags {
  api::TemplateOptions content;
  std::string output;
};

// The path at which the manifest will look for the given data: relative to its own directory.
std::string DataPath(const InitFlags& flags) {
  const std::string& data = flags.content.data;
  const bool file = !flags.output.empty() && flags.output != "-";
  return data[0] == '/' || !file ? data : JoinPath(DirectoryOf(flags.output), data);
}

// The given data's path if it does not exist; empty if it does, or if there is no data.
std::string MissingData(const Environment& environment, const InitFlags& flags) {
  const std::string& data = flags.content.data;
  if (data.empty() || data == "synthetic" || IsWebAddress(data)) return "";
  const std::string path = DataPath(flags);
  const absl::StatusOr<bool> exists = environment.files->Exists(path);
  return exists.ok() && !*exists ? path : "";
}

// The columns of a CSV file, from its first lines.
constexpr size_t kHeadBytes = size_t{1} << 20;
constexpr int kHeadRecords = 1000;

// The first lines of a CSV file.
absl::StatusOr<std::string> HeadOf(const std::string& path) {
  if (absl::EndsWith(path, ".gz")) return ReadFile(path);
  std::ifstream file(path, std::ios::binary);
  std::string text(kHeadBytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  // The last line may be incomplete.
  if (text.size() == kHeadBytes) text.resize(text.rfind('\n') + 1);
  return text;
}

// Reads the file's columns (numbers, or names) from its header and first lines. Does nothing if the
// file does not exist or is empty.
absl::Status FindColumns(const std::string& path, api::TemplateOptions* options) {
  const absl::StatusOr<std::string> text = HeadOf(path);
  if (!text.ok() || text->empty()) return absl::OkStatus();

  CsvReader reader(path, *text, ',');
  std::vector<std::string> header;
  RETURN_IF_ERROR(reader.Next(header).status());

  if (std::find(header.begin(), header.end(), options->label_column) == header.end()) {
    const int closest = api::ClosestName(options->label_column, header);
    return absl::InvalidArgumentError(absl::StrCat(
        path, " has no column ", options->label_column,
        closest < 0 ? ""
                    : absl::StrCat("; did you mean ", header[static_cast<size_t>(closest)], "?"),
        " It has: ", absl::StrJoin(header, ", ")));
  }

  std::vector<bool> names(header.size());
  std::vector<std::string> record;
  for (int i = 0; i < kHeadRecords; ++i) {
    ASSIGN_OR_RETURN(const bool more, reader.Next(record));
    if (!more) break;
    for (size_t column = 0; column < std::min(record.size(), header.size()); ++column) {
      double number = 0;
      if (!absl::SimpleAtod(record[column], &number)) names[column] = true;
    }
  }

  for (size_t column = 0; column < header.size(); ++column) {
    if (header[column] == options->label_column) continue;
    (names[column] ? options->categorical_columns : options->numeric_columns)
        .push_back(header[column]);
  }
  return absl::OkStatus();
}

int Init(const Environment& environment, InitFlags flags) {
  const std::string& data = flags.content.data;
  if (absl::StrContains(data, ".csv") && !flags.content.label_column.empty() &&
      !IsWebAddress(data)) {
    RETURN_IF_ERROR(FindColumns(DataPath(flags), &flags.content), PrintError(environment, _));
  }

  ASSIGN_OR_RETURN(const std::string text, api::ManifestTemplate(flags.content),
                   PrintError(environment, _));

  if (const std::string missing = MissingData(environment, flags); !missing.empty()) {
    *environment.err << "Note: " << missing << " does not exist (yet)\n";
  }

  if (flags.output.empty() || flags.output == "-") {
    *environment.out << text;
    return kExitOk;
  }

  const absl::Status status = ExclusiveCreateFile(environment.files, flags.output, absl::Cord(text),
                                                  absl::StrCat(getpid()));
  if (absl::IsAlreadyExists(status)) {
    return PrintError(environment,
                      absl::AlreadyExistsError(absl::StrCat(
                          flags.output, " already exists; choose another file with -o")));
  }

  RETURN_IF_ERROR(status, PrintError(environment, _));
  *environment.err << "Wrote " << flags.output << ". Next: sluice run " << flags.output << "\n";
  return kExitOk;
}

// `-` is standard input; relative paths are then relative to the current directory.
absl::StatusOr<api::TrainingJob> ReadJob(const Environment& environment, const std::string& file) {
  if (file != "-") return api::ReadManifest(file);
  std::string text(api::kMaxManifestBytes + 1, '\0');
  environment.in->read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(environment.in->gcount()));

  std::error_code error;
  api::ParsedManifest parsed =
      api::ParseManifest(text, std::filesystem::current_path(error).string());
  if (parsed.ok()) return std::move(parsed.job);
  return absl::InvalidArgumentError(
      absl::StrJoin(parsed.problems, "\n", [](std::string* out, const api::Problem& problem) {
        out->append(problem.ToString("standard input"));
      }));
}

int Validate(const Environment& environment, const std::vector<std::string>& files) {
  int code = kExitOk;
  for (const std::string& file : files) {
    absl::StatusOr<api::TrainingJob> job = ReadJob(environment, file);
    if (!job.ok()) {
      *environment.err << job.status().message() << "\n";
      code = kExitUsage;
      continue;
    }

    *environment.out << file << ": valid (TrainingJob " << job->spec.name() << ")\n";

    // Only a note: the manifest may be for another machine, or the file may come later.
    FindData(file, environment.data_directory, environment.files, &job->spec);
    if (absl::Status status = CheckPathsExist(job->spec, environment.files); !status.ok()) {
      *environment.err << "Note: " << status.message() << " on this machine\n";
    }
  }
  return code;
}

int Render(const Environment& environment, const std::string& file, bool yaml) {
  const absl::StatusOr<api::TrainingJob> job = api::ReadManifest(file);
  if (!job.ok()) {
    *environment.err << job.status().message() << "\n";
    return kExitUsage;
  }
  *environment.out << (yaml ? api::ToManifestYaml(*job) : api::JobFileText(job->spec) + "\n");
  return kExitOk;
}

int Explain(const Environment& environment, const std::string& field) {
  ASSIGN_OR_RETURN(const std::string text, api::ExplainField(field), PrintError(environment, _));
  *environment.out << text;
  return kExitOk;
}

}  // namespace

void AddManifestCommands(CLI::App* app, const Environment& environment, Action* action) {
  auto init_flags = std::make_shared<InitFlags>();
  CLI::App* init = app->add_subcommand(
      "init",
      "Write a first manifest, with comments\n\n"
      "  sluice init -o job.yaml\n"
      "  sluice init --name clothes --model mnist-net --data /usr/share/datasets/fashion-mnist\n"
      "  sluice init --model net.pt --data table.csv --label-column income -o job.yaml\n");

  init->add_option("--name", init_flags->content.name,
                   "the job's name (default: derived from the data or the model)");
  init->add_option("--model", init_flags->content.model,
                   "a built-in model, or a TorchScript file (.pt)")
      ->capture_default_str();

  init->add_option("--data", init_flags->content.data,
                   "a directory with IDX files, a .csv or .txt file, or `synthetic` (default: "
                   "/usr/share/datasets/fashion-mnist; for lstm-lm: synthetic)");
  init->add_option("--label-column", init_flags->content.label_column,
                   "the column of a CSV file to predict");
  init->add_option("-o,--output", init_flags->output, "file to write (default: standard output)");

  init->callback([=, &environment] {
    *action = [=, &environment] { return Init(environment, *init_flags); };
  });

  auto files = std::make_shared<std::vector<std::string>>();
  CLI::App* validate = app->add_subcommand(
      "validate",
      "Check manifests: print every problem with its file, its line and a correction\n\n"
      "  sluice validate job.yaml\n"
      "  sluice init | sluice validate -\n");
  validate->add_option("FILE", *files, "manifests; -: standard input")->required();
  validate->callback(
      [=, &environment] { *action = [=, &environment] { return Validate(environment, *files); }; });

  auto render_file = std::make_shared<std::string>();
  auto render_yaml = std::make_shared<bool>(false);
  CLI::App* render = app->add_subcommand(
      "render",
      "Print the job with all defaults, as its processes receive it\n\n"
      "  sluice render job.yaml > job.json && sluice-coordinator --job job.json --storage DIR\n");
  render->add_option("FILE", *render_file, "the manifest")->required();
  render->add_flag("--yaml", *render_yaml, "print a manifest instead of JSON");
  render->callback([=, &environment] {
    *action = [=, &environment] { return Render(environment, *render_file, *render_yaml); };
  });

  auto field = std::make_shared<std::string>();
  CLI::App* explain = app->add_subcommand("explain",
                                          "Explain a field of the manifest\n\n"
                                          "  sluice explain spec.training\n"
                                          "  sluice explain training.mode\n");
  explain->add_option("FIELD", *field, "a field's path (default: the whole TrainingJob)");
  explain->callback(
      [=, &environment] { *action = [=, &environment] { return Explain(environment, *field); }; });
}

}  // namespace sluice::cli
