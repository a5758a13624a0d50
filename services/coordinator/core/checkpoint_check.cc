#include "services/coordinator/core/checkpoint_check.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "proto/checkpoint.pb.h"
#include "services/coordinator/core/model_difference.h"
#include "services/protocol/interval_set.h"
#include "services/protocol/layout.h"

namespace sluice::coordinator {

std::string CheckpointName(const v1::CheckpointRef& checkpoint) {
  return absl::StrCat("the checkpoint of attempt ", checkpoint.attempt(), ", step ",
                      checkpoint.step());
}

std::string CheckCheckpoint(const StorageContents& storage, const std::optional<v1::Ready>& model) {
  if (!storage.has_newest || !model.has_value()) return "";
  const v1::CheckpointIndex& checkpoint_index = storage.newest;
  const std::string name = CheckpointName(checkpoint_index.checkpoint());
  if (const std::string difference = Difference(checkpoint_index.table(), model->table());
      !difference.empty()) {
    return absl::StrCat("the model differs from that of ", name, ": ", difference);
  }
  if (absl::Status valid = ValidateLayout(checkpoint_index.table(), checkpoint_index.layout());
      !valid.ok()) {
    return absl::StrCat(name, " has no valid layout: ", valid.message());
  }
  if (absl::Status valid = IntervalSet::FromProtos(checkpoint_index.ledger().applied()).status();
      !valid.ok()) {
    return absl::StrCat(name, " has no valid ledger: ", valid.message());
  }
  return "";
}

}  // namespace sluice::coordinator
