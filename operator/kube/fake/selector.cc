#include "operator/kube/fake/selector.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "services/common/status_macros.h"

namespace sluice::kube {
namespace {

// Splits at commas outside parentheses.
std::vector<absl::string_view> SplitRequirements(absl::string_view text) {
  std::vector<absl::string_view> parts;
  size_t start = 0;
  bool inside = false;
  for (size_t i = 0; i <= text.size(); ++i) {
    if (i == text.size() || (text[i] == ',' && !inside)) {
      const absl::string_view part = absl::StripAsciiWhitespace(text.substr(start, i - start));
      if (!part.empty()) parts.push_back(part);
      start = i + 1;
    } else if (text[i] == '(' || text[i] == ')') {
      inside = text[i] == '(';
    }
  }
  return parts;
}

std::string Trimmed(absl::string_view text) {
  return std::string(absl::StripAsciiWhitespace(text));
}

// "key=value", "key==value", "key!=value"; false if it is none of them.
bool ParseEquality(absl::string_view text, std::string* key, bool* equal, std::string* value) {
  size_t at = text.find("!=");
  *equal = at == absl::string_view::npos;
  if (*equal) at = text.find('=');
  if (at == absl::string_view::npos) return false;
  *key = Trimmed(text.substr(0, at));
  absl::string_view rest = text.substr(at + (*equal ? 1 : 2));
  if (*equal) absl::ConsumePrefix(&rest, "=");
  *value = Trimmed(rest);
  return !key->empty();
}

}  // namespace

absl::StatusOr<LabelSelector::Requirement> LabelSelector::ParseOne(absl::string_view text) {
  Requirement requirement;
  const size_t open = text.find('(');
  if (open != absl::string_view::npos) {
    const std::vector<absl::string_view> head =
        absl::StrSplit(text.substr(0, open), absl::ByAnyChar(" \t"), absl::SkipEmpty());
    if (head.size() != 2 || (head[1] != "in" && head[1] != "notin") || !absl::EndsWith(text, ")")) {
      return absl::InvalidArgumentError(absl::StrCat("not a label selector: \"", text, "\""));
    }
    requirement.key = std::string(head[0]);
    requirement.op = head[1] == "in" ? Operator::kIn : Operator::kNotIn;
    for (absl::string_view value :
         absl::StrSplit(text.substr(open + 1, text.size() - open - 2), ',')) {
      requirement.values.push_back(Trimmed(value));
    }
    return requirement;
  }
  bool equal = false;
  std::string value;
  if (ParseEquality(text, &requirement.key, &equal, &value)) {
    requirement.op = equal ? Operator::kIn : Operator::kNotIn;
    requirement.values = {value};
    return requirement;
  }
  requirement.op = absl::ConsumePrefix(&text, "!") ? Operator::kNotExists : Operator::kExists;
  requirement.key = Trimmed(text);
  if (requirement.key.empty() || absl::StrContains(requirement.key, " ") ||
      absl::StrContains(requirement.key, "=")) {
    return absl::InvalidArgumentError(absl::StrCat("not a label selector: \"", text, "\""));
  }
  return requirement;
}

absl::StatusOr<LabelSelector> LabelSelector::Parse(absl::string_view text) {
  LabelSelector selector;
  for (absl::string_view part : SplitRequirements(text)) {
    ASSIGN_OR_RETURN(Requirement requirement, ParseOne(part));
    selector.requirements_.push_back(std::move(requirement));
  }
  return selector;
}

bool LabelSelector::Matches(const std::map<std::string, std::string>& labels) const {
  return std::all_of(requirements_.begin(), requirements_.end(),
                     [&labels](const Requirement& requirement) {
                       const auto label = labels.find(requirement.key);
                       const bool exists = label != labels.end();
                       const bool listed =
                           exists && std::find(requirement.values.begin(), requirement.values.end(),
                                               label->second) != requirement.values.end();
                       switch (requirement.op) {
                         case Operator::kIn:
                           return listed;
                         case Operator::kNotIn:
                           return !listed;
                         case Operator::kExists:
                           return exists;
                         case Operator::kNotExists:
                           return !exists;
                       }
                       return false;
                     });
}

absl::StatusOr<FieldSelector> FieldSelector::Parse(absl::string_view text) {
  FieldSelector selector;
  for (absl::string_view part : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    Requirement requirement;
    std::string key;
    if (!ParseEquality(part, &key, &requirement.equal, &requirement.value)) {
      return absl::InvalidArgumentError(absl::StrCat("not a field selector: \"", part, "\""));
    }
    requirement.path = absl::StrSplit(key, '.');
    selector.requirements_.push_back(std::move(requirement));
  }
  return selector;
}

bool FieldSelector::Matches(const Json& object) const {
  return std::all_of(
      requirements_.begin(), requirements_.end(), [&object](const Requirement& requirement) {
        const Json* at = &object;
        for (const std::string& key : requirement.path) {
          at = at == nullptr ? nullptr : Find(*at, {key});
        }
        const std::string value = at != nullptr && at->is_string() ? at->get<std::string>() : "";
        return (value == requirement.value) == requirement.equal;
      });
}

}  // namespace sluice::kube
