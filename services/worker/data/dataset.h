// Training and evaluation data as numbered samples.
#ifndef SLUICE_SERVICES_WORKER_DATA_DATASET_H_
#define SLUICE_SERVICES_WORKER_DATA_DATASET_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/common.pb.h"
#include "proto/job.pb.h"
#include "services/worker/data/batch.h"

namespace sluice {

enum class LabelKind {
  kNone,     // for models that take no data
  kClass,    // Batch.classes
  kTargets,  // Batch.targets
};

// Known once the data is open, and constant.
struct DatasetInfo {
  uint64_t samples = 0;               // at least 1
  std::vector<int64_t> sample_shape;  // empty with kNone
  LabelKind label_kind = LabelKind::kNone;
  int64_t outputs = 0;  // number of classes, or of numbers in a target; 0 with kNone
  // Samples are sequences of tokens below `outputs`, with a class label for each token.
  bool tokens = false;

  struct Label {
    int64_t value = -1;
    std::string place;  // "labels.gz: row 7"
    std::string name;   // as the data has it; empty: the number
  };
  // The largest class label and its first place, if the format knows it; otherwise `value` is -1.
  // `outputs` may be larger, where the job sets the number of classes.
  Label largest;

  // The digest of the samples' encoding, if it is learned from data; else without a name.
  v1::DataDigest digest;
};

// Immutable once open. Every sample was checked then, so reading cannot fail because of the data.
// Any threads.
class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual const DatasetInfo& info() const = 0;

  // The samples with these indices, in this order; an index may occur twice. OutOfRange if one is
  // not below info().samples.
  virtual absl::StatusOr<Batch> Read(absl::Span<const uint64_t> indices) const = 0;
};

enum class Split { kTraining, kEvaluation };

// Limit of an error about data, which may quote a field of any length.
inline constexpr size_t kMaxDataMessageBytes = 4096;

// Reads and checks the data of a job; files are read completely, which takes time and memory. What
// is learned from data (classes, vocabularies, means) is learned from the training data for both
// splits, so a model means the same on both.
//
// NotFound, PermissionDenied: a file cannot be read. DataLoss: a file is truncated or damaged.
// InvalidArgument: a file does not match the spec, or the spec contradicts itself. Each message
// names the file and the place in it (row from 0 in IDX, line from 1 in CSV).
//
// CSV: `encoding_file` is the file of KeepTableEncoding; if it is empty, the encoding is learned
// from the training data. DataLoss: the file is damaged. InvalidArgument: the training data, or
// the spec, needs an encoding that differs.
absl::StatusOr<std::unique_ptr<Dataset>> OpenDataset(const v1::DataSpec& spec, Split split,
                                                     const std::string& encoding_file = "");

}  // namespace sluice

#endif  // SLUICE_SERVICES_WORKER_DATA_DATASET_H_
