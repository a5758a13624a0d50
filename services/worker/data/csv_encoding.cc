#include "services/worker/data/csv_encoding.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "services/common/arithmetic/crc32c.h"
#include "services/common/arithmetic/splitmix64.h"
#include "services/common/status_macros.h"
#include "services/common/text/utf8.h"
#include "services/worker/data/csv_reader.h"

namespace sluice {
namespace {

constexpr absl::string_view kHeader = "column,use,entry,value\n";
constexpr absl::string_view kMean = "mean";
constexpr absl::string_view kDeviation = "deviation";
constexpr absl::string_view kValue = "value";
constexpr absl::string_view kClasses = "classes";
constexpr absl::string_view kClass = "class";

absl::string_view NameOf(ColumnUse use) {
  switch (use) {
    case ColumnUse::kNumeric:
      return "numeric";
    case ColumnUse::kCategorical:
      return "categorical";
    case ColumnUse::kLabel:
      return "label";
  }
  return "";
}

std::string Quoted(absl::string_view text) {
  return absl::StrCat("\"", absl::StrReplaceAll(text, {{"\"", "\"\""}}), "\"");
}

void AppendRow(absl::string_view column, absl::string_view use, absl::string_view entry,
               absl::string_view value, std::string* out) {
  absl::StrAppend(out, Quoted(column), ",", Quoted(use), ",", Quoted(entry), ",", Quoted(value),
                  "\n");
}

std::string ChecksumRow(absl::string_view text) {
  std::string row;
  AppendRow("", "", "crc32c", absl::StrFormat("%08x", Crc32c(text)), &row);
  return row;
}

constexpr size_t kMaxMessageBytes = 512;

// `what` may quote bytes of the file, in any encoding.
absl::Status Damaged(const std::string& what) {
  return absl::DataLossError(absl::StrCat("is damaged: ", CleanUtf8(what, kMaxMessageBytes)));
}

// Adds a row to the encoding of the last column, or begins the next column.
class Builder {
 public:
  absl::Status Add(const std::vector<std::string>& row) {
    if (row.size() != 4) return Damaged(absl::StrCat("a row of ", row.size(), " fields"));

    if (encoding_.columns.empty() || encoding_.columns.back().name != row[0]) {
      RETURN_IF_ERROR(Begin(row[0], row[1]));
    }
    ColumnEncoding& column = encoding_.columns.back();
    if (NameOf(column.use) != row[1]) return Damaged(absl::StrCat("two uses of '", row[0], "'"));

    const absl::string_view entry = row[2];
    const bool numeric = column.use == ColumnUse::kNumeric;
    const bool label = column.use == ColumnUse::kLabel;

    if (entry.empty() && column.use != ColumnUse::kCategorical) return absl::OkStatus();
    if (entry == kMean && numeric) return Number(row[3], &column.mean);
    if (entry == kDeviation && numeric && column.deviation == 1) {
      column.standardized = true;
      return Number(row[3], &column.deviation);
    }

    if (entry == kClasses && label) {
      if (absl::SimpleAtoi(row[3], &encoding_.classes) && encoding_.classes > 0) return {};
      return Damaged(absl::StrCat("'", row[3], "' is not a number of classes"));
    }

    if (entry == (label ? kClass : kValue) && !numeric) {
      if (values_.insert(row[3]).second) {
        column.values.push_back(row[3]);
        return absl::OkStatus();
      }
      return Damaged(absl::StrCat("column '", row[0], "' has '", row[3], "' twice"));
    }

    return Damaged(absl::StrCat("an entry '", entry, "' of a ", row[1], " column"));
  }

  absl::StatusOr<TableEncoding> Finish() {
    if (labels_ != 1) return Damaged(absl::StrCat(labels_, " columns are labels"));
    for (ColumnEncoding& column : encoding_.columns) {
      if (!(column.deviation > 0) || (column.mean != 0 && !column.standardized)) {
        return Damaged(absl::StrCat("column '", column.name, "' has no deviation above 0"));
      }

      if (column.values.size() > kMaxDistinctValues ||
          (column.use == ColumnUse::kLabel && column.values.size() > encoding_.classes)) {
        return Damaged(absl::StrCat("column '", column.name, "' has too many values"));
      }

      column.SetValues(std::move(column.values));
    }
    return std::move(encoding_);
  }

 private:
  absl::Status Begin(const std::string& name, absl::string_view use) {
    if (!names_.insert(name).second) return Damaged(absl::StrCat("column '", name, "' twice"));

    ColumnEncoding& column = encoding_.columns.emplace_back();
    column.name = name;
    values_.clear();

    for (const ColumnUse each : {ColumnUse::kNumeric, ColumnUse::kCategorical, ColumnUse::kLabel}) {
      if (NameOf(each) != use) continue;
      column.use = each;
      labels_ += each == ColumnUse::kLabel ? 1 : 0;
      return absl::OkStatus();
    }
    return Damaged(absl::StrCat("an unknown use '", use, "'"));
  }

  static absl::Status Number(const std::string& text, double* number) {
    if (absl::SimpleAtod(text, number) && std::isfinite(*number)) return absl::OkStatus();
    return Damaged(absl::StrCat("'", text, "' is not a number"));
  }

  TableEncoding encoding_;
  absl::flat_hash_set<std::string> names_;   // of all columns so far
  absl::flat_hash_set<std::string> values_;  // of the last column
  int labels_ = 0;
};

// The first value that one of the lists has and the other has not, or has elsewhere.
std::string ValuesDifference(const ColumnEncoding& mine, const ColumnEncoding& other) {
  for (const std::string& value : mine.values) {
    if (other.place_of.count(value) == 0) return absl::StrCat("has the new value '", value, "'");
  }
  for (const std::string& value : other.values) {
    if (mine.place_of.count(value) == 0) return absl::StrCat("lacks the value '", value, "'");
  }
  return mine.values == other.values ? "" : "has its values in another order";
}

}  // namespace

void ColumnEncoding::SetValues(std::vector<std::string> all) {
  values = std::move(all);
  place_of.clear();
  place_of.reserve(values.size());
  for (uint32_t i = 0; i < values.size(); ++i) place_of.emplace(values[i], i);
}

absl::StatusOr<std::string> TableEncoding::Serialize() const {
  std::string text(kHeader);
  for (const ColumnEncoding& column : columns) {
    const absl::string_view use = NameOf(column.use);
    const bool label = column.use == ColumnUse::kLabel;
    if (label && classes > 0) AppendRow(column.name, use, kClasses, absl::StrCat(classes), &text);
    for (const std::string& value : column.values) {
      AppendRow(column.name, use, label ? kClass : kValue, value, &text);
      if (text.size() > kMaxEncodingBytes) {
        return absl::ResourceExhaustedError(absl::StrCat(
            "column '", column.name,
            "': the distinct values of the table have more "
            "than ",
            kMaxEncodingBytes >> 20, " MiB: a column with so many is probably not categorical"));
      }
    }

    if (column.standardized) {
      AppendRow(column.name, use, kMean, absl::StrFormat("%.17g", column.mean), &text);
      AppendRow(column.name, use, kDeviation, absl::StrFormat("%.17g", column.deviation), &text);
    } else if (column.use == ColumnUse::kNumeric || (label && classes == 0)) {
      AppendRow(column.name, use, "", "", &text);
    }
  }
  return absl::StrCat(text, ChecksumRow(text));
}

absl::StatusOr<TableEncoding> TableEncoding::Parse(absl::string_view text) {
  if (!absl::StartsWith(text, kHeader)) {
    return Damaged(absl::StrCat("it should begin with ", kHeader.substr(0, kHeader.size() - 1)));
  }

  const size_t end = text.rfind("\"\",\"\",\"crc32c\"");
  if (end == absl::string_view::npos || text.substr(end) != ChecksumRow(text.substr(0, end))) {
    return Damaged("its last row is not the CRC-32C of the rows before it");
  }

  CsvReader reader("", text.substr(kHeader.size(), end - kHeader.size()), ',');
  Builder builder;
  std::vector<std::string> row;
  while (true) {
    ASSIGN_OR_RETURN(const bool more, reader.Next(row), Damaged(std::string(_.message())));
    if (!more) return builder.Finish();
    RETURN_IF_ERROR(builder.Add(row));
  }
}

uint64_t TableEncoding::Hash() const {
  uint64_t hash = classes;
  const auto add = [&](absl::string_view text) { hash = SplitMix64Mix(hash ^ Fnv1a64(text)); };
  for (const ColumnEncoding& column : columns) {
    add(column.name);
    add(NameOf(column.use));
    if (column.standardized) add(absl::StrFormat("%.17g %.17g", column.mean, column.deviation));
    for (const std::string& value : column.values) add(value);
    add(absl::StrCat(column.values.size(), " values"));
  }
  return hash;
}

std::string TableEncoding::DifferenceFrom(const TableEncoding& other) const {
  if (columns.size() != other.columns.size()) {
    return absl::StrCat("there are ", columns.size(), " columns, not ", other.columns.size());
  }
  for (size_t i = 0; i < columns.size(); ++i) {
    const ColumnEncoding& mine = columns[i];
    const ColumnEncoding& theirs = other.columns[i];
    const std::string column = absl::StrCat("column '", mine.name, "' ");

    if (mine.name != theirs.name) {
      return absl::StrCat(column, "is in the place of column '", theirs.name, "'");
    }

    if (mine.use != theirs.use) {
      return absl::StrCat(column, "is ", NameOf(mine.use), ", not ", NameOf(theirs.use));
    }

    if (mine.standardized != theirs.standardized || mine.mean != theirs.mean ||
        mine.deviation != theirs.deviation) {
      return absl::StrCat(column, "has another mean or deviation");
    }

    const std::string values = ValuesDifference(mine, theirs);
    if (!values.empty()) return absl::StrCat(column, values);
  }

  if (classes == other.classes) return "";
  return absl::StrCat("there are ", classes, " classes, not ", other.classes);
}

std::string TableEncoding::ConflictWith(const v1::DataSpec& spec) const {
  const v1::DataSpec::Csv& csv = spec.csv();
  absl::flat_hash_map<std::string, ColumnUse> uses;
  for (const std::string& name : csv.numeric_columns()) uses[name] = ColumnUse::kNumeric;
  for (const std::string& name : csv.categorical_columns()) uses[name] = ColumnUse::kCategorical;
  const bool all = uses.empty();
  uses[csv.label_column()] = ColumnUse::kLabel;

  absl::flat_hash_set<std::string> read;
  for (const ColumnEncoding& column : columns) {
    const std::string name = absl::StrCat("column '", column.name, "' ");
    const auto found = uses.find(column.name);
    read.insert(column.name);
    if (found == uses.end() && !all) {
      return absl::StrCat(name, "was a feature, and data.csv does not list it");
    }
    const ColumnUse use = found == uses.end() ? ColumnUse::kNumeric : found->second;
    if (use != column.use) {
      return absl::StrCat(name, "was ", NameOf(column.use), ", and is ", NameOf(use), " now");
    }
    if (use == ColumnUse::kNumeric && column.standardized != csv.standardize()) {
      return absl::StrCat(name, column.standardized ? "was" : "was not", " standardized");
    }
    if (use == ColumnUse::kLabel && (classes == 0) != csv.regression()) {
      return absl::StrCat(name, classes == 0 ? "was a number" : "was a class");
    }
  }
  for (const auto& [name, use] : uses) {
    if (read.count(name) == 0) return absl::StrCat("column '", name, "' was not read");
  }
  if (classes > 0 && spec.classes() > 0 && spec.classes() != classes) {
    return absl::StrCat("there were ", classes, " classes, and data.classes is ", spec.classes());
  }
  return "";
}

}  // namespace sluice
