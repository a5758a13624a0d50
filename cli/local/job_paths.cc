#include "cli/local/job_paths.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "services/checkpoint/local_storage.h"
#include "services/checkpoint/restore_source.h"
#include "services/checkpoint/storage.h"
#include "services/common/status_macros.h"
#include "services/common/text/web_address.h"
#include "services/download/job_data.h"

namespace sluice::cli {
namespace {

namespace fs = std::filesystem;

// The data's paths only; none for Custom data.
std::vector<DataPath> DataPaths(v1::DataSpec* data) {
  return data->format() == v1::DataSpec::CUSTOM ? std::vector<DataPath>() : PathsOf(data);
}

// A path that cannot be checked counts as existing: opening it gives a better error.
bool Exists(FileSystem* files, const std::string& path) {
  const absl::StatusOr<bool> exists = files->Exists(path);
  return !exists.ok() || *exists;
}

// The directory shared/data beside the nearest repository; empty: there is none.
std::string SharedDataBeside(fs::path directory, FileSystem* files) {
  for (; !directory.empty(); directory = directory.parent_path()) {
    if (Exists(files, (directory / ".git").string())) {
      return (directory.parent_path() / "shared" / "data").string();
    }
    if (directory == directory.parent_path()) break;
  }
  return "";
}

struct Place {
  std::string directory;  // empty: there is none
  const char* name;
};

// The path of `relative` in the first place that has it, and the place's name.
std::optional<std::pair<std::string, const char*>> FindIn(absl::Span<const Place> places,
                                                          absl::string_view relative,
                                                          FileSystem* files) {
  for (const Place& place : places) {
    if (place.directory.empty()) continue;
    for (absl::string_view path : {relative, absl::StripPrefix(relative, "data/")}) {
      std::error_code error;
      const std::string candidate = fs::absolute(JoinPath(place.directory, path), error).string();
      if (!error && Exists(files, candidate)) return std::make_pair(candidate, place.name);
    }
  }
  return std::nullopt;
}

}  // namespace

std::vector<std::string> FindData(const std::string& manifest, const std::string& data_directory,
                                  FileSystem* files, v1::JobSpec* job) {
  std::vector<std::string> taken;
  std::error_code error;
  const fs::path base = fs::absolute(manifest, error).lexically_normal().parent_path();
  if (error) return taken;

  const Place places[] = {{data_directory, "SLUICE_DATA"},
                          {SharedDataBeside(base, files), "beside the repository"}};

  for (const DataPath& named : DataPaths(job->mutable_data())) {
    // The path was joined to the manifest's directory when it was read.
    const std::string relative = fs::path(*named.path).lexically_relative(base).string();
    if (named.path->empty() || IsWebAddress(*named.path) || relative.empty() ||
        absl::StartsWith(relative, "..") || Exists(files, *named.path)) {
      continue;
    }

    const auto found = FindIn(places, relative, files);
    if (!found.has_value()) continue;

    taken.push_back(absl::StrCat(named.field, ": ", *named.path, " does not exist; using ",
                                 found->first, " (", found->second, ")"));
    *named.path = found->first;
  }
  return taken;
}

absl::Status CheckPathsExist(const v1::JobSpec& job, FileSystem* files) {
  v1::JobSpec copy = job;
  std::vector<DataPath> paths = DataPaths(copy.mutable_data());

  if (job.model().type() == v1::ModelSpec::TORCH_SCRIPT) {
    paths.push_back({"spec.model.path", copy.mutable_model()->mutable_path()});
  }
  if (!NamesBestCheckpoint(files, job.checkpoint().restore_from())) {
    paths.push_back(
        {"spec.checkpoint.restoreFrom", copy.mutable_checkpoint()->mutable_restore_from()});
  }

  for (const DataPath& named : paths) {
    if (named.path->empty() || IsWebAddress(*named.path) || Exists(files, *named.path)) continue;
    return absl::NotFoundError(
        absl::StrCat(named.field, ": ", *named.path, ": no such file or directory"));
  }

  const std::string& source = job.checkpoint().restore_from();
  if (!source.empty() && files->Size(source).ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("spec.checkpoint.restoreFrom: ", NotACheckpoint(source)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> NewestCheckpoint(const std::string& directory, FileSystem* files) {
  const std::unique_ptr<CheckpointStorage> storage =
      MakeLocalStorage(files, directory, absl::StrCat("cli-", getpid()));
  ASSIGN_OR_RETURN(const std::vector<v1::CheckpointRef> checkpoints, storage->ListCheckpoints());
  if (checkpoints.empty()) return std::string();
  const auto older = [](const v1::CheckpointRef& a, const v1::CheckpointRef& b) {
    return std::make_pair(a.attempt(), a.step()) < std::make_pair(b.attempt(), b.step());
  };
  return JoinPath(directory, CheckpointDirectory(
                                 *std::max_element(checkpoints.begin(), checkpoints.end(), older)));
}

absl::StatusOr<bool> HoldsCheckpoint(const std::string& directory, FileSystem* files) {
  ASSIGN_OR_RETURN(const std::string newest, NewestCheckpoint(directory, files));
  return !newest.empty();
}

}  // namespace sluice::cli
