#ifndef SLUICE_SERVICES_COMMON_WEB_ADDRESS_H_
#define SLUICE_SERVICES_COMMON_WEB_ADDRESS_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice {

// What a manifest may say in place of a file's path: where the file is downloaded from, and what it
// must be, as in https://example.org/data/train.txt.gz#sha256=<64 hexadecimal digits>.
struct WebAddress {
  std::string url;        // without what stands behind the #
  std::string sha256;     // in lower case
  std::string file_name;  // the last part of the URL's path, of letters, digits and -_.+ only
};

// Whether a path of a manifest is meant as an address, well-formed or not.
bool IsWebAddress(absl::string_view path);

// InvalidArgument says what an address looks like.
absl::StatusOr<WebAddress> ParseWebAddress(absl::string_view text);

}  // namespace sluice

#endif  // SLUICE_SERVICES_COMMON_WEB_ADDRESS_H_
