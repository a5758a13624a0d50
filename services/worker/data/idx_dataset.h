// Images (or anything else with a fixed shape) and labels in two IDX files.
//
// In a directory, the files are found by the names of the MNIST database, `train-images-idx3-ubyte`
// and `train-labels-idx1-ubyte` for training and `t10k-...` for evaluation, each also with ".gz"
// and with "images.idx3" instead of "images-idx3". For a single file, the labels are next to it
// under its name with "labels" for "images" and "idx1" for "idx3", unless the job names them.
//
// Samples of two dimensions get a channel in front, {28, 28} becomes {1, 28, 28}. Bytes are scaled
// to [0, 1], other types are unchanged; then the numbers are normalised. Labels of an integer type
// are classes, labels of a floating-point type are targets.
#ifndef SLUICE_SERVICES_WORKER_DATA_IDX_DATASET_H_
#define SLUICE_SERVICES_WORKER_DATA_IDX_DATASET_H_

#include <memory>

#include "absl/status/statusor.h"
#include "proto/job.pb.h"
#include "services/worker/data/dataset.h"

namespace sluice {

// See OpenDataset. Without evaluation.source, evaluation data is expected in the directory of the
// training data.
absl::StatusOr<std::unique_ptr<Dataset>> OpenIdxDataset(const v1::DataSpec& spec, Split split);

}  // namespace sluice

#endif  // SLUICE_SERVICES_WORKER_DATA_IDX_DATASET_H_
