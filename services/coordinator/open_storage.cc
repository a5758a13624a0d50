#include "services/coordinator/open_storage.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/checkpoint/existing_job.h"
#include "services/common/status_macros.h"

namespace sluice::coordinator {
namespace {

// Everything that the core must know of a storage before an attempt.
absl::StatusOr<StorageContents> ReadContents(CheckpointStorage& storage, const v1::JobSpec& job,
                                             const FindSource& find_source, FileCheck check) {
  StorageContents contents;
  ASSIGN_OR_RETURN(contents.checkpoints, storage.ListCheckpoints());

  ASSIGN_OR_RETURN(OpenedStorage opened, ReadForJob(storage, job, check));
  contents.claims = std::move(opened.claims);
  contents.existing = std::move(opened.existing);

  RestorePoint& point = opened.point;
  contents.has_newest = point.found;
  contents.newest = std::move(point.checkpoint_index);
  contents.damaged = std::move(point.damaged);

  if (contents.existing.kind == ExistingJob::Kind::kRefused) return contents;
  // The job begins at zero, and no attempt of its own has trained yet: what is there was learned
  // from an earlier job's data.
  const bool own = !contents.claims.empty() && contents.claims.back().job() == FullJobName(job);
  if (contents.existing.kind == ExistingJob::Kind::kReplace || (!point.found && !own)) {
    RETURN_IF_ERROR(storage.SetEncodingsAside());
  }

  // Damaged checkpoints do not count as kept ones.
  for (const v1::CheckpointRef& bad : point.passed_over) {
    const auto is_bad = [&](const v1::CheckpointRef& ref) {
      return ref.attempt() == bad.attempt() && ref.step() == bad.step();
    };
    contents.checkpoints.erase(
        std::remove_if(contents.checkpoints.begin(), contents.checkpoints.end(), is_bad),
        contents.checkpoints.end());
  }

  for (const v1::CheckpointRef& ref : contents.checkpoints) {
    if (!job.checkpoint().has_keep_best()) break;
    // One that cannot be read has been reported, and is not among the best.
    const absl::StatusOr<v1::CheckpointIndex> index = storage.ReadCheckpointIndex(ref);
    if (!index.ok() || index->metrics().empty()) continue;
    contents.metrics.emplace_back(
        ref, std::vector<v1::Metric>(index->metrics().begin(), index->metrics().end()));
  }

  if (!contents.has_newest && find_source != nullptr) {
    ASSIGN_OR_RETURN(RestoreSource source, find_source(check));
    contents.has_newest = true;
    contents.newest = std::move(source.checkpoint_index);
    contents.foreign_directory = std::move(source.directory);
    for (std::string& sentence : source.damaged) contents.damaged.push_back(std::move(sentence));
  }

  if (!contents.claims.empty()) {
    // Directories of older attempts without a checkpoint index can never become checkpoints.
    (void)storage.RemoveIncomplete(contents.claims.back().attempt());
  }
  return contents;
}

}  // namespace

absl::StatusOr<StorageContents> OpenStorage(CheckpointStorage& storage, const v1::JobSpec& job,
                                            const FindSource& find_source, FileCheck check) {
  const auto fails = [](const absl::Status& status, absl::string_view how) {
    return absl::Status(status.code(), absl::StrCat("the checkpoint storage cannot be ", how, ": ",
                                                    status.message()));
  };

  RETURN_IF_ERROR(storage.Probe(), fails(_, "written"));
  // Before Own, which may repair some.
  const std::vector<std::string> damage = storage.FindDamage();

  if (absl::Status status = storage.Own(FullJobName(job)); !status.ok()) {
    if (!absl::IsFailedPrecondition(status)) return fails(status, "used");
    StorageContents refused;
    refused.existing = {ExistingJob::Kind::kRefused, std::string(status.message())};
    return refused;
  }

  ASSIGN_OR_RETURN(StorageContents contents, ReadContents(storage, job, find_source, check),
                   fails(_, "read"));

  for (const std::string& sentence : damage) {
    const bool known = std::find(contents.damaged.begin(), contents.damaged.end(), sentence) !=
                       contents.damaged.end();
    if (!known) contents.damaged.push_back(sentence);
  }
  return contents;
}

}  // namespace sluice::coordinator
