#include "operator/kube/fake/selector.h"

#include <gtest/gtest.h>

namespace sluice::kube {
namespace {

bool Matches(const std::string& selector) {
  const auto parsed = LabelSelector::Parse(selector);
  return parsed.ok() && parsed->Matches({{"app", "web"}, {"tier", "front"}});
}

TEST(LabelSelectorTest, MatchesAsTheApiServerDoes) {
  for (const char* selector :
       {"", "app=web", "app==web", " app = web , tier in (front, back)", "app!=db", "none!=x",
        "app", "!none", "app notin (db)", "none notin (a)"}) {
    EXPECT_TRUE(Matches(selector)) << selector;
  }
  for (const char* selector : {"app=db", "app!=web", "none", "!app", "app in (a,b)",
                               "app notin (web,x)", "app=web,tier=back", "none=x"}) {
    EXPECT_FALSE(Matches(selector)) << selector;
  }
}

TEST(LabelSelectorTest, RejectsInvalidText) {
  for (const char* selector : {"app among (a)", "a b", "app in (a", "=x"}) {
    EXPECT_FALSE(LabelSelector::Parse(selector).ok()) << selector;
  }
}

TEST(FieldSelectorTest, ReadsNestedFields) {
  const Json pod = {{"metadata", {{"name", "a"}}}, {"status", {{"phase", "Running"}}}};
  EXPECT_TRUE(FieldSelector::Parse("metadata.name=a,status.phase!=Failed")->Matches(pod));
  EXPECT_FALSE(FieldSelector::Parse("metadata.name=b")->Matches(pod));
  EXPECT_TRUE(FieldSelector::Parse("spec.nodeName=")->Matches(pod));
  EXPECT_FALSE(FieldSelector::Parse("metadata.name").ok());
}

}  // namespace
}  // namespace sluice::kube
