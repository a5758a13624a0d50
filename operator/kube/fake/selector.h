#ifndef SLUICE_OPERATOR_KUBE_FAKE_SELECTOR_H_
#define SLUICE_OPERATOR_KUBE_FAKE_SELECTOR_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "operator/kube/object.h"

namespace sluice::kube {

// Label selectors as in list and watch requests: "a=b,c!=d,e in (f,g),h notin (i),j,!k".
class LabelSelector {
 public:
  static absl::StatusOr<LabelSelector> Parse(absl::string_view text);
  // Empty text: matches everything.
  bool Matches(const std::map<std::string, std::string>& labels) const;

 private:
  enum class Operator { kIn, kNotIn, kExists, kNotExists };
  struct Requirement {
    std::string key;
    Operator op;
    std::vector<std::string> values;
  };
  static absl::StatusOr<Requirement> ParseOne(absl::string_view text);
  std::vector<Requirement> requirements_;
};

// Field selectors: "metadata.name=a,status.phase!=Failed"; dots separate the parts of a field's
// path.
class FieldSelector {
 public:
  static absl::StatusOr<FieldSelector> Parse(absl::string_view text);
  bool Matches(const Json& object) const;

 private:
  struct Requirement {
    std::vector<std::string> path;
    bool equal;
    std::string value;
  };
  std::vector<Requirement> requirements_;
};

}  // namespace sluice::kube

#endif  // SLUICE_OPERATOR_KUBE_FAKE_SELECTOR_H_
