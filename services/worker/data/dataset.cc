#include "services/worker/data/dataset.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "services/worker/data/csv_dataset.h"
#include "services/worker/data/idx_dataset.h"
#include "services/worker/data/synthetic_dataset.h"
#include "services/worker/data/text_dataset.h"

namespace sluice {

absl::StatusOr<std::unique_ptr<Dataset>> OpenDataset(const v1::DataSpec& spec, Split split) {
  switch (spec.format()) {
    case v1::DataSpec::SYNTHETIC:
      return OpenSyntheticDataset(spec, split);
    case v1::DataSpec::IDX:
      return OpenIdxDataset(spec, split);
    case v1::DataSpec::CSV:
      return OpenCsvDataset(spec, split);
    case v1::DataSpec::TEXT:
      return OpenTextDataset(spec, split);
    case v1::DataSpec::CUSTOM:
      return absl::InvalidArgumentError(
          "data.format Custom is the data of the job's own program, worker.command: "
          "sluice-worker has none");
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("data.format ", spec.format(), " is not known to this version"));
  }
}

}  // namespace sluice
