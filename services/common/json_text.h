// What a text must be before a JSON parser sees it.
#ifndef SLUICE_SERVICES_COMMON_JSON_TEXT_H_
#define SLUICE_SERVICES_COMMON_JSON_TEXT_H_

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "services/common/utf8.h"

namespace sluice {

// Where `text` stops being UTF-8 (RFC 3629: shortest forms, no surrogates); its size if nowhere.
size_t Utf8Prefix(absl::string_view text);

// For objects of a Kubernetes API server and files of Sluice's own: what an API server takes at
// most (10,000), and what lists and watches add around it. A value of this depth needs less than 4
// MiB of a thread's stack.
inline constexpr size_t kMaxObjectDepth = 10'010;

// INVALID_ARGUMENT if the text is not UTF-8, or if its arrays and objects are nested deeper than
// `max_depth`: parsers, and what walks through their trees, recurse. Does not look whether it is
// JSON otherwise. Linear in the text, without memory of its own.
absl::Status CheckJsonText(absl::string_view text, size_t max_depth);

}  // namespace sluice

#endif  // SLUICE_SERVICES_COMMON_JSON_TEXT_H_
