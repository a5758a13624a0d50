#include "services/worker/data/csv_reader.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "services/common/status_macros.h"

namespace sluice {

CsvReader::CsvReader(std::string name, absl::string_view text, char delimiter)
    : name_(std::move(name)),
      rest_(absl::StripPrefix(text, "\xEF\xBB\xBF")),
      delimiter_(delimiter) {}

std::string CsvReader::Place() const { return absl::StrCat(name_, ":", record_line_); }

void CsvReader::SkipLineEnd() {
  if (!rest_.empty() && rest_[0] == '\r') rest_.remove_prefix(1);
  if (!rest_.empty() && rest_[0] == '\n') rest_.remove_prefix(1);
  ++line_;
}

void CsvReader::SkipSpaces() {
  // The delimiter may be a tab or a space.
  while (!rest_.empty() && (rest_[0] == ' ' || rest_[0] == '\t') && rest_[0] != delimiter_) {
    rest_.remove_prefix(1);
  }
}

absl::StatusOr<bool> CsvReader::Next(std::vector<std::string>& fields) {
  while (!rest_.empty()) {
    SkipSpaces();
    if (rest_.empty() || !AtLineEnd()) break;
    SkipLineEnd();
  }
  if (rest_.empty()) return false;

  record_line_ = line_;
  size_t count = 0;
  while (true) {
    if (fields.size() == count) fields.emplace_back();
    RETURN_IF_ERROR(ReadField(fields[count]));
    ++count;
    if (AtLineEnd()) break;
    rest_.remove_prefix(1);  // the delimiter
  }

  fields.resize(count);
  SkipLineEnd();
  return true;
}

absl::Status CsvReader::ReadField(std::string& field) {
  field.clear();
  SkipSpaces();
  if (!rest_.empty() && rest_[0] == '"') return ReadQuoted(field);

  size_t end = 0;
  while (end < rest_.size() && rest_[end] != delimiter_ && rest_[end] != '\n' &&
         rest_[end] != '\r') {
    ++end;
  }

  absl::string_view text = rest_.substr(0, end);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  field.assign(text.data(), text.size());
  rest_.remove_prefix(end);
  return absl::OkStatus();
}

absl::Status CsvReader::ReadQuoted(std::string& field) {
  rest_.remove_prefix(1);
  while (true) {
    const size_t quote = rest_.find('"');
    if (quote == absl::string_view::npos) {
      return absl::InvalidArgumentError(absl::StrCat(Place(), ": a quoted field is not closed"));
    }
    const absl::string_view text = rest_.substr(0, quote);
    field.append(text.data(), text.size());
    line_ += std::count(text.begin(), text.end(), '\n');
    rest_.remove_prefix(quote + 1);
    if (rest_.empty() || rest_[0] != '"') break;
    field.push_back('"');
    rest_.remove_prefix(1);
  }

  SkipSpaces();
  if (AtLineEnd() || rest_[0] == delimiter_) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(Place(), ": text follows the closing quote of a field"));
}

}  // namespace sluice
