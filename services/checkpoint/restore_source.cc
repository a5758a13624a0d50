#include "services/checkpoint/restore_source.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "services/checkpoint/best_checkpoints.h"
#include "services/checkpoint/local_storage.h"
#include "services/common/status_macros.h"

namespace sluice {
namespace {

constexpr absl::string_view kBest = "best";

std::string WithoutSlashes(absl::string_view path) {
  while (path.size() > 1 && absl::ConsumeSuffix(&path, "/")) {
  }
  return std::string(path);
}

bool Exists(FileSystem* files, const std::string& path) {
  const absl::StatusOr<bool> exists = files->Exists(path);
  return exists.ok() && *exists;
}

// The checkpoints that have a value of the metric by which the newest one of them was compared, the
// best one first.
std::vector<v1::CheckpointRef> ByValue(const std::vector<v1::CheckpointIndex>& newest_first) {
  v1::ComparedMetric compared;
  std::vector<ValuedCheckpoint> valued;

  for (const v1::CheckpointIndex& index : newest_first) {
    if (compared.name().empty()) compared = index.keep_best();
  }

  for (const v1::CheckpointIndex& index : newest_first) {
    for (const v1::Metric& metric : index.metrics()) {
      if (metric.name() == compared.name()) {
        valued.emplace_back(index.checkpoint(), metric.value());
      }
    }
  }

  const size_t count = valued.size();
  return BestCheckpoints(std::move(valued), compared.maximize(), count);
}

absl::StatusOr<RestoreSource> FindBest(FileSystem* files, const std::string& directory,
                                       FileCheck check) {
  const auto storage = MakeLocalStorage(files, directory, "restore");
  ASSIGN_OR_RETURN(const std::vector<v1::Claim> claims, storage->ReadClaims());
  ASSIGN_OR_RETURN(const std::vector<v1::CheckpointRef> all, storage->ListCheckpoints());
  RestoreSource source;

  const auto skip = [&](const v1::CheckpointRef& ref, const absl::Status& status) {
    source.damaged.push_back(
        absl::StrCat("checkpoint ", CheckpointDirectory(ref), " is damaged: ", status.message()));
  };

  std::vector<v1::CheckpointIndex> indexes;
  for (const v1::CheckpointRef& ref : RestoreCandidates(claims, all)) {
    absl::StatusOr<v1::CheckpointIndex> index = storage->ReadCheckpointIndex(ref);
    index.ok() ? indexes.push_back(*std::move(index)) : skip(ref, index.status());
  }

  for (const v1::CheckpointRef& ref : ByValue(indexes)) {
    absl::StatusOr<v1::CheckpointIndex> index = ReadWholeCheckpoint(*storage, ref, check);
    if (index.ok()) {
      source.directory = JoinPath(directory, CheckpointDirectory(ref));
      source.checkpoint_index = *std::move(index);
      return source;
    }
    skip(ref, index.status());
  }

  return absl::NotFoundError(absl::StrCat(
      directory,
      " has no whole checkpoint with an evaluation to compare: a job whose manifest has ",
      "checkpoint.keepBest makes them; ", directory, " names the newest checkpoint",
      source.damaged.empty() ? "" : ": ", absl::StrJoin(source.damaged, "; ")));
}

}  // namespace

bool NamesBestCheckpoint(FileSystem* files, const std::string& path) {
  const std::string directory = WithoutSlashes(path);
  return FileNameOf(directory) == kBest && !Exists(files, directory) &&
         Exists(files, DirectoryOf(directory));
}

std::string NotACheckpoint(absl::string_view path) {
  return absl::StrCat(
      path,
      " is a file: `sluice import MANIFEST --model FILE.safetensors -o DIRECTORY` "
      "or, in Python, sluice.save_checkpoint makes a checkpoint of a PyTorch model; "
      "name its directory");
}

absl::StatusOr<RestoreSource> FindRestoreSource(FileSystem* files, const std::string& path,
                                                FileCheck check) {
  const std::string directory = WithoutSlashes(path);
  if (files->Size(directory).ok()) {
    return absl::InvalidArgumentError(NotACheckpoint(directory));
  }
  if (NamesBestCheckpoint(files, directory)) return FindBest(files, DirectoryOf(directory), check);

  RestoreSource source;
  if (absl::StatusOr<v1::CheckpointRef> ref = ParseCheckpointDirectory(FileNameOf(directory));
      ref.ok()) {
    const auto storage = MakeLocalStorage(files, DirectoryOf(directory), "restore");
    ASSIGN_OR_RETURN(v1::CheckpointIndex checkpoint_index,
                     ReadWholeCheckpoint(*storage, *ref, check));
    source.directory = directory;
    source.checkpoint_index = std::move(checkpoint_index);
    return source;
  }

  const auto storage = MakeLocalStorage(files, directory, "restore");
  ASSIGN_OR_RETURN(RestorePoint point, FindRestorePoint(*storage, check));
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
