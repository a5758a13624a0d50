#include "services/manifest/expression.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace sluice::api {
namespace {

using Json = nlohmann::json;
using Rank = Expr::Rank;
using Scope = Expr::Scope;

Rank Above(Rank rank) { return static_cast<Rank>(static_cast<int>(rank) + 1); }

bool Holds(const Json& value) { return value.is_boolean() && value.get<bool>(); }

Json At(const Json& root, const std::vector<std::string>& path) {
  const Json* at = &root;
  for (const std::string& name : path) {
    const auto found = at->find(name);  // the end, unless `at` is an object
    if (found == at->end()) return nullptr;
    at = &*found;
  }
  return *at;
}

// `self.a.b`.
Expr Reference(absl::string_view path) {
  const std::vector<std::string> parts = absl::StrSplit(path, '.');
  return Expr([parts](const Scope& scope) { return At(scope.self, parts); },
              absl::StrCat("self.", path), Rank::kAtom);
}

template <typename Apply>
Expr Binary(const Expr& a, const char* sign, const Expr& b, Rank rank, Apply apply) {
  // Relations are not chained; `&&` within `||` is put in parentheses for readers.
  const Rank left = rank == Rank::kRelation ? Above(rank) : rank;
  const Rank right = Above(rank == Rank::kOr ? Rank::kAnd : rank);
  const bool mixed = rank == Rank::kOr && a.rank() == Rank::kAnd;
  return Expr(
      [a, b, apply](const Scope& scope) { return Json(apply(a.Value(scope), b.Value(scope))); },
      absl::StrCat(a.Within(mixed ? right : left), " ", sign, " ", b.Within(right)), rank);
}

template <typename Compare>
Expr Comparison(const Expr& a, const char* sign, const Expr& b, Compare compare) {
  return Binary(a, sign, b, Rank::kRelation, [compare](const Json& x, const Json& y) {
    return x.is_number() && y.is_number() && compare(x, y);
  });
}

template <typename Apply>
Expr Arithmetic(const Expr& a, const char* sign, const Expr& b, Apply apply) {
  return Binary(a, sign, b, Rank::kProduct, [apply](const Json& x, const Json& y) {
    const bool integers = x.is_number_integer() && y.is_number_integer() && y != 0;
    return integers ? Json(apply(x.get<int64_t>(), y.get<int64_t>())) : Json();
  });
}

// `a.name(argument)`.
template <typename Test>
Expr OfStrings(const Expr& a, const char* name, const Expr& argument, Test test) {
  return Expr(
      [a, argument, test](const Scope& scope) {
        const Json text = a.Value(scope), other = argument.Value(scope);
        return Json(text.is_string() && other.is_string() &&
                    test(text.get<std::string>(), other.get<std::string>()));
      },
      absl::StrCat(a.Within(Rank::kAtom), ".", name, "(", argument.cel(), ")"), Rank::kAtom);
}

std::string DoubleText(double number) {
  const std::string text = absl::StrCat(number);
  return absl::StrCat(text, text.find_first_of(".e") == std::string::npos ? ".0" : "");
}

}  // namespace

Expr::Expr(const char* text) : Expr(std::string(text)) {}
Expr::Expr(const std::string& text)
    : Expr([text](const Scope&) { return Json(text); }, absl::StrCat("'", text, "'"), Rank::kAtom) {
}
Expr::Expr(int number)
    : Expr([number](const Scope&) { return Json(number); }, absl::StrCat(number), Rank::kAtom) {}
Expr::Expr(double number)
    : Expr([number](const Scope&) { return Json(number); }, DoubleText(number), Rank::kAtom) {}
Expr::Expr(Evaluate evaluate, std::string cel, Rank rank)
    : evaluate_(std::move(evaluate)), cel_(std::move(cel)), rank_(rank) {}

bool Expr::operator()(const Json& self) const { return Holds(evaluate_({self, self})); }

std::string Expr::Within(Rank least) const {
  return rank_ >= least ? cel_ : absl::StrCat("(", cel_, ")");
}

Expr Self(absl::string_view path) { return Reference(path); }

Expr Has(absl::string_view path) {
  const Expr field = Reference(path);
  return Expr([field](const Scope& scope) { return Json(!field.Value(scope).is_null()); },
              absl::StrCat("has(", field.cel(), ")"), Rank::kAtom);
}

Expr Item(absl::string_view path) {
  const std::vector<std::string> parts = absl::StrSplit(path, absl::MaxSplits('.', 1));
  if (parts.size() == 2) {
    return Expr([name = parts[1]](const Scope& scope) { return At(scope.item, {name}); },
                std::string(path), Rank::kAtom);
  }
  if (absl::EndsWith(path, "[0]")) {
    return Expr(
        [](const Scope& scope) {
          return scope.item.is_array() && !scope.item.empty() ? scope.item[0] : Json();
        },
        std::string(path), Rank::kAtom);
  }
  return Expr([](const Scope& scope) { return scope.item; }, std::string(path), Rank::kAtom);
}

Expr ItemHas(absl::string_view variable, absl::string_view field) {
  const std::vector<std::string> parts = absl::StrSplit(field, '.');
  return Expr([parts](const Scope& scope) { return Json(!At(scope.item, parts).is_null()); },
              absl::StrCat("has(", variable, ".", field, ")"), Rank::kAtom);
}

Expr operator!(const Expr& a) {
  return Expr([a](const Scope& scope) { return Json(!Holds(a.Value(scope))); },
              absl::StrCat("!", a.Within(Rank::kUnary)), Rank::kUnary);
}
Expr operator||(const Expr& a, const Expr& b) {
  return Binary(a, "||", b, Rank::kOr,
                [](const Json& x, const Json& y) { return Holds(x) || Holds(y); });
}
Expr operator&&(const Expr& a, const Expr& b) {
  return Binary(a, "&&", b, Rank::kAnd,
                [](const Json& x, const Json& y) { return Holds(x) && Holds(y); });
}
Expr operator==(const Expr& a, const Expr& b) {
  return Binary(a, "==", b, Rank::kRelation, std::equal_to<Json>());
}
Expr operator!=(const Expr& a, const Expr& b) {
  return Binary(a, "!=", b, Rank::kRelation, std::not_equal_to<Json>());
}
Expr operator<=(const Expr& a, const Expr& b) {
  return Comparison(a, "<=", b, std::less_equal<Json>());
}
Expr operator>=(const Expr& a, const Expr& b) {
  return Comparison(a, ">=", b, std::greater_equal<Json>());
}
Expr operator>(const Expr& a, const Expr& b) { return Comparison(a, ">", b, std::greater<Json>()); }

Expr operator+(const Expr& a, const Expr& b) {
  return Binary(a, "+", b, Rank::kSum, [](const Json& x, const Json& y) {
    if (x.is_string() && y.is_string()) return Json(x.get<std::string>() + y.get<std::string>());
    const bool integers = x.is_number_integer() && y.is_number_integer();
    return integers ? Json(x.get<int64_t>() + y.get<int64_t>()) : Json();
  });
}
Expr operator*(const Expr& a, const Expr& b) {
  return Binary(a, "*", b, Rank::kProduct, [](const Json& x, const Json& y) {
    const bool numbers = x.is_number() && y.is_number();
    return numbers ? Json(x.get<double>() * y.get<double>()) : Json();
  });
}
Expr operator/(const Expr& a, const Expr& b) { return Arithmetic(a, "/", b, std::divides<>()); }
Expr operator%(const Expr& a, const Expr& b) { return Arithmetic(a, "%", b, std::modulus<>()); }

Expr If(const Expr& condition, const Expr& then, const Expr& otherwise) {
  return Expr(
      [condition, then, otherwise](const Scope& scope) {
        return Holds(condition.Value(scope)) ? then.Value(scope) : otherwise.Value(scope);
      },
      absl::StrCat(condition.Within(Rank::kOr), " ? ", then.Within(Rank::kOr), " : ",
                   otherwise.cel()),
      Rank::kChoice);
}

Expr IsOneOf(const Expr& value, const std::vector<Expr>& literals) {
  const auto cel = [](std::string* out, const Expr& literal) { out->append(literal.cel()); };
  return Expr(
      [value, literals](const Scope& scope) {
        const Json wanted = value.Value(scope);
        return Json(std::any_of(literals.begin(), literals.end(), [&](const Expr& literal) {
          return literal.Value(scope) == wanted;
        }));
      },
      absl::StrCat(value.Within(Above(Rank::kRelation)), " in [",
                   absl::StrJoin(literals, ", ", cel), "]"),
      Rank::kRelation);
}

Expr IsIn(const Expr& value, const Expr& list) {
  return Binary(value, "in", list, Rank::kRelation, [](const Json& wanted, const Json& in) {
    if (in.is_object()) return wanted.is_string() && in.contains(wanted.get<std::string>());
    return in.is_array() && std::find(in.begin(), in.end(), wanted) != in.end();
  });
}

Expr Size(const Expr& list) {
  return Expr(
      [list](const Scope& scope) {
        const Json value = list.Value(scope);
        return value.is_structured() ? Json(static_cast<int64_t>(value.size())) : Json();
      },
      absl::StrCat("size(", list.cel(), ")"), Rank::kAtom);
}

Expr All(absl::string_view variable, const Expr& list, const Expr& condition) {
  return Expr(
      [list, condition](const Scope& scope) {
        const Json items = list.Value(scope);
        return Json(std::all_of(items.begin(), items.end(), [&](const Json& item) {
          return Holds(condition.Value({scope.self, item}));
        }));
      },
      absl::StrCat(list.Within(Rank::kAtom), ".all(", variable, ", ", condition.cel(), ")"),
      Rank::kAtom);
}

Expr Each(absl::string_view variable, const Expr& list, const Expr& value) {
  return Expr(
      [list, value](const Scope& scope) {
        Json values = Json::array();
        for (const Json& item : list.Value(scope))
          values.push_back(value.Value({scope.self, item}));
        return values;
      },
      absl::StrCat(list.Within(Rank::kAtom), ".map(", variable, ", ", value.cel(), ")"),
      Rank::kAtom);
}

Expr IsSorted(const Expr& list) {
  return Expr(
      [list](const Scope& scope) {
        const Json items = list.Value(scope);
        return Json(std::is_sorted(items.begin(), items.end()));
      },
      absl::StrCat(list.Within(Rank::kAtom), ".isSorted()"), Rank::kAtom);
}

Expr IsWhole(const Expr& number) {
  return Expr(
      [number](const Scope& scope) {
        const Json value = number.Value(scope);
        return Json(value.is_number() && value.get<double>() == std::floor(value.get<double>()));
      },
      absl::StrCat("double(int(", number.cel(), ")) == ", number.cel()), Rank::kRelation);
}

Expr Disjoint(const Expr& a, const Expr& b) {
  const Expr cel = Size(a) * Size(b) > kMaxComparisons || All("x", a, !IsIn(Item("x"), b));
  return Expr(
      [a, b](const Scope& scope) {
        const Json first = a.Value(scope);
        std::set<Json> items(first.begin(), first.end());
        const Json second = b.Value(scope);
        return Json(std::none_of(second.begin(), second.end(),
                                 [&](const Json& item) { return items.count(item) > 0; }));
      },
      cel.cel(), Rank::kOr);
}

Expr HasPart(const Expr& text, const Expr& part) {
  return OfStrings(text, "contains", part, [](const std::string& a, const std::string& b) {
    return absl::StrContains(a, b);
  });
}
Expr HasPrefix(const Expr& text, const Expr& prefix) {
  return OfStrings(text, "startsWith", prefix, [](const std::string& a, const std::string& b) {
    return absl::StartsWith(a, b);
  });
}
Expr Matches(const Expr& text, const std::string& regex, bool (*matches)(absl::string_view)) {
  return OfStrings(text, "matches", regex,
                   [matches](const std::string& a, const std::string&) { return matches(a); });
}

}  // namespace sluice::api
