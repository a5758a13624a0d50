#include "services/worker/export.h"

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "services/checkpoint/safetensors.h"
#include "services/common/exit_code.h"
#include "services/common/io/file_util.h"
#include "services/common/process/program.h"
#include "services/common/status_macros.h"
#include "services/worker/compute/torch_engine.h"

namespace sluice::worker {
namespace {

constexpr size_t kMaxTensorBytes = size_t{1} << 40;

absl::Status Export(const std::string& model, const std::string& tensors_file,
                    const std::string& output) {
  const std::unique_ptr<FileSystem> files = MakeRealFileSystem();
  ASSIGN_OR_RETURN(std::string content, files->Read(tensors_file, kMaxTensorBytes));
  ASSIGN_OR_RETURN(const std::vector<SafetensorsArray> arrays,
                   ReadSafetensors(absl::Cord(std::move(content))),
                   absl::InvalidArgumentError(absl::StrCat(tensors_file, ": ", _.message())));
  return ExportTorchScript(model, arrays, output);
}

}  // namespace

int ExportMain(int argc, char** argv) {
  std::string model;
  std::string tensors;
  std::string output;
  CLI::App app{"Writes a TorchScript model with other values.", "sluice-worker export-torchscript"};
  app.add_option("--model", model, "the TorchScript file")->required();
  app.add_option("--tensors", tensors, "safetensors file with every tensor of it")->required();
  app.add_option("--output", output, "the file to write")->required();

  // The command's name precedes the flags.
  if (const int code = ParseFlags(&app, argc - 1, argv + 1); code >= 0) return code;

  const absl::Status status = Export(model, tensors, output);
  return status.ok() ? +kExitOk : ExitWith("sluice-worker", status);
}

}  // namespace sluice::worker
