#include "operator/crd/crd.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "services/manifest/field_table.h"
#include "services/manifest/print/yaml_writer.h"

namespace sluice::api {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::Contains;
using ::testing::HasSubstr;

const Json& Version() {
  static const Json& version = *new Json(CustomResourceDefinition()["spec"]["versions"][0]);
  return version;
}

// The schema of a path of the table; null if there is none.
const Json* SchemaAt(const std::string& path) {
  const Json* schema = &Version()["schema"]["openAPIV3Schema"];
  for (absl::string_view part : absl::StrSplit(path, '.')) {
    std::string name(part);
    std::string inside;
    while (absl::EndsWith(name, "[]") || absl::EndsWith(name, "{}")) {
      inside.insert(0, name.substr(name.size() - 2));
      name.resize(name.size() - 2);
    }
    if (!schema->contains("properties") || !(*schema)["properties"].contains(name)) return nullptr;
    schema = &(*schema)["properties"][name];
    for (size_t i = 0; i < inside.size(); i += 2) {
      schema = &schema->at(inside[i] == '[' ? "items" : "additionalProperties");
    }
  }
  return schema;
}

std::vector<const Field*> AllFields() {
  std::vector<const Field*> fields;
  for (const Field& field : Fields()) {
    if (absl::StartsWith(field.path, "spec")) fields.push_back(&field);
  }
  for (const Field& field : StatusFields()) fields.push_back(&field);
  return fields;
}

TEST(Crd, MatchesTheFileInTheChart) {
  std::ifstream file("helm/sluice/files/trainingjobs.sluice.dev.yaml");
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_EQ(text.str(), CustomResourceDefinitionYaml())
      << "regenerate it: bazel run //operator/crd:print_crd > "
         "helm/sluice/files/trainingjobs.sluice.dev.yaml";
}

TEST(Crd, HasEveryFieldOfTheTableWithItsDescription) {
  for (const Field* field : AllFields()) {
    const Json* schema = SchemaAt(field->path);
    ASSERT_NE(schema, nullptr) << field->path;
    EXPECT_EQ((*schema)["description"], field->description) << field->path;
    EXPECT_EQ(schema->contains("default"), !field->default_json.empty()) << field->path;
  }
}

// CEL's cost is bounded only for values with maximum sizes.
TEST(Crd, BoundsEveryStringListAndMap) {
  for (const Field* field : AllFields()) {
    const Json& schema = *SchemaAt(field->path);
    if (schema["type"] == "string" && !schema.contains("enum")) {
      EXPECT_TRUE(schema.contains("maxLength")) << field->path;
    }
    if (schema["type"] == "array") {
      EXPECT_TRUE(schema.contains("maxItems")) << field->path;
    }
    if (schema.contains("additionalProperties")) {
      EXPECT_TRUE(schema.contains("maxProperties")) << field->path;
    }
  }
}

TEST(Crd, HasEveryRuleOnceWithItsMessage) {
  for (const Rule& rule : Rules()) {
    const Json* schema = SchemaAt(rule.scope);
    ASSERT_NE(schema, nullptr) << rule.scope;
    const Json expected = {{"rule", rule.holds.cel()},
                           {"message", rule.message},
                           {"fieldPath", absl::StrCat(".", rule.field)}};
    EXPECT_THAT((*schema)["x-kubernetes-validations"], Contains(expected).Times(1))
        << rule.holds.cel();
  }
}

TEST(Crd, HasTheRulesOfObjectsThatAreLikeAnother) {
  const Json& rules = (*SchemaAt("spec.optimizer.schedule"))["x-kubernetes-validations"];
  EXPECT_EQ((*SchemaAt("spec.optimizer.groups[].schedule"))["x-kubernetes-validations"], rules);
  for (const char* path :
       {"spec.optimizer.schedule.parts[]", "spec.optimizer.groups[].schedule.parts[]"}) {
    const Json& of_parts = (*SchemaAt(path))["x-kubernetes-validations"];
    // All but the three rules about fields that parts do not have.
    EXPECT_EQ(of_parts.size(), rules.size() - 3) << path;
    for (const Json& rule : of_parts) {
      EXPECT_THAT(rules, Contains(rule));
      EXPECT_FALSE(absl::StrContains(rule["rule"].get<std::string>(), "self.parts"));
    }
  }
}

// Without a default or `required`, a transition rule must not read a field that may be missing.
TEST(Crd, RejectsChangesOfFixedFields) {
  std::set<std::string> paths;
  for (const FixedField& fixed : FixedFields()) {
    paths.insert(fixed.scope + "." + fixed.field);
    EXPECT_THAT(fixed.cel, HasSubstr("oldSelf."));
    const Json& schema = *SchemaAt(fixed.scope + "." + fixed.field);
    const Json& parent = *SchemaAt(fixed.scope);
    const bool required = parent.contains("required") &&
                          std::find(parent["required"].begin(), parent["required"].end(),
                                    fixed.field) != parent["required"].end();
    EXPECT_EQ(absl::StrContains(fixed.cel, "has(self."), !required && !schema.contains("default"))
        << fixed.cel;
  }
  EXPECT_THAT(paths, Contains("spec.model.name"));
  EXPECT_THAT(paths, Contains("spec.training.seed"));
  EXPECT_THAT(paths, Contains("spec.parameterServer.partitions"));
  EXPECT_THAT(paths, Contains("spec.optimizer.name"));
  EXPECT_THAT(paths, Contains("spec.optimizer.groups"));
  for (const char* changes : {"spec.worker.replicas", "spec.optimizer", "spec.optimizer.schedule",
                              "spec.optimizer.learningRate", "spec.optimizer.weightDecay"}) {
    EXPECT_FALSE(paths.count(changes)) << changes;
  }
}

TEST(Crd, GroupsMayChangeTheirRatesAndNotTheirPatterns) {
  for (const FixedField& fixed : FixedFields()) {
    if (fixed.scope + "." + fixed.field != "spec.optimizer.groups") continue;
    EXPECT_THAT(fixed.cel, HasSubstr("self.groups.size() == oldSelf.groups.size()"));
    EXPECT_THAT(fixed.cel, HasSubstr("item.patterns == old.patterns"));
    EXPECT_THAT(fixed.cel, HasSubstr("item.momentum == old.momentum"));
    EXPECT_FALSE(absl::StrContains(fixed.cel, "learningRate"));
    EXPECT_FALSE(absl::StrContains(fixed.cel, "weightDecay"));
  }
}

TEST(Crd, AllowsChangesOfStorageThatNoClusterCanUse) {
  for (const FixedField& fixed : FixedFields()) {
    EXPECT_EQ(absl::StrContains(fixed.cel, "!has(oldSelf.storage.path)"),
              fixed.scope + "." + fixed.field == "spec.checkpoint.storage")
        << fixed.cel;
  }
}

TEST(Crd, ColumnsAndSubresourcesReadExistingFields) {
  std::vector<std::string> paths;
  for (const Json& column : Version()["additionalPrinterColumns"]) {
    paths.push_back(column["jsonPath"]);
  }
  for (const auto& [name, path] : Version()["subresources"]["scale"].items()) paths.push_back(path);
  ASSERT_GE(paths.size(), 10);
  for (const std::string& path : paths) {
    if (path == ".metadata.creationTimestamp") continue;
    EXPECT_NE(SchemaAt(path.substr(1)), nullptr) << path;
  }
}

TEST(Crd, AllowsAnyFieldInPodTemplates) {
  for (const char* role : {"coordinator", "parameterServer", "worker"}) {
    const Json& spec = *SchemaAt(absl::StrCat("spec.", role, ".template.spec"));
    EXPECT_EQ(spec["x-kubernetes-preserve-unknown-fields"], true);
    EXPECT_EQ(spec["type"], "object");
  }
}

TEST(BlockYaml, WritesNestedAndEmptyListsAndMaps) {
  const Json value = Json::parse(
      R"({"b":[{"x":1,"y":[1,2]},["p"]],"a":{},"c":[],"d":"yes","e":"a: b","f":0.5,"g":true})");
  EXPECT_EQ(BlockYaml(value),
            "b:\n  - x: 1\n    y:\n      - 1\n      - 2\n  -\n    - p\na: {}\nc: []\nd: \"yes\"\n"
            "e: \"a: b\"\nf: 0.5\ng: true\n");
}

}  // namespace
}  // namespace sluice::api
