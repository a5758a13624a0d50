#include "services/worker/data/dataset.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "services/common/utf8.h"
#include "services/worker/data/csv_dataset.h"
#include "services/worker/data/idx_dataset.h"
#include "services/worker/data/synthetic_dataset.h"
#include "services/worker/data/text_dataset.h"

namespace sluice {
namespace {

// For an error, which may quote a field of any length.
constexpr size_t kMaxMessageBytes = 4096;

absl::StatusOr<std::unique_ptr<Dataset>> Open(const v1::DataSpec& spec, Split split) {
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
          "sluice-worker cannot read it");
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("data.format ", spec.format(), " is not known to this version"));
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> OpenDataset(const v1::DataSpec& spec, Split split) {
  absl::StatusOr<std::unique_ptr<Dataset>> dataset = Open(spec, split);
  if (dataset.ok()) return dataset;
  // Messages quote files, which may have any encoding.
  return absl::Status(dataset.status().code(),
                      CleanUtf8(dataset.status().message(), kMaxMessageBytes));
}

}  // namespace sluice
