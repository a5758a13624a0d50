// How the columns of a table become numbers, as learned from the training data: means and
// deviations, vocabularies, classes. A model that was trained with one encoding confuses the values
// of another, so the encoding is stored beside the job's checkpoints, as a CSV file itself:
//
//   column,use,entry,value
//   "age","numeric","mean","38.58"
//   "age","numeric","deviation","13.64"
//   "fare","numeric","",""                 not standardized
//   "city","categorical","value","bonn"    one row for each value, in the order of their places
//   "city","categorical","value","kiel"
//   "income","label","classes","2"
//   "income","label","class","high"        none if the labels are the classes' numbers themselves
//   "income","label","class","low"
//   "","","crc32c","1a2b3c4d"              over all bytes before this row
//
// A label to predict as a number has the row `"price","label","",""`.
#ifndef SLUICE_SERVICES_WORKER_DATA_CSV_ENCODING_H_
#define SLUICE_SERVICES_WORKER_DATA_CSV_ENCODING_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/job.pb.h"

namespace sluice {

// The limit for one column: a place in a vocabulary is stored in a float, and a column with more
// values than this is probably not categorical.
inline constexpr uint64_t kMaxDistinctValues = uint64_t{1} << 20;
inline constexpr uint64_t kMaxFeatures = uint64_t{1} << 20;
inline constexpr size_t kMaxEncodingBytes = size_t{256} << 20;

// A column of the file that has none of these uses is not read.
enum class ColumnUse { kNumeric, kCategorical, kLabel };

struct ColumnEncoding {
  std::string name;
  ColumnUse use = ColumnUse::kNumeric;
  bool standardized = false;  // kNumeric
  double mean = 0;
  double deviation = 1;
  // kCategorical: the vocabulary; kLabel: the names of the classes, if they have any.
  std::vector<std::string> values;
  absl::flat_hash_map<std::string, uint32_t> place_of;  // in `values`

  // Sets `values` in this order, and `place_of`. Each value must be there once.
  void SetValues(std::vector<std::string> all);
};

struct TableEncoding {
  std::vector<ColumnEncoding> columns;  // in the order of the features; the label anywhere
  uint64_t classes = 0;                 // 0: the label is a number

  // RESOURCE_EXHAUSTED if it would be longer than kMaxEncodingBytes.
  absl::StatusOr<std::string> Serialize() const;
  // DATA_LOSS, without the file's name, unless Serialize has made the text.
  static absl::StatusOr<TableEncoding> Parse(absl::string_view text);

  // The hash of everything that Serialize writes.
  uint64_t Hash() const;

  // The difference from another encoding, "column 'city' has 4 values, not 3"; empty if none.
  std::string DifferenceFrom(const TableEncoding& other) const;
  // The conflict with a job's settings, "column 'age' was standardized"; empty if there is none.
  std::string ConflictWith(const v1::DataSpec& spec) const;
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_WORKER_DATA_CSV_ENCODING_H_
