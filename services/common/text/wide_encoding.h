// Recognizes texts that are not in UTF-8, but in an encoding of two or four bytes per character.
#ifndef SLUICE_SERVICES_COMMON_TEXT_WIDE_ENCODING_H_
#define SLUICE_SERVICES_COMMON_TEXT_WIDE_ENCODING_H_

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace sluice {

// "UTF-16" or "UTF-32", if the text begins with its byte order mark, or with ASCII characters in
// it; otherwise empty. Editors and spreadsheets on Windows save such files, and a parser's error
// about them ("invalid character") does not tell the user what to do.
inline absl::string_view WideEncoding(absl::string_view text) {
  using absl::string_view;
  const auto begins = [&](string_view mark) { return text.substr(0, mark.size()) == mark; };
  if (begins(string_view("\xFF\xFE\0\0", 4)) || begins(string_view("\0\0\xFE\xFF", 4))) {
    return "UTF-32";
  }
  if (begins("\xFF\xFE") || begins("\xFE\xFF")) return "UTF-16";

  if (text.size() < 4) return "";
  std::string zeros;
  for (size_t i = 0; i < 4; ++i) zeros += text[i] == '\0' ? '0' : 'x';
  if (zeros == "x000" || zeros == "000x") return "UTF-32";
  return zeros == "x0x0" || zeros == "0x0x" ? "UTF-16" : "";
}

// "is UTF-16: should be UTF-8; …", for a text that WideEncoding recognizes. Follows the file's
// name.
inline std::string WideEncodingMessage(absl::string_view text) {
  const absl::string_view encoding = WideEncoding(text);
  return absl::StrCat("is ", encoding,
                      ": should be UTF-8; save it as UTF-8, or convert it with `iconv -f ",
                      encoding, " -t UTF-8`");
}

}  // namespace sluice

#endif  // SLUICE_SERVICES_COMMON_TEXT_WIDE_ENCODING_H_
