// A condition on the fields of a manifest's object. It is evaluated here, and printed as CEL for
// API servers, so each rule of the manifest (field_table.h) is written once:
//
//   Self("type") != "Builtin" || Has("name")     self.type != 'Builtin' || has(self.name)
//
// A field that is missing, and the result of an operator on values of other types than it takes,
// is null. A comparison with null is false, but for `!=`; so is null as a condition. Nothing
// throws, and both sides of `||` and `&&` are evaluated. CEL reports an error where a field is
// missing, so a rule asks Has() before it reads a field that may be.
#ifndef SLUICE_SERVICES_MANIFEST_EXPRESSION_H_
#define SLUICE_SERVICES_MANIFEST_EXPRESSION_H_

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace sluice::api {

class Expr {
 public:
  // How tightly the outermost operator binds.
  enum class Rank { kChoice, kOr, kAnd, kRelation, kSum, kProduct, kUnary, kAtom };
  // The values of names: `self`, and the variable of the enclosing All().
  struct Scope {
    const nlohmann::json& self;
    const nlohmann::json& item;
  };
  using Evaluate = std::function<nlohmann::json(const Scope&)>;

  // Literals; implicit, because they are operands.
  Expr(const char* text);         // NOLINT(google-explicit-constructor)
  Expr(const std::string& text);  // NOLINT(google-explicit-constructor)
  Expr(int number);               // NOLINT(google-explicit-constructor)
  Expr(double number);            // NOLINT(google-explicit-constructor)
  // For the operators and functions below.
  Expr(Evaluate evaluate, std::string cel, Rank rank);

  // Whether the condition holds for the object `self`.
  bool operator()(const nlohmann::json& self) const;
  nlohmann::json Value(const Scope& scope) const { return evaluate_(scope); }
  const std::string& cel() const { return cel_; }

  Rank rank() const { return rank_; }
  // The CEL text, in parentheses unless it binds at least as tightly as `least`.
  std::string Within(Rank least) const;

 private:
  Evaluate evaluate_;
  std::string cel_;
  Rank rank_;
};

// A field of `self`, with dots: Self("source.path"); and whether it is set.
Expr Self(absl::string_view path);
Expr Has(absl::string_view path);
// The variable of All() or Each(), a field of it ("x.a"), or an item of it ("x[0]"); and whether a
// field of it ("a", "a.b") is set.
Expr Item(absl::string_view path);
Expr ItemHas(absl::string_view variable, absl::string_view field);

Expr operator!(const Expr& a);
Expr operator||(const Expr& a, const Expr& b);
Expr operator&&(const Expr& a, const Expr& b);
Expr operator==(const Expr& a, const Expr& b);
Expr operator!=(const Expr& a, const Expr& b);
// Comparisons of numbers.
Expr operator<=(const Expr& a, const Expr& b);
Expr operator>=(const Expr& a, const Expr& b);
Expr operator>(const Expr& a, const Expr& b);
// `+` takes integers or two strings, `*` numbers, `/` and `%` integers.
Expr operator+(const Expr& a, const Expr& b);
Expr operator*(const Expr& a, const Expr& b);
Expr operator/(const Expr& a, const Expr& b);
Expr operator%(const Expr& a, const Expr& b);
Expr If(const Expr& condition, const Expr& then, const Expr& otherwise);

// Whether `value` is one of the literals; whether it is an item of the list, or a key of the map.
Expr IsOneOf(const Expr& value, const std::vector<Expr>& literals);
Expr IsIn(const Expr& value, const Expr& list);
// The size of a list or map.
Expr Size(const Expr& list);
// Whether the condition holds for each item of the list; the condition calls the item `variable`.
Expr All(absl::string_view variable, const Expr& list, const Expr& condition);
// The list of the values for each item, which `value` calls `variable`.
Expr Each(absl::string_view variable, const Expr& list, const Expr& value);
// Whether no number of the list is less than the one before it.
Expr IsSorted(const Expr& list);
// Whether a number has no fraction. `number` is at most 2^53 in size.
Expr IsWhole(const Expr& number);

// Whether two lists of strings have no item in common. API servers do not look where it would take
// more than kMaxComparisons: they stop a rule that costs more than a million, a unit for each.
inline constexpr int kMaxComparisons = 500000;
Expr Disjoint(const Expr& a, const Expr& b);

// Conditions on strings. `regex` is for API servers; `matches` means the same here.
Expr HasPart(const Expr& text, const Expr& part);
Expr HasPrefix(const Expr& text, const Expr& prefix);
Expr Matches(const Expr& text, const std::string& regex, bool (*matches)(absl::string_view));

}  // namespace sluice::api

#endif  // SLUICE_SERVICES_MANIFEST_EXPRESSION_H_
