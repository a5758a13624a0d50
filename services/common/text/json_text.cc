#include "services/common/text/json_text.h"

#include "absl/strings/str_cat.h"

namespace sluice {
size_t Utf8Prefix(absl::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const size_t length = FirstCharacter(text.substr(at));
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
