#include "services/common/json_text.h"

#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

// Bytes of the character at the text's beginning; 0: it is none.
size_t CharacterLength(absl::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80U) return 1;
  // Shortest forms only: C0 and C1 begin longer ones of what has one byte.
  const size_t length = first >= 0xC2U && first < 0xE0U   ? 2
                        : first >= 0xE0U && first < 0xF0U ? 3
                        : first >= 0xF0U && first < 0xF5U ? 4
                                                          : 0;
  if (length == 0 || length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0U) != 0x80U) return 0;
  }
  const unsigned char second = byte(1);
  const bool valid = !(first == 0xE0U && second < 0xA0U) && !(first == 0xEDU && second >= 0xA0U) &&
                     !(first == 0xF0U && second < 0x90U) && !(first == 0xF4U && second >= 0x90U);
  return valid ? length : 0;
}

}  // namespace

size_t Utf8Prefix(absl::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const size_t length = CharacterLength(text.substr(at));
    if (length == 0) return at;
    at += length;
  }
  return at;
}

absl::Status CheckJsonText(absl::string_view text, size_t max_depth) {
  if (const size_t valid = Utf8Prefix(text); valid < text.size()) {
    return absl::InvalidArgumentError(absl::StrCat("byte ", valid, " is not UTF-8"));
  }
  size_t depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > max_depth) {
        return absl::InvalidArgumentError(
            absl::StrCat("its lists and objects are nested deeper than ", max_depth));
      }
    } else if ((c == ']' || c == '}') && depth > 0) {
      --depth;
    }
  }
  return absl::OkStatus();
}

}  // namespace sluice
