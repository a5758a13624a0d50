// Texts that have to fit somewhere, or come from somewhere.
#ifndef SLUICE_SERVICES_COMMON_UTF8_H_
#define SLUICE_SERVICES_COMMON_UTF8_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace sluice {

// The text's beginning, of at most so many bytes, without a part of a character at its end. What is
// not UTF-8 is cut anywhere.
inline std::string TruncateUtf8(absl::string_view text, size_t max_bytes) {
  if (text.size() <= max_bytes) return std::string(text);
  constexpr size_t kLongestCharacter = 4;
  const auto continues = [&](size_t i) {
    return (static_cast<unsigned char>(text[i]) & 0xC0U) == 0x80U;
  };
  size_t end = max_bytes;
  while (end > 0 && max_bytes - end < kLongestCharacter && continues(end)) --end;
  return std::string(text.substr(0, continues(end) ? max_bytes : end));
}

// Bytes of the character that begins at `at`; 0: none that is allowed (RFC 3629).
inline size_t Utf8CharacterBytes(absl::string_view text, size_t at) {
  const auto byte = [&](size_t i) {
    return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0U;
  };
  const auto follows = [&](size_t i) { return (byte(i) & 0xC0U) == 0x80U; };
  const unsigned first = byte(0);
  const unsigned second = byte(1);
  if (at >= text.size()) return 0;
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return follows(1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    const bool shortest = first != 0xE0 || second >= 0xA0;
    const bool surrogate = first == 0xED && second >= 0xA0;
    return follows(1) && follows(2) && shortest && !surrogate ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    const bool in_range = (first != 0xF0 || second >= 0x90) && (first != 0xF4 || second < 0x90);
    return follows(1) && follows(2) && follows(3) && in_range ? 4 : 0;
  }
  return 0;
}

inline bool IsUtf8(absl::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const size_t bytes = Utf8CharacterBytes(text, at);
    if (bytes == 0) return false;
    at += bytes;
  }
  return true;
}

// The text with U+FFFD in place of every byte that belongs to no character. What quotes the bytes
// of a file or of another program goes through this: a protobuf message with any other text cannot
// be read by its receiver, and JSON cannot hold it.
inline std::string ToUtf8(absl::string_view text) {
  if (IsUtf8(text)) return std::string(text);
  std::string valid;
  for (size_t at = 0; at < text.size();) {
    const size_t bytes = Utf8CharacterBytes(text, at);
    if (bytes == 0) {
      valid += "\xEF\xBF\xBD";
      ++at;
      continue;
    }
    valid.append(text.data() + at, bytes);
    at += bytes;
  }
  return valid;
}

}  // namespace sluice

#endif  // SLUICE_SERVICES_COMMON_UTF8_H_
