// YAML (and therefore JSON) text as a tree with the place of every node.
//
// It uses yaml-cpp's events, not its nodes: an alias stays a reference to one node (no text can
// make the tree larger than itself), duplicate keys are found, and quoted scalars differ from plain
// ones.
#ifndef SLUICE_SERVICES_MANIFEST_YAML_DOCUMENT_H_
#define SLUICE_SERVICES_MANIFEST_YAML_DOCUMENT_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "services/manifest/problem.h"

namespace sluice::api {

// Deeper nesting is rejected; manifests need eight levels.
constexpr size_t kMaxYamlDepth = 32;
// A text with more nodes than this is rejected.
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

  // Null if there is none.
  const Entry* Find(absl::string_view key) const;
  // For messages: "the string \"abc\"", "the number 1.5", "a list", "a map"; long strings are
  // truncated.
  std::string Describe() const;
};

// The meaning of a plain scalar by the rules of YAML 1.1, which Kubernetes' tools use: `yes` and
// `off` are booleans, 010 and 0x10 are integers.
YamlNode::Kind ResolvePlainScalar(absl::string_view text);

class YamlDocument {
 public:
  // Never throws. With problems, `roots()` has the nodes before the first problem that stopped
  // reading.
  static YamlDocument Parse(absl::string_view text);

  YamlDocument(YamlDocument&&) = default;
  YamlDocument& operator=(YamlDocument&&) = default;

  // The non-empty documents of the text; owned by this.
  const std::vector<const YamlNode*>& roots() const { return roots_; }
  // Syntax errors, duplicate keys, and values outside the bounds above.
  const std::vector<Problem>& problems() const { return problems_; }

  // A copy of the tree in which a field ("spec.worker.replicas") is this number; owned by this.
  // Aliases of what contains the field keep their value.
  const YamlNode* WithNumber(const YamlNode& tree, absl::string_view field, uint64_t value);

 private:
  friend class YamlTreeBuilder;
  YamlDocument() = default;

  std::deque<YamlNode> nodes_;
  std::vector<const YamlNode*> roots_;
  std::vector<Problem> problems_;
};

}  // namespace sluice::api

#endif  // SLUICE_SERVICES_MANIFEST_YAML_DOCUMENT_H_
