// Truncates and cleans UTF-8 texts.
#ifndef SLUICE_SERVICES_COMMON_TEXT_UTF8_H_
#define SLUICE_SERVICES_COMMON_TEXT_UTF8_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace sluice {

// The beginning of the text, at most `max_bytes` long, without part of a character at its end. Text
// that is not UTF-8 is cut anywhere.
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

// Size of the first character in bytes; 0: the text is empty, or does not begin with valid UTF-8
// (RFC 3629: neither overlong, nor a surrogate, nor above U+10FFFF).
inline size_t FirstCharacter(absl::string_view text) {
  if (text.empty()) return 0;
  const auto byte = [&](size_t i) -> unsigned {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U;
  };
  const auto continues = [&](size_t i) { return (byte(i) & 0xC0U) == 0x80U; };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first < 0xE0) return continues(1) ? 2 : 0;
  if (first >= 0xE0 && first < 0xF0) {
    const bool overlong = first == 0xE0 && byte(1) < 0xA0;
    const bool surrogate = first == 0xED && byte(1) >= 0xA0;
    return continues(1) && continues(2) && !overlong && !surrogate ? 3 : 0;
  }
  if (first >= 0xF0 && first < 0xF5) {
    const bool overlong = first == 0xF0 && byte(1) < 0x90;
    const bool above = first == 0xF4 && byte(1) >= 0x90;
    return continues(1) && continues(2) && continues(3) && !overlong && !above ? 4 : 0;
  }
  return 0;
}

// Whether all of the text is valid. Linear in its size.
inline bool IsUtf8(absl::string_view text) {
  while (!text.empty()) {
    const size_t bytes = FirstCharacter(text);
    if (bytes == 0) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

// As TruncateUtf8, with '?' for each byte that is not part of a character. For peers' texts in
// logs, messages and JSON. `max_bytes` counts bytes of the result.
inline std::string CleanUtf8(absl::string_view text, size_t max_bytes) {
  std::string clean;
  while (!text.empty()) {
    const size_t bytes = FirstCharacter(text);
    if (clean.size() + (bytes == 0 ? 1 : bytes) > max_bytes) break;
    if (bytes == 0) {
      clean += '?';
    } else {
      clean.append(text.data(), bytes);
    }
    text.remove_prefix(bytes == 0 ? 1 : bytes);
  }
  return clean;
}

}  // namespace sluice

#endif  // SLUICE_SERVICES_COMMON_TEXT_UTF8_H_
