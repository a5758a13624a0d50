// YAML (and so JSON) text as a tree that knows where everything stood.
//
// yaml-cpp's events are used, not its nodes: an alias stays a reference to one node (no text can
// make the tree larger than itself), keys given twice are found, and quoted scalars can be told
// from plain ones.
#ifndef SLUICE_OPERATOR_API_YAML_DOCUMENT_H_
#define SLUICE_OPERATOR_API_YAML_DOCUMENT_H_

#include <cstddef>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "operator/api/problem.h"

namespace sluice::api {

// Deeper nesting is refused; manifests need eight.
constexpr size_t kMaxYamlDepth = 32;
// More nodes than these in one text are refused.
constexpr size_t kMaxYamlNodes = 100000;

struct YamlNode {
  enum class Kind { kNull, kBoolean, kInteger, kNumber, kString, kList, kMap };
  struct Entry {
    std::string key;
    Place key_place;
    const YamlNode* value;
  };

  Kind kind = Kind::kNull;
  Place place;
  std::string text;                    // scalars, as written (without quotes)
  std::vector<const YamlNode*> items;  // kList
  std::vector<Entry> entries;          // kMap; keys are distinct, merge keys ("<<") are merged

  // Null where there is none.
  const Entry* Find(absl::string_view key) const;
  // For messages: "the string \"abc\"", "the number 1.5", "a list", "a map"; long strings are cut.
  std::string Describe() const;
};

// What a plain scalar means, by the rules of YAML 1.1 that Kubernetes' tools use: `yes` and `off`
// are booleans, 010 and 0x10 are integers.
YamlNode::Kind ResolvePlainScalar(absl::string_view text);

class YamlDocument {
 public:
  // Never throws. With problems, `roots()` holds what was read before the first that stops reading.
  static YamlDocument Parse(absl::string_view text);

  YamlDocument(YamlDocument&&) = default;
  YamlDocument& operator=(YamlDocument&&) = default;

  // The documents of the text that are not empty; owned by this.
  const std::vector<const YamlNode*>& roots() const { return roots_; }
  // Syntax errors, keys given twice, things outside of the bounds above.
  const std::vector<Problem>& problems() const { return problems_; }

 private:
  friend class YamlTreeBuilder;
  YamlDocument() = default;

  std::deque<YamlNode> nodes_;
  std::vector<const YamlNode*> roots_;
  std::vector<Problem> problems_;
};

}  // namespace sluice::api

#endif  // SLUICE_OPERATOR_API_YAML_DOCUMENT_H_
