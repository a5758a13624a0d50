#include "services/worker/data/csv_dataset.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "services/common/io/file_util.h"
#include "services/common/process/process.h"
#include "services/common/status_macros.h"
#include "services/common/text/utf8.h"
#include "services/protocol/data_digests.h"
#include "services/worker/data/csv_encoding.h"
#include "services/worker/data/csv_reader.h"
#include "services/worker/data/file.h"
#include "services/worker/data/normalize.h"

namespace sluice {
namespace {

// A column while it is read: numbers, or places in `vocabulary` in order of appearance.
struct Column {
  std::string name;
  bool twice = false;            // the file has another column of this name
  std::optional<ColumnUse> use;  // none: the column is not read
  bool text = false;             // whether values are kept as text
  std::vector<double> numbers;
  std::vector<uint32_t> codes;
  std::vector<std::string> vocabulary;
  absl::flat_hash_map<std::string, uint32_t> code_of;
};

struct Table {
  std::string path;
  std::vector<Column> columns;
  absl::flat_hash_map<std::string, size_t> column_of;  // by name, the first one
  std::vector<uint64_t> lines;                         // of each row, for messages
};

absl::StatusOr<char> Delimiter(const v1::DataSpec::Csv& csv) {
  if (csv.delimiter().empty()) return ',';
  const char delimiter = csv.delimiter()[0];
  if (csv.delimiter().size() == 1 && delimiter != '"' && delimiter != '\n' && delimiter != '\r') {
    return delimiter;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("data.csv.delimiter is '", csv.delimiter(),
                   "': should be one character, and neither a quote nor a line end"));
}

std::string NamesOf(const Table& table) {
  return absl::StrJoin(table.columns, ", ",
                       [](std::string* out, const Column& column) { out->append(column.name); });
}

// Gives a column its use. `because` says why the column is needed, in parentheses.
absl::Status Assign(Table& table, const std::string& name, ColumnUse use, bool text,
                    const std::string& because) {
  const auto found = table.column_of.find(name);
  if (found == table.column_of.end()) {
    return absl::InvalidArgumentError(absl::StrCat(table.path, ": no column '", name, "' (",
                                                   because, "); there are: ", NamesOf(table)));
  }

  Column& column = table.columns[found->second];
  if (column.twice) {
    return absl::InvalidArgumentError(absl::StrCat(table.path, ": there are two columns '", name,
                                                   "' (", because, "): rename or remove one"));
  }
  if (column.use.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(because, ": column '", name, "' is used twice"));
  }

  column.use = use;
  column.text = text;
  return absl::OkStatus();
}

bool UsesAllColumns(const v1::DataSpec::Csv& csv) {
  return csv.categorical_columns().empty() && csv.numeric_columns().empty();
}

// Gives the columns of the training data their uses, as the job says.
absl::Status AssignByJob(const v1::DataSpec::Csv& csv, Table& table) {
  if (csv.label_column().empty()) {
    return absl::InvalidArgumentError("data.csv.labelColumn is not set");
  }
  RETURN_IF_ERROR(Assign(table, csv.label_column(), ColumnUse::kLabel, !csv.regression(),
                         "data.csv.labelColumn"));

  for (const std::string& name : csv.categorical_columns()) {
    RETURN_IF_ERROR(
        Assign(table, name, ColumnUse::kCategorical, /*text=*/true, "data.csv.categoricalColumns"));
  }
  for (const std::string& name : csv.numeric_columns()) {
    RETURN_IF_ERROR(
        Assign(table, name, ColumnUse::kNumeric, /*text=*/false, "data.csv.numericColumns"));
  }

  if (UsesAllColumns(csv)) {
    for (const Column& column : table.columns) {
      if (column.use.has_value()) continue;
      RETURN_IF_ERROR(Assign(table, column.name, ColumnUse::kNumeric, /*text=*/false,
                             "without a list of columns, every column is read"));
    }
  }

  // There must be a feature.
  const auto is_feature = [](const Column& column) {
    return column.use.has_value() && column.use != ColumnUse::kLabel;
  };
  if (std::any_of(table.columns.begin(), table.columns.end(), is_feature)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(table.path, ": there is no column but the label to learn from"));
}

// Gives the columns the uses that they had when the encoding was learned. The file's other columns
// are not read.
absl::Status AssignByEncoding(const TableEncoding& encoding, Table& table) {
  for (const ColumnEncoding& column : encoding.columns) {
    const bool text = column.use == ColumnUse::kCategorical ||
                      (column.use == ColumnUse::kLabel && encoding.classes > 0);
    RETURN_IF_ERROR(Assign(table, column.name, column.use, text, "which the training data has"));
  }
  return absl::OkStatus();
}

absl::Status AppendValue(const CsvReader& reader, const std::string& field, Column& column) {
  if (!column.use.has_value()) return absl::OkStatus();

  if (column.text) {
    const auto [entry, added] = column.code_of.try_emplace(field, column.vocabulary.size());
    if (added) column.vocabulary.push_back(field);
    if (column.vocabulary.size() > kMaxDistinctValues) {
      return absl::InvalidArgumentError(absl::StrCat(reader.Place(), ": column '", column.name,
                                                     "' has more than ", kMaxDistinctValues,
                                                     " distinct values"));
    }
    column.codes.push_back(entry->second);
    return absl::OkStatus();
  }

  double number;
  constexpr double kLargest = std::numeric_limits<float>::max();
  if (!absl::SimpleAtod(field, &number) || !(std::abs(number) <= kLargest)) {
    return absl::InvalidArgumentError(absl::StrCat(reader.Place(), ": column '", column.name,
                                                   "': '", field,
                                                   "' is not a number: should be one, or the "
                                                   "column should not be read as numbers"));
  }
  column.numbers.push_back(number);
  return absl::OkStatus();
}

void ReadHeader(const v1::DataSpec::Csv& csv, const std::vector<std::string>& fields,
                Table& table) {
  for (size_t i = 0; i < fields.size(); ++i) {
    Column& column = table.columns.emplace_back();
    column.name = csv.no_header() ? absl::StrCat(i) : fields[i];
    const auto [first, added] = table.column_of.try_emplace(column.name, i);
    if (!added) table.columns[first->second].twice = true;
  }
}

// Reads the columns that `encoding` has, or, if it is null, those that the job names.
absl::StatusOr<Table> ReadTable(const v1::DataSpec::Csv& csv, const std::string& path,
                                uint64_t max_rows, const TableEncoding* encoding) {
  ASSIGN_OR_RETURN(char delimiter, Delimiter(csv));
  ASSIGN_OR_RETURN(std::string text, ReadTextFile(path));
  CsvReader reader(path, text, delimiter);
  std::vector<std::string> fields;
  ASSIGN_OR_RETURN(bool more, reader.Next(fields));
  if (!more) return absl::InvalidArgumentError(absl::StrCat(path, ": is empty"));

  Table table;
  table.path = path;
  ReadHeader(csv, fields, table);
  RETURN_IF_ERROR(encoding == nullptr ? AssignByJob(csv, table)
                                      : AssignByEncoding(*encoding, table));
  if (!csv.no_header()) {
    ASSIGN_OR_RETURN(more, reader.Next(fields));
  }

  while (more && (max_rows == 0 || table.lines.size() < max_rows)) {
    if (fields.size() != table.columns.size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          reader.Place(), ": has ", fields.size(), " columns: should have ", table.columns.size()));
    }
    for (size_t i = 0; i < fields.size(); ++i) {
      RETURN_IF_ERROR(AppendValue(reader, fields[i], table.columns[i]));
    }
    table.lines.push_back(reader.line());
    ASSIGN_OR_RETURN(more, reader.Next(fields));
  }
  if (table.lines.empty()) return absl::InvalidArgumentError(absl::StrCat(path, ": has no rows"));
  return table;
}

// Sums differences from the first value, so that a constant column has exactly its value as mean,
// and a large mean takes no digits from a small deviation.
void LearnMoments(const std::vector<double>& numbers, ColumnEncoding& encoding) {
  const auto [least, most] = std::minmax_element(numbers.begin(), numbers.end());
  const double first = numbers[0];
  double sum = 0;
  for (double x : numbers) sum += x - first;
  const double mean_difference = sum / static_cast<double>(numbers.size());
  encoding.standardized = true;
  encoding.mean = first + mean_difference;

  // Values that differ by less than their own rounding are a constant, too.
  constexpr double kRounding = 4 * std::numeric_limits<double>::epsilon();
  if (*most - *least <= kRounding * std::max(std::abs(*least), std::abs(*most))) return;
  double squares = 0;
  for (double x : numbers) {
    const double difference = (x - first) - mean_difference;
    squares += difference * difference;
  }
  const double deviation = std::sqrt(squares / static_cast<double>(numbers.size()));
  if (deviation > 0) encoding.deviation = deviation;  // denormal squares can be 0
}

void LearnVocabulary(const Column& column, ColumnEncoding& encoding) {
  std::vector<std::string> sorted = column.vocabulary;
  std::sort(sorted.begin(), sorted.end());
  encoding.SetValues(std::move(sorted));
}

// Whether a label is itself a class number.
bool AsClass(const std::string& text, uint32_t* label) {
  return absl::SimpleAtoi(text, label) && *label < kMaxDistinctValues;
}

// Returns the number of classes.
uint64_t LearnClasses(const Column& column, ColumnEncoding& encoding) {
  uint32_t largest = 0;
  const auto is_class = [&](const std::string& text) {
    uint32_t label;
    if (!AsClass(text, &label)) return false;
    largest = std::max(largest, label);
    return true;
  };

  // Labels that are all class numbers have no names.
  if (std::all_of(column.vocabulary.begin(), column.vocabulary.end(), is_class)) {
    return uint64_t{largest} + 1;
  }
  LearnVocabulary(column, encoding);
  return column.vocabulary.size();
}

absl::StatusOr<TableEncoding> Learn(const v1::DataSpec& spec, const Table& training) {
  TableEncoding learned;
  for (const Column& column : training.columns) {
    if (!column.use.has_value()) continue;
    ColumnEncoding encoding;
    encoding.use = *column.use;
    encoding.name = column.name;

    if (column.use == ColumnUse::kNumeric) {
      if (spec.csv().standardize()) LearnMoments(column.numbers, encoding);
    } else if (column.use == ColumnUse::kCategorical) {
      LearnVocabulary(column, encoding);
    } else if (column.text) {
      const uint64_t found = LearnClasses(column, encoding);
      learned.classes = spec.classes() > 0 ? spec.classes() : found;
      // Numeric labels are checked row by row.
      if (!encoding.values.empty() && found > learned.classes) {
        return absl::InvalidArgumentError(
            absl::StrCat(training.path, ": column '", column.name, "' has ", found,
                         " distinct labels, and data.classes is ", learned.classes));
      }
    }

    learned.columns.push_back(std::move(encoding));
  }
  return learned;
}

// A feature column of the split that is read, encoded: numbers, or places where `vocabulary` is not
// 0.
struct Feature {
  std::vector<float> values;
  uint64_t width = 1;
  bool one_hot = false;
};

class CsvDataset final : public Dataset {
 public:
  CsvDataset(DatasetInfo info, std::vector<Feature> features, std::vector<int64_t> classes,
             std::vector<float> targets, Normalizer normalizer)
      : info_(std::move(info)),
        features_(std::move(features)),
        classes_(std::move(classes)),
        targets_(std::move(targets)),
        normalizer_(std::move(normalizer)) {}

  const DatasetInfo& info() const override { return info_; }

  absl::StatusOr<Batch> Read(absl::Span<const uint64_t> indices) const override {
    Batch batch;
    batch.samples = indices.size();
    batch.shape = info_.sample_shape;
    const uint64_t width = info_.sample_shape[0];
    batch.features.assign(indices.size() * width, 0);
    float* row = batch.features.data();

    for (uint64_t index : indices) {
      if (index >= info_.samples) {
        return absl::OutOfRangeError(absl::StrCat("row ", index, " of ", info_.samples));
      }
      float* out = row;
      for (const Feature& feature : features_) {
        const float value = feature.values[index];
        if (!feature.one_hot) *out = value;
        if (feature.one_hot && value < feature.width) out[static_cast<uint64_t>(value)] = 1;
        out += feature.width;
      }
      for (uint64_t i = 0; i < width; ++i) row[i] = normalizer_.Apply(i, row[i]);
      row += width;
      if (!classes_.empty()) batch.classes.push_back(classes_[index]);
      if (!targets_.empty()) batch.targets.push_back(targets_[index]);
    }

    batch.target_width = targets_.empty() ? 0 : 1;
    return batch;
  }

 private:
  const DatasetInfo info_;
  const std::vector<Feature> features_;
  const std::vector<int64_t> classes_;
  const std::vector<float> targets_;
  const Normalizer normalizer_;
};

Feature Encode(const ColumnEncoding& encoding, const Column& column, bool one_hot) {
  Feature feature;
  if (column.use == ColumnUse::kNumeric) {
    for (double x : column.numbers) {
      feature.values.push_back(static_cast<float>((x - encoding.mean) / encoding.deviation));
    }
    return feature;
  }

  feature.one_hot = one_hot;
  if (one_hot) feature.width = encoding.values.size();

  std::vector<float> place_of_code;
  for (const std::string& value : column.vocabulary) {
    const auto found = encoding.place_of.find(value);
    place_of_code.push_back(static_cast<float>(
        found == encoding.place_of.end() ? encoding.values.size() : found->second));
  }
  for (uint32_t code : column.codes) feature.values.push_back(place_of_code[code]);
  return feature;
}

// The class of a label, or -1.
int64_t ClassOf(const ColumnEncoding& encoding, const std::string& label, uint64_t classes) {
  if (encoding.values.empty()) {
    uint32_t number;
    if (!AsClass(label, &number) || number >= classes) return -1;
    return number;
  }
  const auto found = encoding.place_of.find(label);
  if (found == encoding.place_of.end()) return -1;
  return found->second;
}

// Also finds the largest class.
absl::StatusOr<std::vector<int64_t>> EncodeLabels(const ColumnEncoding& encoding,
                                                  const Table& table, const Column& column,
                                                  uint64_t classes, DatasetInfo::Label* largest) {
  std::vector<int64_t> labels;
  labels.reserve(column.codes.size());
  for (size_t row = 0; row < column.codes.size(); ++row) {
    const std::string& label = column.vocabulary[column.codes[row]];
    const auto place = [&] { return absl::StrCat(table.path, ":", table.lines[row]); };

    labels.push_back(ClassOf(encoding, label, classes));
    if (labels.back() < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(place(), ": label '", label, "' is not ",
                       encoding.values.empty() ? absl::StrCat("a class in [0, ", classes, ")")
                                               : "among those of the training data"));
    }

    if (labels.back() > largest->value) {
      *largest = {labels.back(), absl::StrCat(place(), ": column '", column.name, "'"),
                  encoding.values.empty() ? "" : label};
    }
  }
  return labels;
}

absl::Status CheckFeatures(const std::string& path, int64_t features) {
  if (static_cast<uint64_t>(features) <= kMaxFeatures) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": makes ", features, " features: should be at most ", kMaxFeatures));
}

absl::StatusOr<std::unique_ptr<Dataset>> MakeDataset(const v1::DataSpec& spec,
                                                     const TableEncoding& encoding,
                                                     const Table& table) {
  const bool one_hot = spec.csv().categories() == v1::DataSpec::Csv::ONE_HOT;
  DatasetInfo info;
  info.samples = table.lines.size();
  info.label_kind = encoding.classes > 0 ? LabelKind::kClass : LabelKind::kTargets;
  info.outputs = encoding.classes > 0 ? static_cast<int64_t>(encoding.classes) : 1;
  info.digest.set_name(kEncodingDigest);
  info.digest.set_hash(encoding.Hash());

  std::vector<Feature> features;
  std::vector<int64_t> classes;
  std::vector<float> targets;
  int64_t width = 0;

  for (const ColumnEncoding& each : encoding.columns) {
    const Column& column = table.columns[table.column_of.at(each.name)];
    if (each.use != ColumnUse::kLabel) {
      features.push_back(Encode(each, column, one_hot));
      width += static_cast<int64_t>(features.back().width);
    } else if (column.text) {
      ASSIGN_OR_RETURN(classes, EncodeLabels(each, table, column, encoding.classes, &info.largest));
    } else {
      targets.assign(column.numbers.begin(), column.numbers.end());
    }
  }

  RETURN_IF_ERROR(CheckFeatures(table.path, width));
  info.sample_shape = {width};
  ASSIGN_OR_RETURN(Normalizer normalizer, Normalizer::Create(spec.normalize(), info.sample_shape));
  return std::make_unique<CsvDataset>(std::move(info), std::move(features), std::move(classes),
                                      std::move(targets), std::move(normalizer));
}

constexpr char kStartOver[] =
    "; to train with it, start over (sluice run --fresh, or a job with another name)";

absl::StatusOr<TableEncoding> ReadEncoding(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, MakeRealFileSystem()->Read(path, kMaxEncodingBytes));
  ASSIGN_OR_RETURN(
      TableEncoding encoding, TableEncoding::Parse(text),
      absl::DataLossError(absl::StrCat(path, ": ", _.message(),
                                       ". Restore it from a copy; or remove it, if the "
                                       "training data is the same as when training began")));
  return encoding;
}

// Training data must have nothing that the encoding with which the model was trained has not.
absl::Status CheckKnown(const v1::DataSpec& spec, const TableEncoding& encoding,
                        const std::string& file, const Table& table) {
  const std::string trained = absl::StrCat(", with which the model was trained (", file, ")");
  if (UsesAllColumns(spec.csv())) {
    for (const Column& column : table.columns) {
      if (column.use.has_value()) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(table.path, ": column '", column.name, "' is new: it is not among the ",
                       encoding.columns.size(), " columns", trained, ". Remove it", kStartOver));
    }
  }

  for (const ColumnEncoding& each : encoding.columns) {
    if (each.use != ColumnUse::kCategorical) continue;
    const Column& column = table.columns[table.column_of.at(each.name)];
    for (size_t row = 0; row < column.codes.size(); ++row) {
      const std::string& value = column.vocabulary[column.codes[row]];
      if (each.place_of.count(value) != 0) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(table.path, ":", table.lines[row], ": column '", each.name, "': the value '",
                       value, "' is new: it is not among the ", each.values.size(), " values",
                       trained, ". Remove the rows that have it", kStartOver));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Table> ReadTrainingTable(const v1::DataSpec& spec, const TableEncoding* encoding) {
  return ReadTable(spec.csv(), spec.source().path(), spec.max_samples(), encoding);
}

// The text of a new file: the encoding of the file `given`, or, if it is empty, the one learned
// from the training data.
absl::StatusOr<std::string> NewEncoding(const v1::DataSpec& spec, const std::string& given) {
  TableEncoding encoding;
  if (!given.empty()) {
    ASSIGN_OR_RETURN(encoding, ReadEncoding(given));
  } else {
    ASSIGN_OR_RETURN(const Table training, ReadTrainingTable(spec, nullptr));
    ASSIGN_OR_RETURN(encoding, Learn(spec, training));
  }

  ASSIGN_OR_RETURN(
      std::string text, encoding.Serialize(),
      absl::InvalidArgumentError(absl::StrCat(spec.source().path(), ": ", _.message())));
  return text;
}

// Several workers may write at the same time; workers in pods may have the same process id.
absl::Status WriteNew(const std::string& path, const std::string& text) {
  const absl::Status status = ExclusiveCreateFile(
      MakeRealFileSystem().get(), path, absl::Cord(text), absl::StrCat(RandomIncarnation()));
  if (status.ok() || absl::IsAlreadyExists(status)) return absl::OkStatus();
  return absl::Status(status.code(), absl::StrCat(path, ": cannot be written: ", status.message()));
}

absl::Status Keep(const std::string& path, const v1::DataSpec& spec, std::string* file) {
  const std::string given = std::exchange(*file, path);
  ASSIGN_OR_RETURN(const bool exists, MakeRealFileSystem()->Exists(path));
  if (!exists) {
    ASSIGN_OR_RETURN(const std::string text, NewEncoding(spec, given));
    RETURN_IF_ERROR(WriteNew(path, text));
  }

  if (given.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const TableEncoding kept, ReadEncoding(path));
  ASSIGN_OR_RETURN(const TableEncoding wanted, ReadEncoding(given));
  const std::string difference = wanted.DifferenceFrom(kept);
  if (difference.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(given, ": ", difference, ", unlike in ", path,
                   ", with which the job's own checkpoints were trained", kStartOver));
}

}  // namespace

absl::Status KeepTableEncoding(const std::string& path, const v1::DataSpec& spec,
                               std::string* file) {
  if (spec.format() != v1::DataSpec::CSV) return absl::OkStatus();
  const absl::Status status = Keep(path, spec, file);
  // Messages quote files, which may have any encoding.
  return absl::Status(status.code(), CleanUtf8(status.message(), kMaxDataMessageBytes));
}

absl::StatusOr<std::unique_ptr<Dataset>> OpenCsvDataset(const v1::DataSpec& spec, Split split,
                                                        const std::string& encoding_file) {
  if (spec.source().path().empty()) {
    return absl::InvalidArgumentError("data.source.path is not set");
  }
  const bool training = split == Split::kTraining;
  if (!training && spec.evaluation().source().path().empty()) {
    return absl::InvalidArgumentError("data.evaluation.source.path is not set");
  }

  TableEncoding encoding;
  if (!encoding_file.empty()) {
    ASSIGN_OR_RETURN(encoding, ReadEncoding(encoding_file));
    if (const std::string conflict = encoding.ConflictWith(spec); !conflict.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("data.csv does not fit ", encoding_file,
                       ", with which the model was trained: ", conflict));
    }
  }

  // Without a file the encoding is learned, always from the training data.
  if (encoding_file.empty()) {
    ASSIGN_OR_RETURN(const Table table, ReadTrainingTable(spec, nullptr));
    ASSIGN_OR_RETURN(encoding, Learn(spec, table));
    if (training) return MakeDataset(spec, encoding, table);
  } else if (training) {
    ASSIGN_OR_RETURN(const Table table, ReadTrainingTable(spec, &encoding));
    RETURN_IF_ERROR(CheckKnown(spec, encoding, encoding_file, table));
    return MakeDataset(spec, encoding, table);
  }

  ASSIGN_OR_RETURN(const Table table, ReadTable(spec.csv(), spec.evaluation().source().path(),
                                                /*max_rows=*/0, &encoding));
  return MakeDataset(spec, encoding, table);
}

}  // namespace sluice
