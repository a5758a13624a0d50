// Splits text into records and fields: RFC 4180, with any one-character delimiter.
#ifndef SLUICE_SERVICES_WORKER_DATA_CSV_READER_H_
#define SLUICE_SERVICES_WORKER_DATA_CSV_READER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice {

// Fields may be quoted ("" is a quote within; delimiters and line ends are then text). Spaces
// around unquoted fields, empty lines and a byte order mark are dropped. Lines end with \n or \r\n.
class CsvReader {
 public:
  // `text` must outlive the reader; messages contain `name`.
  CsvReader(std::string name, absl::string_view text, char delimiter);

  // Reads the next record into `fields`, whose strings are reused. False at the end.
  // InvalidArgument, "name:line: ...", if a quote is not closed or text follows a closing quote.
  absl::StatusOr<bool> Next(std::vector<std::string>& fields);

  // The line on which the record last read begins, from 1.
  uint64_t line() const { return record_line_; }

  // "name:line", for messages.
  std::string Place() const;

 private:
  // Reads one field into `field`, up to and without the character that ends it.
  absl::Status ReadField(std::string& field);
  absl::Status ReadQuoted(std::string& field);
  bool AtLineEnd() const { return rest_.empty() || rest_[0] == '\n' || rest_[0] == '\r'; }
  void SkipLineEnd();
  void SkipSpaces();

  const std::string name_;
  absl::string_view rest_;
  const char delimiter_;
  uint64_t line_ = 1;  // of the first character of rest_
  uint64_t record_line_ = 0;
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_WORKER_DATA_CSV_READER_H_
