// YAML (and therefore JSON) text as JSON values, with a table of what the text has for each of
// them: the place, and a scalar as written.
//
// It uses yaml-cpp's events, not its nodes: aliases repeat a bounded part of the text, duplicate
// keys are found, and quoted scalars differ from plain ones.
#ifndef SLUICE_SERVICES_MANIFEST_YAML_DOCUMENT_H_
#define SLUICE_SERVICES_MANIFEST_YAML_DOCUMENT_H_

#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "services/manifest/problem.h"

namespace sluice::api {

// Deeper nesting is rejected; manifests need eight levels.
constexpr size_t kMaxYamlDepth = 32;
// A text with more values than this is rejected.
constexpr size_t kMaxYamlValues = 100000;
// So is one whose aliases repeat more than this: values, and characters of names and scalars.
constexpr size_t kMaxYamlRepeated = 1 << 18;

// What a text has for a value.
struct YamlToken {
  Place name;        // of its name in a map; otherwise as `place`
  Place place;       // of the value; for an alias, of what it repeats
  std::string text;  // scalars, as written (without quotes)
  size_t node = 0;   // of a list or map: its number in YamlTokens
};

// The tokens of the values in lists and maps.
class YamlTokens {
 public:
  // The token of the value `name` of a map, or of the item "[0]" of a list. A value that is not in
  // the text has the place of what would contain it.
  YamlToken Find(const YamlToken& parent, const std::string& name) const;

 private:
  friend class YamlTreeBuilder;

  std::map<std::pair<size_t, std::string>, YamlToken> tokens_;
};

struct YamlValue {
  // A number is a double, or NaN if it is not written in decimal: the token has its digits. Merge
  // keys ("<<") are merged.
  nlohmann::json json;
  YamlToken token;
};

enum class YamlKind { kNull, kBoolean, kInteger, kNumber, kString };

// The meaning of a plain scalar by the rules of YAML 1.1, which Kubernetes' tools use: `yes` and
// `off` are booleans, 010 and 0x10 are integers.
YamlKind ResolvePlainScalar(absl::string_view text);

struct YamlDocument {
  // Never throws. With problems, `roots` has the documents before the first problem that stopped
  // reading.
  static YamlDocument Parse(absl::string_view text);

  std::vector<YamlValue> roots;  // the non-empty documents of the text
  YamlTokens tokens;
  // Syntax errors, duplicate keys, and values outside the bounds above.
  std::vector<Problem> problems;
};

}  // namespace sluice::api

#endif  // SLUICE_SERVICES_MANIFEST_YAML_DOCUMENT_H_
