#include "services/worker/data/csv_dataset.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "services/common/status_macros.h"
#include "services/worker/data/csv_reader.h"
#include "services/worker/data/file.h"
#include "services/worker/data/normalize.h"

namespace sluice {
namespace {

// A place in a vocabulary is stored in a float, and a column with more values than this is probably
// not categorical.
constexpr uint64_t kMaxVocabulary = uint64_t{1} << 20;
constexpr uint64_t kMaxFeatures = uint64_t{1} << 20;

enum class ColumnUse { kUnused, kNumeric, kCategorical, kLabel };

// A column while it is read: numbers, or places in `vocabulary` in order of appearance.
struct Column {
  std::string name;
  ColumnUse use = ColumnUse::kUnused;
  bool text = false;  // whether values are kept as text
  std::vector<double> numbers;
  std::vector<uint32_t> codes;
  std::vector<std::string> vocabulary;
  absl::flat_hash_map<std::string, uint32_t> code_of;
};

struct Table {
  std::string path;
  std::vector<Column> columns;
  std::vector<uint64_t> lines;  // of each row, for messages
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

Column* Find(Table& table, const std::string& name) {
  for (Column& column : table.columns) {
    if (column.name == name) return &column;
  }
  return nullptr;
}

absl::Status Assign(Table& table, const std::string& name, ColumnUse use, const char* field) {
  Column* column = Find(table, name);
  if (column == nullptr) {
    const auto append_name = [](std::string* out, const Column& c) { out->append(c.name); };
    return absl::InvalidArgumentError(
        absl::StrCat(table.path, ": no column '", name, "' (data.csv.", field,
                     "); there are: ", absl::StrJoin(table.columns, ", ", append_name)));
  }
  if (column->use != ColumnUse::kUnused) {
    return absl::InvalidArgumentError(
        absl::StrCat("data.csv.", field, ": column '", name, "' is used twice"));
  }
  column->use = use;
  return absl::OkStatus();
}

// Assigns a use to each column.
absl::Status AssignColumns(const v1::DataSpec::Csv& csv, Table& table) {
  if (csv.label_column().empty()) {
    return absl::InvalidArgumentError("data.csv.labelColumn is not set");
  }

  RETURN_IF_ERROR(Assign(table, csv.label_column(), ColumnUse::kLabel, "labelColumn"));
  for (const std::string& name : csv.categorical_columns()) {
    RETURN_IF_ERROR(Assign(table, name, ColumnUse::kCategorical, "categoricalColumns"));
  }
  for (const std::string& name : csv.numeric_columns()) {
    RETURN_IF_ERROR(Assign(table, name, ColumnUse::kNumeric, "numericColumns"));
  }

  const bool all_others = csv.categorical_columns().empty() && csv.numeric_columns().empty();
  bool any = false;
  for (Column& column : table.columns) {
    if (column.use == ColumnUse::kUnused && all_others) column.use = ColumnUse::kNumeric;
    column.text = column.use == ColumnUse::kCategorical ||
                  (column.use == ColumnUse::kLabel && !csv.regression());
    any |= column.use == ColumnUse::kNumeric || column.use == ColumnUse::kCategorical;
  }

  if (any) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(table.path, ": there is no column but the label to learn from"));
}

absl::Status AppendValue(const CsvReader& reader, const std::string& field, Column& column) {
  if (column.use == ColumnUse::kUnused) return absl::OkStatus();

  if (column.text) {
    const auto [entry, added] = column.code_of.try_emplace(field, column.vocabulary.size());
    if (added) column.vocabulary.push_back(field);
    if (column.vocabulary.size() > kMaxVocabulary) {
      return absl::InvalidArgumentError(absl::StrCat(reader.Place(), ": column '", column.name,
                                                     "' has more than ", kMaxVocabulary,
                                                     " distinct values"));
    }
    column.codes.push_back(entry->second);
    return absl::OkStatus();
  }

  double number;
  constexpr double kLargest = std::numeric_limits<float>::max();
  if (!absl::SimpleAtod(field, &number) || !(std::abs(number) <= kLargest)) {
    return absl::InvalidArgumentError(absl::StrCat(reader.Place(), ": column '", column.name,
                                                   "': '", field, "' is not a number"));
  }
  column.numbers.push_back(number);
  return absl::OkStatus();
}

absl::StatusOr<Table> ReadTable(const v1::DataSpec::Csv& csv, const std::string& path,
                                uint64_t max_rows) {
  ASSIGN_OR_RETURN(char delimiter, Delimiter(csv));
  ASSIGN_OR_RETURN(std::string text, ReadFile(path));
  CsvReader reader(path, text, delimiter);
  std::vector<std::string> fields;
  ASSIGN_OR_RETURN(bool more, reader.Next(fields));
  if (!more) return absl::InvalidArgumentError(absl::StrCat(path, ": is empty"));
  Table table;
  table.path = path;
  for (size_t i = 0; i < fields.size(); ++i) {
    const std::string name = csv.no_header() ? absl::StrCat(i) : fields[i];
    if (Find(table, name) != nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(reader.Place(), ": there are two columns '", name, "'"));
    }
    table.columns.emplace_back();
    table.columns.back().name = name;
  }
  RETURN_IF_ERROR(AssignColumns(csv, table));
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

// What the training data determines about a column.
struct Encoding {
  ColumnUse use = ColumnUse::kUnused;
  std::string name;
  double mean = 0;
  double deviation = 1;
  absl::flat_hash_map<std::string, uint32_t> place_of;  // in the sorted vocabulary
  bool labels_are_classes = false;                      // the label's text is the class
};

void LearnMoments(const std::vector<double>& numbers, Encoding& encoding) {
  double sum = 0;
  for (double x : numbers) sum += x;
  encoding.mean = sum / numbers.size();
  double squares = 0;
  for (double x : numbers) squares += (x - encoding.mean) * (x - encoding.mean);
  const double deviation = std::sqrt(squares / numbers.size());
  if (deviation > 0 && std::isfinite(deviation)) encoding.deviation = deviation;
}

void LearnVocabulary(const Column& column, Encoding& encoding) {
  std::vector<std::string> sorted = column.vocabulary;
  std::sort(sorted.begin(), sorted.end());
  for (uint32_t i = 0; i < sorted.size(); ++i) encoding.place_of[sorted[i]] = i;
}

// Whether a label is itself a class number.
bool AsClass(const std::string& text, uint32_t* label) {
  return absl::SimpleAtoi(text, label) && *label < kMaxVocabulary;
}

struct Encodings {
  std::vector<Encoding> columns;  // in the order of the training file
  int64_t features = 0;
  int64_t classes = 0;  // 0: regression
};

// Returns the number of classes.
int64_t LearnClasses(const Column& column, Encoding& encoding) {
  uint32_t largest = 0;
  const auto is_class = [&](const std::string& text) {
    uint32_t label;
    if (!AsClass(text, &label)) return false;
    largest = std::max(largest, label);
    return true;
  };
  encoding.labels_are_classes =
      std::all_of(column.vocabulary.begin(), column.vocabulary.end(), is_class);
  if (encoding.labels_are_classes) return int64_t{largest} + 1;
  LearnVocabulary(column, encoding);
  return static_cast<int64_t>(column.vocabulary.size());
}

absl::StatusOr<Encodings> Learn(const v1::DataSpec& spec, const Table& training) {
  Encodings encodings;
  for (const Column& column : training.columns) {
    Encoding encoding;
    encoding.use = column.use;
    encoding.name = column.name;
    if (column.use == ColumnUse::kNumeric) {
      if (spec.csv().standardize()) LearnMoments(column.numbers, encoding);
      ++encodings.features;
    } else if (column.use == ColumnUse::kCategorical) {
      LearnVocabulary(column, encoding);
      encodings.features += spec.csv().categories() == v1::DataSpec::Csv::ONE_HOT
                                ? static_cast<int64_t>(column.vocabulary.size())
                                : 1;
    } else if (column.text) {
      const int64_t found = LearnClasses(column, encoding);
      encodings.classes = spec.classes() > 0 ? spec.classes() : found;
      // Numeric labels are checked row by row.
      if (!encoding.labels_are_classes && found > encodings.classes) {
        return absl::InvalidArgumentError(
            absl::StrCat(training.path, ": column '", column.name, "' has ", found,
                         " distinct labels, and data.classes is ", encodings.classes));
      }
    }
    encodings.columns.push_back(std::move(encoding));
  }

  if (static_cast<uint64_t>(encodings.features) > kMaxFeatures) {
    return absl::InvalidArgumentError(absl::StrCat(training.path, ": makes ", encodings.features,
                                                   " features: should be at most ", kMaxFeatures));
  }
  return encodings;
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

Feature Encode(const Encoding& encoding, const Column& column, bool one_hot) {
  Feature feature;
  if (column.use == ColumnUse::kNumeric) {
    for (double x : column.numbers) {
      feature.values.push_back(static_cast<float>((x - encoding.mean) / encoding.deviation));
    }
    return feature;
  }

  feature.one_hot = one_hot;
  if (one_hot) feature.width = encoding.place_of.size();

  std::vector<float> place_of_code;
  for (const std::string& value : column.vocabulary) {
    const auto found = encoding.place_of.find(value);
    place_of_code.push_back(static_cast<float>(
        found == encoding.place_of.end() ? encoding.place_of.size() : found->second));
  }
  for (uint32_t code : column.codes) feature.values.push_back(place_of_code[code]);
  return feature;
}

// The class of a label, or -1.
int64_t ClassOf(const Encoding& encoding, const std::string& label, int64_t classes) {
  if (encoding.labels_are_classes) {
    uint32_t number;
    if (!AsClass(label, &number) || number >= classes) return -1;
    return number;
  }
  const auto found = encoding.place_of.find(label);
  if (found == encoding.place_of.end()) return -1;
  return found->second;
}

absl::StatusOr<std::vector<int64_t>> EncodeLabels(const Encoding& encoding, const Table& table,
                                                  const Column& column, int64_t classes) {
  std::vector<int64_t> labels;
  labels.reserve(column.codes.size());
  for (size_t row = 0; row < column.codes.size(); ++row) {
    const std::string& label = column.vocabulary[column.codes[row]];
    labels.push_back(ClassOf(encoding, label, classes));
    if (labels.back() >= 0) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        table.path, ":", table.lines[row], ": label '", label, "' is not ",
        encoding.labels_are_classes ? absl::StrCat("a class in [0, ", classes, ")")
                                    : std::string("among those of the training data")));
  }
  return labels;
}

absl::StatusOr<std::unique_ptr<Dataset>> MakeDataset(const v1::DataSpec& spec,
                                                     const Encodings& encodings, Table& table) {
  DatasetInfo info;
  info.samples = table.lines.size();
  info.sample_shape = {encodings.features};
  info.label_kind = spec.csv().regression() ? LabelKind::kTargets : LabelKind::kClass;
  info.outputs = spec.csv().regression() ? 1 : encodings.classes;
  std::vector<Feature> features;
  std::vector<int64_t> classes;
  std::vector<float> targets;
  for (const Encoding& encoding : encodings.columns) {
    if (encoding.use == ColumnUse::kUnused) continue;
    const Column* column = Find(table, encoding.name);
    // Without a list of columns, the training file's columns are the features.
    if (column == nullptr || column->use != encoding.use) {
      return absl::InvalidArgumentError(absl::StrCat(table.path, ": no column '", encoding.name,
                                                     "', which the training data has"));
    }
    if (encoding.use != ColumnUse::kLabel) {
      features.push_back(
          Encode(encoding, *column, spec.csv().categories() == v1::DataSpec::Csv::ONE_HOT));
    } else if (column->text) {
      ASSIGN_OR_RETURN(classes, EncodeLabels(encoding, table, *column, encodings.classes));
    } else {
      targets.assign(column->numbers.begin(), column->numbers.end());
    }
  }
  ASSIGN_OR_RETURN(Normalizer normalizer, Normalizer::Create(spec.normalize(), info.sample_shape));
  return std::make_unique<CsvDataset>(std::move(info), std::move(features), std::move(classes),
                                      std::move(targets), std::move(normalizer));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> OpenCsvDataset(const v1::DataSpec& spec, Split split) {
  if (spec.source().path().empty()) {
    return absl::InvalidArgumentError("data.source.path is not set");
  }
  if (split == Split::kEvaluation && spec.evaluation().source().path().empty()) {
    return absl::InvalidArgumentError("data.evaluation.source.path is not set");
  }
  ASSIGN_OR_RETURN(Table training, ReadTable(spec.csv(), spec.source().path(), spec.max_samples()));
  ASSIGN_OR_RETURN(Encodings encodings, Learn(spec, training));
  if (split == Split::kTraining) return MakeDataset(spec, encodings, training);
  ASSIGN_OR_RETURN(Table table,
                   ReadTable(spec.csv(), spec.evaluation().source().path(), /*max_samples=*/0));
  return MakeDataset(spec, encodings, table);
}

}  // namespace sluice
