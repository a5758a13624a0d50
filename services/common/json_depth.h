// How deep a JSON text nests: parsers that keep a stack of their own take any depth, and what copies,
// compares or prints the value recurses.
#ifndef SLUICE_SERVICES_COMMON_JSON_DEPTH_H_
#define SLUICE_SERVICES_COMMON_JSON_DEPTH_H_

#include <algorithm>
#include <cstddef>

#include "absl/strings/string_view.h"

namespace sluice {

// What an API server takes at most (10,000), and what its lists and watches add around it. Values of
// this depth need less than 4 MiB of a thread's stack.
inline constexpr size_t kMaxJsonDepth = 10'010;

// The most lists and objects that are open at one place. Of a text that is not JSON: some number.
inline size_t JsonDepth(absl::string_view text) {
  size_t depth = 0;
  size_t deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if ((c == ']' || c == '}') && depth > 0) {
      --depth;
    }
  }
  return deepest;
}

}  // namespace sluice

#endif  // SLUICE_SERVICES_COMMON_JSON_DEPTH_H_
