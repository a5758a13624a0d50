#include "services/manifest/field_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iterator>
#include <random>
#include <regex>
#include <set>

#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"
#include "services/manifest/testing/example_manifests.h"
#include "services/manifest/validate.h"
#include "services/manifest/yaml_document.h"

namespace sluice::api {
namespace {

using ::testing::HasSubstr;

std::vector<Problem> ProblemsOf(const std::string& yaml) {
  const YamlDocument document = YamlDocument::Parse(yaml);
  EXPECT_TRUE(document.problems.empty()) << yaml;
  if (document.roots.size() != 1) return {};
  return Validate(document.roots[0], document.tokens, "").problems;
}

std::string Text(const std::vector<Problem>& problems) {
  std::string text;
  for (const Problem& problem : problems) text += problem.ToString("") + "\n";
  return text;
}

TEST(FieldTable, AcceptsEveryExampleOfEveryField) {
  for (const Field& field : Fields()) {
    for (const Example& example : field.examples) {
      const std::string yaml = ManifestWith(field, example.yaml);
      EXPECT_EQ(Text(ProblemsOf(yaml)), "") << field.path << "\n" << yaml;
    }
  }
}

TEST(FieldTable, RejectsEveryInvalidExampleWithOnlyItsMessage) {
  for (const Field& field : Fields()) {
    for (const Example& example : field.invalid) {
      const std::string yaml = ManifestWith(field, example.yaml);
      const std::vector<Problem> problems = ProblemsOf(yaml);
      ASSERT_EQ(problems.size(), 1) << field.path << ": " << example.yaml << "\n" << Text(problems);
      EXPECT_THAT(problems[0].path, HasSubstr(field.path));
      EXPECT_THAT(problems[0].message, HasSubstr(example.message)) << field.path;
    }
  }
}

TEST(FieldTable, EveryFieldHasADescriptionAndEveryLeafAnExample) {
  for (const Field& field : Fields()) {
    EXPECT_FALSE(field.description.empty()) << field.path;
    EXPECT_EQ(field.description.back(), '.') << field.path;
    EXPECT_FALSE(field.since.empty()) << field.path;
    const bool inside = field.path.find_first_of("[{") != std::string::npos;
    if (field.type != FieldType::kObject && !inside && field.path != "metadata.annotations") {
      EXPECT_FALSE(field.examples.empty()) << field.path;
    }
  }
}

TEST(FieldTable, PathsAreDistinctAndHaveTheBoundsOfASchema) {
  std::set<std::string> paths;
  for (const Field& field : Fields()) {
    EXPECT_TRUE(paths.insert(field.path).second) << field.path;
    const bool sized = field.type == FieldType::kList || field.type == FieldType::kMap ||
                       (field.type == FieldType::kString && field.values.empty());
    EXPECT_EQ(field.max_size > 0, sized) << field.path;
    const bool has_items = field.type == FieldType::kList || field.type == FieldType::kMap;
    EXPECT_EQ(FindSchema(field.path)->item != nullptr, has_items) << field.path;
    EXPECT_FALSE(field.required && !field.default_json.empty()) << field.path;
    EXPECT_TRUE(field.default_json.empty() || field.implied_default.empty()) << field.path;
  }
}

TEST(FieldTable, FieldsThatCheckpointsDependOnAreFixed) {
  for (const char* path : {"spec.model.name", "spec.model.dimensions.dim", "spec.data.source.path",
                           "spec.optimizer.groups", "spec.optimizer.name", "spec.optimizer.betas",
                           "spec.optimizer.groups[3].patterns", "spec.optimizer.groups[].momentum",
                           "spec.model.stages[10].name", "spec.training.globalBatchSize"}) {
    EXPECT_TRUE(IsFixed(ChangeOf(path))) << path;
  }
  for (const char* path :
       {"spec", "spec.model.device", "spec.data.evaluation.intervalSteps", "spec.training.steps",
        "spec.optimizer.learningRate", "spec.optimizer.groups[3].weightDecay",
        "spec.optimizer.schedule.type", "spec.training.mode",
        "spec.training.boundedStaleness.maxStaleness", "spec.worker.replicas", "metadata.labels"}) {
    EXPECT_FALSE(IsFixed(ChangeOf(path))) << path;
  }
}

TEST(FieldTable, RowsSayWhatAJobMayChangeBelowThemToo) {
  for (const char* path :
       {"spec.optimizer.learningRate", "spec.optimizer.schedule", "spec.optimizer.schedule.gamma",
        "spec.optimizer.schedule.milestones[]", "spec.optimizer.groups[].weightDecay",
        "spec.optimizer.groups[12].schedule.type", "spec.optimizer.plateau.factor"}) {
    EXPECT_EQ(ChangeOf(path), Change::kRate) << path;
  }
  for (const char* path : {"spec.training.steps", "spec.training.epochs",
                           "spec.training.target.value", "spec.training.stopping.patience"}) {
    EXPECT_EQ(ChangeOf(path), Change::kLength) << path;
  }
  for (const char* path :
       {"spec.model.name", "spec.model.stages[1].layers", "spec.optimizer.name",
        "spec.optimizer.momentum", "spec.optimizer.groups", "spec.optimizer.groups[1].momentum",
        "spec.optimizer.groups[1].betas", "spec.optimizer.groups[0].patterns[1]"}) {
    EXPECT_EQ(ChangeOf(path), Change::kShape) << path;
  }
  for (const char* path : {"spec.optimizer", "spec.optimizer.betas", "spec.optimizer.eps",
                           "spec.optimizer.learningRateOfAnother", "spec.loss",
                           "spec.training.seed", "spec.training.globalBatchSize"}) {
    EXPECT_EQ(ChangeOf(path), Change::kFixed) << path;
  }
  for (const char* path :
       {"spec.training.learningRate", "learningRate", "", "[", "spec.model.device"}) {
    EXPECT_EQ(ChangeOf(path), Change::kFree) << path;
  }
}

TEST(FieldTable, StatusFieldsAreDescribedAndBounded) {
  for (const Field& field : StatusFields()) {
    EXPECT_EQ(field.description.back(), '.') << field.path;
    EXPECT_TRUE(field.path == "status" || field.path.rfind("status.", 0) == 0) << field.path;
  }
  EXPECT_EQ(StatusSchema().children.size(), 1);
  EXPECT_NE(StatusSchema().children[0]->Child("conditions"), nullptr);
}

TEST(FieldTable, DefaultsAreValidValues) {
  for (const Field& field : Fields()) {
    if (field.default_json.empty() || field.type == FieldType::kObject) continue;
    if (!field.like.empty()) continue;  // in an item of a list, with the default of another field
    EXPECT_EQ(Text(ProblemsOf(ManifestWith(field, field.default_json))), "") << field.path;
  }
}

TEST(FieldTable, PatternsAndPredicatesAgreeOnEveryExample) {
  int compared = 0;
  for (const Field& field : Fields()) {
    ASSERT_EQ(field.pattern.empty(), field.matches == nullptr) << field.path;
    if (field.pattern.empty()) continue;
    const std::regex regex(field.pattern);
    std::vector<Example> examples = field.examples;
    examples.insert(examples.end(), field.invalid.begin(), field.invalid.end());
    for (const Example& example : examples) {
      const YamlDocument value = YamlDocument::Parse(example.yaml);
      const std::string& text = value.roots.at(0).token.text;
      EXPECT_EQ(std::regex_search(text, regex), field.matches(text)) << field.path << ": " << text;
      ++compared;
    }
  }
  EXPECT_GT(compared, 15);
}

// Strings near the examples: parts of them, with characters that patterns treat specially.
class Texts {
 public:
  explicit Texts(const Field& field) {
    for (const std::vector<Example>* examples : {&field.examples, &field.invalid}) {
      for (const Example& example : *examples) {
        const YamlDocument document = YamlDocument::Parse(example.yaml);
        const std::string& text = document.roots.at(0).token.text;
        if (!text.empty()) seeds_.push_back(text);
      }
    }
    seeds_.push_back("a");
  }
  std::string Next() {
    std::string text;
    if (Below(2) == 0) text = seeds_[Below(seeds_.size())].substr(0, 1 + Below(40));
    for (size_t changes = 1 + Below(6); changes > 0; --changes) {
      constexpr absl::string_view kPieces[] = {"a",  "Z",    "0",    "_", "-", ".", "..", "/",
                                               "//", "../",  ":",    "~", ",", " ", "\t", "\n",
                                               "\r", "\x01", "\x7f", "@", "$", "é"};
      const absl::string_view piece = kPieces[Below(std::size(kPieces))];
      const size_t at = Below(text.size() + 1);
      text =
          text.substr(0, at) + std::string(piece) + text.substr(at + Below(2) * (at < text.size()));
    }
    return text;
  }

 private:
  size_t Below(size_t bound) { return random_() % bound; }

  std::mt19937 random_{7};
  std::vector<std::string> seeds_;
};

TEST(FieldTable, PatternsAndPredicatesAgreeOnTextsNearTheExamples) {
  for (const Field& field : Fields()) {
    if (field.pattern.empty()) continue;
    const std::regex regex(field.pattern);
    Texts texts(field);
    int matching = 0;
    for (int i = 0; i < 3000; ++i) {
      const std::string text = texts.Next();
      if (text.size() < field.min_size || text.size() > field.max_size) continue;
      ASSERT_EQ(std::regex_search(text, regex), field.matches(text))
          << field.path << ": \"" << absl::CEscape(text) << "\"";
      matching += field.matches(text);
    }
    EXPECT_TRUE(matching > 0 || field.examples.empty()) << field.path;
  }
}

class RuleTest : public ::testing::TestWithParam<size_t> {};

TEST_P(RuleTest, AcceptsItsPassingExamples) {
  const Rule& rule = Rules()[GetParam()];
  ASSERT_FALSE(rule.passing.empty());
  for (const std::string& example : rule.passing) {
    EXPECT_EQ(Text(ProblemsOf(ManifestWith(rule, example))), "") << rule.holds.cel() << "\n"
                                                                 << example;
  }
}

TEST_P(RuleTest, RejectsItsFailingExamplesWithItsMessage) {
  const Rule& rule = Rules()[GetParam()];
  ASSERT_FALSE(rule.failing.empty());
  for (const std::string& example : rule.failing) {
    const std::vector<Problem> problems = ProblemsOf(ManifestWith(rule, example));
    ASSERT_GE(problems.size(), 1) << rule.holds.cel() << "\n" << example;
    bool found = false;
    for (const Problem& problem : problems) {
      found |= problem.message == rule.message && problem.path == rule.scope + "." + rule.field;
    }
    EXPECT_TRUE(found) << rule.holds.cel() << "\n" << example << "\n" << Text(problems);
  }
}

TEST_P(RuleTest, NamesAFieldOfTheTable) {
  const Rule& rule = Rules()[GetParam()];
  EXPECT_NE(FindSchema(rule.scope), nullptr) << rule.scope;
  EXPECT_NE(FindSchema(rule.scope + "." + rule.field), nullptr) << rule.field;
  EXPECT_THAT(rule.holds.cel(), HasSubstr("self."));
}

INSTANTIATE_TEST_SUITE_P(All, RuleTest, ::testing::Range<size_t>(0, Rules().size()));

}  // namespace
}  // namespace sluice::api
