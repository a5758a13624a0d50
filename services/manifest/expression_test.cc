#include "services/manifest/expression.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace sluice::api {
namespace {

using Json = nlohmann::json;

struct Case {
  Expr expression;
  std::string cel;
  std::vector<std::string> holds;
  std::vector<std::string> fails;
};

std::vector<Case> Cases() {
  const Expr a = Has("a"), b = Has("b"), c = Has("c");
  return {
      {Has("a.b"), "has(self.a.b)", {R"({"a":{"b":0}})"}, {R"({"a":{}})", R"({"a":3})", "{}"}},
      {Self("a") == "x", "self.a == 'x'", {R"({"a":"x"})"}, {R"({"a":"y"})", R"({"a":1})", "{}"}},
      {Self("a") != "x", "self.a != 'x'", {R"({"a":"y"})", "{}"}, {R"({"a":"x"})"}},
      {!Self("a"), "!self.a", {R"({"a":false})"}, {R"({"a":true})"}},
      {!(Self("a") == 1), "!(self.a == 1)", {R"({"a":2})"}, {R"({"a":1})", R"({"a":1.0})"}},
      {a || b || c, "has(self.a) || has(self.b) || has(self.c)", {R"({"c":1})"}, {"{}"}},
      {a || (b || c), "has(self.a) || (has(self.b) || has(self.c))", {R"({"c":1})"}, {"{}"}},
      {(a && b) || c,
       "(has(self.a) && has(self.b)) || has(self.c)",
       {R"({"c":1})", R"({"a":1,"b":1})"},
       {R"({"a":1})"}},
      {(a || b) && c, "(has(self.a) || has(self.b)) && has(self.c)", {R"({"a":1,"c":1})"}, {"{}"}},
      {(Self("a") == 1) == b,
       "(self.a == 1) == has(self.b)",
       {R"({"a":1,"b":0})", "{}"},
       {R"({"a":1})"}},
      {Self("a") * 2.0 <= Self("b"),
       "self.a * 2.0 <= self.b",
       {R"({"a":0.5,"b":1})"},
       {R"({"a":1,"b":1})"}},
      {Self("a") > 0.5, "self.a > 0.5", {R"({"a":1})"}, {R"({"a":0.5})", R"({"a":"1"})", "{}"}},
      {Self("a") >= 2, "self.a >= 2", {R"({"a":2})"}, {R"({"a":1})", "{}"}},
      {(Self("a") + 15) / 16 == 2, "(self.a + 15) / 16 == 2", {R"({"a":17})"}, {R"({"a":16})"}},
      {Self("a") % Self("b") == 0,
       "self.a % self.b == 0",
       {R"({"a":4,"b":2})"},
       {R"({"a":4,"b":0})"}},
      {Self("a") == If(b, Self("b"), 1),
       "self.a == (has(self.b) ? self.b : 1)",
       {R"({"a":1})", R"({"a":5,"b":5})"},
       {R"({"a":1,"b":5})"}},
      {IsOneOf(Self("a"), {"x", "y"}),
       "self.a in ['x', 'y']",
       {R"({"a":"y"})"},
       {R"({"a":"z"})", "{}"}},
      {!IsIn(Self("a"), Self("b")),
       "!(self.a in self.b)",
       {R"({"a":1,"b":[2]})", "{}"},
       {R"({"a":1,"b":[2,1]})"}},
      {IsIn("x", Self("a")), "'x' in self.a", {R"({"a":{"x":0}})"}, {R"({"a":{"y":0}})"}},
      {Size(Self("a")) == Size(Self("b")),
       "size(self.a) == size(self.b)",
       {R"({"a":[1],"b":[2]})"},
       {R"({"a":[1],"b":[]})"}},
      {All("g", Self("a"), ItemHas("g", "x") || Self("b")),
       "self.a.all(g, has(g.x) || self.b)",
       {R"({"a":[{"x":1}]})", R"({"a":[{}],"b":true})", R"({"a":[]})"},
       {R"({"a":[{"x":1},{}]})"}},
      {All("g", Self("a"), Item("g.x") == 1),
       "self.a.all(g, g.x == 1)",
       {R"({"a":[{"x":1}]})"},
       {R"({"a":[{"x":1},{"x":2}]})"}},
      {All("g", Self("a"), IsWhole(Item("g[0]"))),
       "self.a.all(g, double(int(g[0])) == g[0])",
       {R"({"a":[[1.0,0.5],[3,1]]})"},
       {R"({"a":[[0.5,1]]})"}},
      {IsSorted(Self("a")),
       "self.a.isSorted()",
       {R"({"a":[1,1,2]})", R"({"a":[]})"},
       {R"({"a":[2,1]})"}},
      {IsSorted(Each("g", Self("a"), Item("g[0]"))),
       "self.a.map(g, g[0]).isSorted()",
       {R"({"a":[[1,9],[2,1]]})"},
       {R"({"a":[[2,1],[1,9]]})"}},
      {Disjoint(Self("a"), Self("b")),
       "size(self.a) * size(self.b) > 500000 || self.a.all(x, !(x in self.b))",
       {R"({"a":["x"],"b":["y"]})", R"({"a":[],"b":["y"]})"},
       {R"({"a":["x","y"],"b":["y"]})"}},
      {All("g", Self("a"), Item("g") != "x"),
       "self.a.all(g, g != 'x')",
       {R"({"a":["y"]})"},
       {R"({"a":["x"]})"}},
      {HasPart(Self("a"), "://"),
       "self.a.contains('://')",
       {R"({"a":"x://y"})"},
       {R"({"a":"x"})", "{}"}},
      {HasPrefix(Self("a"), Self("b") + "/"),
       "self.a.startsWith(self.b + '/')",
       {R"({"a":"x/y","b":"x"})"},
       {R"({"a":"x","b":"x"})"}},
      {Matches(Self("a"), "^x$", [](absl::string_view text) { return text == "x"; }),
       "self.a.matches('^x$')",
       {R"({"a":"x"})"},
       {R"({"a":"y"})", R"({"a":1})"}},
  };
}

TEST(Expression, MeansTheSameHereAsItsCel) {
  for (const Case& one : Cases()) {
    EXPECT_EQ(one.expression.cel(), one.cel);
    for (const std::string& self : one.holds) {
      EXPECT_TRUE(one.expression(Json::parse(self))) << one.cel << " of " << self;
    }
    for (const std::string& self : one.fails) {
      EXPECT_FALSE(one.expression(Json::parse(self))) << one.cel << " of " << self;
    }
  }
}

TEST(Expression, TakesObjectsOfAnyShape) {
  for (const Case& one : Cases()) {
    for (const char* self :
         {"null", "3", "[]", R"({"a":null,"b":[],"c":{}})", R"({"a":-1,"b":"x"})"}) {
      (void)one.expression(Json::parse(self));
    }
  }
}

}  // namespace
}  // namespace sluice::api
