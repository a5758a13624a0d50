// The words that a language model knows, and how text is divided into them.
#ifndef SLUICE_SERVICES_WORKER_DATA_VOCABULARY_H_
#define SLUICE_SERVICES_WORKER_DATA_VOCABULARY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "services/common/status_macros.h"

namespace sluice {

// Words that are always known, and their numbers.
inline constexpr absl::string_view kUnknownWord = "<unk>";
inline constexpr absl::string_view kEndOfLine = "<eos>";
inline constexpr int32_t kUnknownToken = 0;
inline constexpr int32_t kEndOfLineToken = 1;

// Calls visit(word) for each token of a text, in order: text between ASCII white space is a word,
// and each line ends with `<eos>`, the last line with or without a newline after it. Nothing else
// is changed: case, punctuation and white space beyond ASCII stay part of words. A byte order mark
// at the start is skipped.
//
// InvalidArgument with the line (from 1) if the text is not UTF-8, or contains a zero byte; the
// words before have been visited.
template <typename Visitor>
absl::Status VisitWords(absl::string_view text, const Visitor& visit);

// Immutable; any threads.
class Vocabulary {
 public:
  // `<unk>`, `<eos>` and the most frequent words of a text, `max_size` at most in all; equally
  // frequent words are in byte order. InvalidArgument if `text` is not valid, is empty, or has no
  // word; or if max_size is below 3.
  static absl::StatusOr<Vocabulary> Learn(absl::string_view text, uint64_t max_size);

  // Parses a file of words, one on each line, in the order of their numbers. `<unk>` and `<eos>`
  // must be the first two; a byte order mark before them is skipped. InvalidArgument names the
  // line.
  static absl::StatusOr<Vocabulary> Parse(absl::string_view content);

  // The format of Parse.
  std::string Serialize() const;

  uint64_t size() const { return words_.size(); }
  const std::vector<std::string>& words() const { return words_; }

  // kUnknownToken for an unknown word.
  int32_t TokenOf(absl::string_view word) const;

  // The numbers of a text's tokens. Errors as for VisitWords.
  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text) const;

 private:
  explicit Vocabulary(std::vector<std::string> words);

  std::vector<std::string> words_;
  absl::flat_hash_map<std::string, int32_t> tokens_;
};

// ---- implementation

inline constexpr absl::string_view kByteOrderMark = "\xEF\xBB\xBF";

// The length of the longest prefix that is UTF-8 without zero bytes.
size_t ValidTextPrefix(absl::string_view text);

// InvalidArgument naming the line where the text becomes invalid; OK if it is valid.
absl::Status CheckText(absl::string_view text);

template <typename Visitor>
absl::Status VisitWords(absl::string_view text, const Visitor& visit) {
  RETURN_IF_ERROR(CheckText(text));
  if (text.substr(0, kByteOrderMark.size()) == kByteOrderMark) {
    text.remove_prefix(kByteOrderMark.size());
  }
  const auto is_space = [](char c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\v' || c == '\f';
  };
  size_t begin = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool newline = text[i] == '\n';
    if (!newline && !is_space(text[i])) continue;
    if (i > begin) visit(text.substr(begin, i - begin));
    if (newline) visit(kEndOfLine);
    begin = i + 1;
  }
  if (begin < text.size()) visit(text.substr(begin));
  if (!text.empty() && text.back() != '\n') visit(kEndOfLine);
  return absl::OkStatus();
}

}  // namespace sluice

#endif  // SLUICE_SERVICES_WORKER_DATA_VOCABULARY_H_
