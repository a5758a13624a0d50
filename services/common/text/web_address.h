#ifndef SLUICE_SERVICES_COMMON_TEXT_WEB_ADDRESS_H_
#define SLUICE_SERVICES_COMMON_TEXT_WEB_ADDRESS_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice {

// An address that a manifest may have in place of a file's path: where to download the file, and
// its checksum, as in https://example.org/data/train.txt.gz#sha256=<64 hexadecimal digits>.
struct WebAddress {
  std::string url;        // without the # and what follows it
  std::string sha256;     // in lower case
  std::string file_name;  // the last part of the URL's path, of letters, digits and -_.+ only
};

// Whether a manifest's path is meant as an address, well-formed or not. It is if it contains "://",
// so that a misspelled address is refused and not looked for as a file.
bool IsWebAddress(absl::string_view path);

// INVALID_ARGUMENT, with the form of an address. The scheme is http or https; the checksum is
// required.
absl::StatusOr<WebAddress> ParseWebAddress(absl::string_view text);

}  // namespace sluice

#endif  // SLUICE_SERVICES_COMMON_TEXT_WEB_ADDRESS_H_
