#include "services/worker/data/vocabulary.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "services/common/status_macros.h"
#include "services/common/text/utf8.h"

namespace sluice {
size_t ValidTextPrefix(absl::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const size_t size = FirstCharacter(text.substr(at));
    if (size == 0 || text[at] == '\0') break;
    at += size;
  }
  return at;
}

absl::Status CheckText(absl::string_view text) {
  const size_t valid = ValidTextPrefix(text);
  if (valid == text.size()) return absl::OkStatus();
  const auto line = std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(valid), '\n');
  return absl::InvalidArgumentError(
      absl::StrCat("line ", line + 1, " is not text: byte ", valid, " (0x",
                   absl::BytesToHexString(text.substr(valid, 1)),
                   ") is not UTF-8; should be a text file in UTF-8, plain or compressed by gzip"));
}

Vocabulary::Vocabulary(std::vector<std::string> words) : words_(std::move(words)) {
  tokens_.reserve(words_.size());
  for (size_t i = 0; i < words_.size(); ++i) tokens_.emplace(words_[i], static_cast<int32_t>(i));
}

absl::StatusOr<Vocabulary> Vocabulary::Learn(absl::string_view text, uint64_t max_size) {
  if (max_size < 3) {
    return absl::InvalidArgumentError(absl::StrCat("data.text.vocabularySize is ", max_size,
                                                   ": should be at least 3, <unk>, <eos> and one"));
  }
  if (text.empty()) return absl::InvalidArgumentError("is empty: should be a text");

  absl::flat_hash_map<absl::string_view, uint64_t> counts;
  RETURN_IF_ERROR(VisitWords(text, [&](absl::string_view word) { ++counts[word]; }));

  counts.erase(kUnknownWord);
  counts.erase(kEndOfLine);
  if (counts.empty()) {
    return absl::InvalidArgumentError("has no words: should be a text, words between white space");
  }

  std::vector<std::pair<absl::string_view, uint64_t>> ordered(counts.begin(), counts.end());
  std::sort(ordered.begin(), ordered.end(), [](const auto& a, const auto& b) {
    return a.second != b.second ? a.second > b.second : a.first < b.first;
  });
  if (ordered.size() > max_size - 2) ordered.resize(max_size - 2);

  std::vector<std::string> words = {std::string(kUnknownWord), std::string(kEndOfLine)};
  for (const auto& [word, count] : ordered) words.emplace_back(word);
  return Vocabulary(std::move(words));
}

absl::StatusOr<Vocabulary> Vocabulary::Parse(absl::string_view content) {
  RETURN_IF_ERROR(CheckText(content));
  content = absl::StripPrefix(content, kByteOrderMark);
  std::vector<std::string> words =
      absl::StrSplit(absl::StripTrailingAsciiWhitespace(content), '\n');
  if (words.size() < 3 || absl::StripAsciiWhitespace(words[0]) != kUnknownWord ||
      absl::StripAsciiWhitespace(words[1]) != kEndOfLine) {
    return absl::InvalidArgumentError(
        absl::StrCat("is not a vocabulary: should hold one word on each line, first ", kUnknownWord,
                     ", then ", kEndOfLine, ", then at least one"));
  }

  absl::flat_hash_map<std::string, size_t> lines;
  for (size_t i = 0; i < words.size(); ++i) {
    words[i] = std::string(absl::StripAsciiWhitespace(words[i]));
    const auto is_space = [](char c) { return absl::ascii_isspace(c); };
    if (words[i].empty() || std::any_of(words[i].begin(), words[i].end(), is_space)) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", i + 1, " should hold one word, but holds '", words[i], "'"));
    }
    const auto [first, fresh] = lines.emplace(words[i], i + 1);
    if (!fresh) {
      return absl::InvalidArgumentError(absl::StrCat("line ", i + 1, " repeats the word '",
                                                     words[i], "' of line ", first->second));
    }
  }

  return Vocabulary(std::move(words));
}

std::string Vocabulary::Serialize() const {
  return absl::StrCat(absl::StrJoin(words_, "\n"), "\n");
}

int32_t Vocabulary::TokenOf(absl::string_view word) const {
  const auto found = tokens_.find(word);
  return found == tokens_.end() ? kUnknownToken : found->second;
}

absl::StatusOr<std::vector<int32_t>> Vocabulary::Encode(absl::string_view text) const {
  std::vector<int32_t> tokens;
  RETURN_IF_ERROR(
      VisitWords(text, [&](absl::string_view word) { tokens.push_back(TokenOf(word)); }));
  return tokens;
}

}  // namespace sluice
