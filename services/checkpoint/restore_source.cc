#include "services/checkpoint/restore_source.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "services/checkpoint/local_storage.h"
#include "services/common/status_macros.h"

namespace sluice {

std::string NotACheckpoint(absl::string_view path) {
  return absl::StrCat(
      path,
      " is a file: `sluice import MANIFEST --model FILE.safetensors -o DIRECTORY` "
      "or, in Python, sluice.save_checkpoint makes a checkpoint of a PyTorch model; "
      "name its directory");
}

absl::StatusOr<RestoreSource> FindRestoreSource(FileSystem* files, const std::string& path) {
  absl::string_view trimmed = path;
  while (trimmed.size() > 1 && absl::ConsumeSuffix(&trimmed, "/")) {
  }
  const std::string directory(trimmed);
  if (files->Size(directory).ok()) {
    return absl::InvalidArgumentError(NotACheckpoint(directory));
  }

  RestoreSource source;
  if (absl::StatusOr<v1::CheckpointRef> ref = ParseCheckpointDirectory(FileNameOf(directory));
      ref.ok()) {
    const auto storage = MakeLocalStorage(files, DirectoryOf(directory), "restore");
    ASSIGN_OR_RETURN(v1::CheckpointIndex checkpoint_index, ReadWholeCheckpoint(*storage, *ref));
    source.directory = directory;
    source.checkpoint_index = std::move(checkpoint_index);
    return source;
  }

  const auto storage = MakeLocalStorage(files, directory, "restore");
  ASSIGN_OR_RETURN(RestorePoint point, FindRestorePoint(*storage));
  if (!point.found) {
    return absl::NotFoundError(absl::StrCat(
        directory,
        " holds no whole checkpoint; give a job's checkpoint directory or one checkpoint in it",
        point.damaged.empty() ? "" : ": ", absl::StrJoin(point.damaged, "; ")));
  }

  source.directory = JoinPath(directory, CheckpointDirectory(point.checkpoint_index.checkpoint()));
  source.checkpoint_index = std::move(point.checkpoint_index);
  source.damaged = std::move(point.damaged);
  return source;
}

}  // namespace sluice
