// init, validate, render, explain.
#include <unistd.h>

#include <memory>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "operator/api/manifest.h"
#include "operator/api/print/print.h"
#include "services/cli/command.h"
#include "services/cli/job_json.h"
#include "services/common/exit_code.h"
#include "services/common/web_address.h"

namespace sluice::cli {
namespace {

struct InitFlags {
  api::TemplateOptions content;
  std::string output;
};

// The data that was named, unless the manifest will find it; relative paths are taken from its
// folder. Empty: it is there, or it is none.
std::string MissingData(const Environment& environment, const InitFlags& flags) {
  const std::string& data = flags.content.data;
  if (data.empty() || data == "synthetic" || IsWebAddress(data)) return "";
  const bool file = !flags.output.empty() && flags.output != "-";
  const std::string path =
      data[0] == '/' || !file ? data : JoinPath(DirectoryOf(flags.output), data);
  const absl::StatusOr<bool> exists = environment.files->Exists(path);
  return exists.ok() && !*exists ? path : "";
}

int Init(const Environment& environment, const InitFlags& flags) {
  const absl::StatusOr<std::string> text = api::ManifestTemplate(flags.content);
  if (!text.ok()) return Complain(environment, text.status());
  if (const std::string missing = MissingData(environment, flags); !missing.empty()) {
    *environment.err << "Note: " << missing << " is not there (yet)\n";
  }
  if (flags.output.empty() || flags.output == "-") {
    *environment.out << *text;
    return kExitOk;
  }
  const absl::Status status = ExclusiveCreateFile(environment.files, flags.output,
                                                  absl::Cord(*text), absl::StrCat(getpid()));
  if (absl::IsAlreadyExists(status)) {
    return Complain(environment, absl::AlreadyExistsError(absl::StrCat(
                                     flags.output, " exists already; it is left as it is")));
  }
  if (!status.ok()) return Complain(environment, status);
  *environment.err << "Wrote " << flags.output << ". Next: sluice run " << flags.output << "\n";
  return kExitOk;
}

int Validate(const Environment& environment, const std::vector<std::string>& files) {
  int code = kExitOk;
  for (const std::string& file : files) {
    const absl::StatusOr<api::TrainingJob> job = api::ReadManifest(file);
    if (job.ok()) {
      *environment.out << file << ": valid (TrainingJob " << job->spec.name() << ")\n";
    } else {
      *environment.err << job.status().message() << "\n";
      code = kExitUsage;
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
  *environment.out << (yaml ? api::ToManifestYaml(*job) : JobSpecToJson(job->spec));
  return kExitOk;
}

int Explain(const Environment& environment, const std::string& field) {
  const absl::StatusOr<std::string> text = api::ExplainField(field);
  if (!text.ok()) return Complain(environment, text.status());
  *environment.out << *text;
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
                   "the job's name (default: after the data, or the model)");
  init->add_option("--model", init_flags->content.model,
                   "a built-in model, or a TorchScript file (.pt)")
      ->capture_default_str();
  init->add_option("--data", init_flags->content.data,
                   "a folder with IDX files, a .csv or .txt file, or `synthetic` (default: "
                   "/usr/share/datasets/fashion-mnist; for lstm-lm: synthetic)");
  init->add_option("--label-column", init_flags->content.label_column,
                   "of a CSV file: the column to predict");
  init->add_option("-o,--output", init_flags->output, "file to make (default: standard output)");
  init->callback([=, &environment] {
    *action = [=, &environment] { return Init(environment, *init_flags); };
  });

  auto files = std::make_shared<std::vector<std::string>>();
  CLI::App* validate = app->add_subcommand(
      "validate",
      "Check manifests: every problem with its file, line and what would be right\n\n"
      "  sluice validate job.yaml\n");
  validate->add_option("FILE", *files, "manifests")->required();
  validate->callback(
      [=, &environment] { *action = [=, &environment] { return Validate(environment, *files); }; });

  auto render_file = std::make_shared<std::string>();
  auto render_yaml = std::make_shared<bool>(false);
  CLI::App* render = app->add_subcommand(
      "render",
      "Print the job with all defaults, as its processes receive it\n\n"
      "  sluice render job.yaml > job.json && sluice-coordinator --job job.json --storage DIR\n");
  render->add_option("FILE", *render_file, "the manifest")->required();
  render->add_flag("--yaml", *render_yaml, "as a manifest instead of JSON");
  render->callback([=, &environment] {
    *action = [=, &environment] { return Render(environment, *render_file, *render_yaml); };
  });

  auto field = std::make_shared<std::string>();
  CLI::App* explain = app->add_subcommand("explain",
                                          "Explain a field of the manifest\n\n"
                                          "  sluice explain spec.training\n"
                                          "  sluice explain training.mode\n");
  explain->add_option("FIELD", *field, "default: the whole TrainingJob");
  explain->callback(
      [=, &environment] { *action = [=, &environment] { return Explain(environment, *field); }; });
}

}  // namespace sluice::cli
