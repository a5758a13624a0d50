// Checks of a text before a JSON parser reads it.
#ifndef SLUICE_SERVICES_COMMON_TEXT_JSON_TEXT_H_
#define SLUICE_SERVICES_COMMON_TEXT_JSON_TEXT_H_

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "services/common/text/utf8.h"

namespace sluice {

// The position where `text` stops being UTF-8 (RFC 3629: shortest forms, no surrogates); its size
// if it does not.
size_t Utf8Prefix(absl::string_view text);

// For objects of a Kubernetes API server and Sluice's own files: the depth that an API server
// accepts (10,000), plus the levels that lists and watches add. A value of this depth needs less
// than 4 MiB of a thread's stack.
inline constexpr size_t kMaxObjectDepth = 10'010;

// INVALID_ARGUMENT if the text is not UTF-8, or if its arrays and objects are nested deeper than
// `max_depth`: parsers, and code that walks their trees, recurse. Does not check otherwise whether
// it is JSON. Linear in the text, without allocation.
absl::Status CheckJsonText(absl::string_view text, size_t max_depth);

}  // namespace sluice

#endif  // SLUICE_SERVICES_COMMON_TEXT_JSON_TEXT_H_
