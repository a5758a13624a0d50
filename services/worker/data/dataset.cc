#include "services/worker/data/dataset.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "services/common/text/utf8.h"
#include "services/worker/data/csv_dataset.h"
#include "services/worker/data/idx_dataset.h"
#include "services/worker/data/synthetic_dataset.h"
#include "services/worker/data/text_dataset.h"

namespace sluice {
namespace {

absl::StatusOr<std::unique_ptr<Dataset>> Open(const v1::DataSpec& spec, Split split,
                                              const std::string& encoding_file) {
  switch (spec.format()) {
    case v1::DataSpec::SYNTHETIC:
      return OpenSyntheticDataset(spec, split);
    case v1::DataSpec::IDX:
      return OpenIdxDataset(spec, split);
    case v1::DataSpec::CSV:
      return OpenCsvDataset(spec, split, encoding_file);
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

absl::StatusOr<std::unique_ptr<Dataset>> OpenDataset(const v1::DataSpec& spec, Split split,
                                                     const std::string& encoding_file) {
  absl::StatusOr<std::unique_ptr<Dataset>> dataset = Open(spec, split, encoding_file);
  if (dataset.ok()) return dataset;
  // Messages quote files, which may have any encoding.
  return absl::Status(dataset.status().code(),
                      CleanUtf8(dataset.status().message(), kMaxDataMessageBytes));
}

}  // namespace sluice
