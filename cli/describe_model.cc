#include "cli/describe_model.h"

#include <memory>

#include "absl/strings/cord.h"
#include "cli/common/exit_codes.h"
#include "cli/run/preparation.h"
#include "cli/run_program.h"
#include "services/common/exit_code.h"
#include "services/common/io/file_util.h"
#include "services/common/io/temporary_directory.h"
#include "services/common/status_macros.h"
#include "services/manifest/job_file.h"

namespace sluice::cli {
namespace {

constexpr size_t kMaxDescriptionBytes = size_t{64} << 20;

}  // namespace

int DescribeModel(const Environment& environment, const std::string& program_directory,
                  const v1::JobSpec& job, v1::Description* description) {
  ASSIGN_OR_RETURN(const auto programs, FindPrograms(environment, program_directory, {v1::WORKER}),
                   PrintError(environment, _));

  ASSIGN_OR_RETURN(const auto directory, TemporaryDirectory::Make("sluice-describe"),
                   PrintError(environment, _));

  const std::string job_file = JoinPath(directory->path(), "job.json");
  const std::string described_file = JoinPath(directory->path(), "described");

  RETURN_IF_ERROR(
      AtomicWriteFile(environment.files, job_file, absl::Cord(api::JobFileText(job)), "describe"),
      PrintError(environment, _));

  environment.out->flush();
  const int code =
      RunProgram({programs.worker, "describe", "--job", job_file, "--output", described_file});
  if (code != kExitOk) return code;

  ASSIGN_OR_RETURN(const std::string bytes,
                   environment.files->Read(described_file, kMaxDescriptionBytes),
                   PrintError(environment, _));
  if (!description->ParseFromString(bytes)) {
    return PrintError(environment,
                      absl::InternalError("sluice-worker describes the model incorrectly"));
  }
  return kExitOk;
}

}  // namespace sluice::cli
