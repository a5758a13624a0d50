// Texts that have to fit somewhere.
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

}  // namespace sluice

#endif  // SLUICE_SERVICES_COMMON_UTF8_H_
