// Tables: a CSV file's columns as features and label.
//
// Features are in the order of the file's columns. A numeric column gives one number; a categorical
// column gives one number for each value of its vocabulary (0 or 1), or with `INDEX` the value's
// place in the vocabulary. A vocabulary is the column's distinct values in the training data, in
// byte order. A value that only evaluation data has is all zeros, or with `INDEX` the size of the
// vocabulary. Without numericColumns and categoricalColumns every column but the label is numeric.
// With `standardize`, numbers become (x - mean) / standard deviation (of the population; 1 if all
// values are equal, or differ by rounding alone) of the training data; then data.normalize is
// applied to all features.
//
// Only the columns that the training data has are read of evaluation data, by their names.
//
// The label is a class: the number itself if every label of the training data is a non-negative
// integer, else its place among the distinct labels in byte order. With `regression` it is a target
// of one number.
#ifndef SLUICE_SERVICES_WORKER_DATA_CSV_DATASET_H_
#define SLUICE_SERVICES_WORKER_DATA_CSV_DATASET_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/job.pb.h"
#include "services/worker/data/dataset.h"

namespace sluice {

// See OpenDataset. Evaluation data must be named.
absl::StatusOr<std::unique_ptr<Dataset>> OpenCsvDataset(const v1::DataSpec& spec, Split split,
                                                        const std::string& encoding_file);

// Makes a job's table always use the same encoding: takes that of the file `path` if it exists, and
// writes it otherwise (completely or not at all; if two workers write at once, the second uses the
// first one's file). `file` is the encoding to begin with, or empty: learned from the training
// data; afterwards it is `path`. Does nothing for formats other than CSV.
//
// InvalidArgument if `file` names an encoding and `path` has another one. Otherwise the errors of
// OpenDataset or of writing.
absl::Status KeepTableEncoding(const std::string& path, const v1::DataSpec& spec,
                               std::string* file);

}  // namespace sluice

#endif  // SLUICE_SERVICES_WORKER_DATA_CSV_DATASET_H_
