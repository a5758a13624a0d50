#include "services/manifest/testing/api_cases.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "services/manifest/field_table.h"
#include "services/manifest/testing/example_manifests.h"
#include "services/manifest/testing/invalid_manifests.h"
#include "services/manifest/validate.h"
#include "services/manifest/yaml_document.h"

namespace sluice::api {
namespace {

// The beginnings of our messages, and an API server's words for them.
struct Saying {
  const char* ours;
  const char* servers;
  bool with_bound = false;  // followed by the number
};
constexpr Saying kSayings[] = {
    {"is required", "Required value"},
    {"must be one of", "Unsupported value"},
    {"must be an integer", "must be of type integer"},
    {"must be a number", "must be of type number"},
    {"must be a string", "must be of type string"},
    {"must be true or false", "must be of type boolean"},
    {"must be a map", "must be of type object"},
    {"must be a list", "must be of type array"},
    {"must be at least ", "should be greater than or equal to ", true},
    {"must be more than ", "should be greater than ", true},
    {"must be at most ", "should be less than or equal to ", true},
    {"must be less than ", "should be less than ", true},
    {"must have at least ", "should have at least ", true},
    {"must have at most ", "Too "},  // long, many
    {"must not be empty", "should be at least 1 chars long"},
};

std::vector<std::string> ServersWords(const Problem& problem) {
  // The words depend on whether kubectl or the server finds these first.
  if (problem.path == "apiVersion" || problem.path == "kind") return {"Training"};
  if (problem.path == "metadata.name" && (absl::StartsWith(problem.message, "is required") ||
                                          absl::StartsWith(problem.message, "must be a string"))) {
    return {"name"};
  }
  // Fields that every object has are decoded before a schema is checked.
  if (problem.path == "metadata.name" && absl::StartsWith(problem.message, "must be a string")) {
    return {"metadata.name", "of type string"};
  }
  // The fields of a map in the place of a list are reported as unknown before the wrong type is.
  if (absl::StartsWith(problem.message, "must be a list, not a map")) return {problem.path};
  if (absl::StartsWith(problem.message, "unknown field")) {
    return {problem.path, absl::StrCat("unknown field \"", problem.path, "\"")};
  }
  // Maps outside our schema: kubectl rejects values of another type.
  if (absl::StartsWith(problem.path, "metadata.") && problem.path != "metadata.name") {
    return {problem.path.substr(problem.path.rfind('.') + 1)};
  }
  // The server reports the fields of the map, which it does not know.
  if (absl::StartsWith(problem.message, "must be a list, not a map")) return {problem.path};
  for (const Saying& saying : kSayings) {
    if (!absl::StartsWith(problem.message, saying.ours)) continue;
    std::string words = saying.servers;
    if (saying.with_bound) {
      const std::string rest = problem.message.substr(std::string(saying.ours).size());
      absl::StrAppend(&words, rest.substr(0, rest.find_first_of(", ")));
    }
    return {problem.path, words};
  }
  // A rule, or a pattern in words.
  return {problem.path, problem.message.substr(0, problem.message.find("; this is"))};
}

// Empty unless exactly one problem is found: other text says nothing about a single field.
std::vector<std::string> WordsFor(const std::string& manifest) {
  const YamlDocument document = YamlDocument::Parse(manifest);
  if (document.roots.size() != 1) return {};
  const std::vector<Problem> problems = Validate(document.roots[0], document.tokens, "").problems;
  if (problems.empty()) return {};
  return ServersWords(problems[0]);
}

void AddInvalidManifests(std::vector<ApiCase>* cases) {
  for (const InvalidManifest& invalid : InvalidManifests()) {
    if (invalid.syntax) continue;
    cases->push_back({"manifest." + invalid.name, invalid.yaml, "", false, WordsFor(invalid.yaml)});
  }
}

void AddFieldExamples(std::vector<ApiCase>* cases) {
  for (const Field& field : Fields()) {
    if (field.path == "metadata.namespace") continue;  // depends on the existing namespaces
    const std::string name =
        absl::StrCat("field.", absl::StrReplaceAll(field.path, {{"[]", "_items"}}), ".");
    for (size_t i = 0; i < field.examples.size(); ++i) {
      cases->push_back({absl::StrCat(name, "good", i),
                        ManifestWith(field, field.examples[i].yaml),
                        "",
                        true,
                        {}});
    }
    for (size_t i = 0; i < field.invalid.size(); ++i) {
      const std::string manifest = ManifestWith(field, field.invalid[i].yaml);
      cases->push_back({absl::StrCat(name, "bad", i), manifest, "", false, WordsFor(manifest)});
    }
  }
}

void AddRuleExamples(std::vector<ApiCase>* cases) {
  for (size_t r = 0; r < Rules().size(); ++r) {
    const Rule& rule = Rules()[r];
    const std::string name = absl::StrCat("rule.", r, ".", rule.scope, ".", rule.field, ".");
    for (size_t i = 0; i < rule.passing.size(); ++i) {
      cases->push_back(
          {absl::StrCat(name, "good", i), ManifestWith(rule, rule.passing[i]), "", true, {}});
    }
    for (size_t i = 0; i < rule.failing.size(); ++i) {
      cases->push_back({absl::StrCat(name, "bad", i),
                        ManifestWith(rule, rule.failing[i]),
                        "",
                        false,
                        {absl::StrCat(rule.scope, ".", rule.field), rule.message}});
    }
  }
}

void AddUpdates(std::vector<ApiCase>* cases) {
  const auto update = [&](const char* name, const char* before, const char* after,
                          std::vector<std::string> words) {
    cases->push_back({absl::StrCat("update.", name), PatchedManifest(after).dump(),
                      PatchedManifest(before).dump(), words.empty(), std::move(words)});
  };
  update("model", "", R"({"spec":{"model":{"name":"logistic"}}})",
         {"spec.model.name", "fixed for the life of a job"});
  update("data", "", R"({"spec":{"data":{"source":{"path":"/other"}}}})",
         {"spec.data.source", "fixed for the life of a job"});
  update("optimizer", "", R"({"spec":{"optimizer":{"name":"Adagrad"}}})",
         {"spec.optimizer", "fixed for the life of a job"});
  update("learning_rate", "", R"({"spec":{"optimizer":{"learningRate":0.5}}})", {});
  update("loss_given_later", "", R"({"spec":{"loss":"mse"}})",
         {"spec.loss", "fixed for the life of a job"});
  update("loss_taken_away", R"({"spec":{"loss":"mse"}})", "",
         {"spec.loss", "fixed for the life of a job"});
  update("batch", "", R"({"spec":{"training":{"globalBatchSize":128}}})",
         {"spec.training.globalBatchSize", "fixed for the life of a job"});
  update("seed", "", R"({"spec":{"training":{"seed":3}}})",
         {"spec.training.seed", "fixed for the life of a job"});
  update("partitions", "", R"({"spec":{"parameterServer":{"partitions":32}}})",
         {"spec.parameterServer.partitions", "fixed for the life of a job"});
  const char* const claim =
      R"({"spec":{"checkpoint":{"storage":{"type":"PersistentVolumeClaim","claimName":"c"}}}})";
  const char* const other_claim =
      R"({"spec":{"checkpoint":{"storage":{"type":"PersistentVolumeClaim","claimName":"d"}}}})";
  const char* const directory = R"({"spec":{"checkpoint":{"storage":{"path":"/ckpt"}}}})";
  const std::vector<std::string> fixed_storage = {"spec.checkpoint.storage",
                                                  "fixed for the life of a job"};
  update("claim_to_another", claim, other_claim, fixed_storage);
  update("claim_to_directory", claim, directory, fixed_storage);
  update("claim_taken_away", claim, "", fixed_storage);
  update("directory_to_claim", directory, claim, fixed_storage);
  update("directory_taken_away", directory, "", fixed_storage);
  update("claim_given_later", "", claim, {});
  update("directory_given_later", "", directory, {});
  update("manager", "", R"({"spec":{"managedBy":"example.com/other"}})",
         {"spec.managedBy", "fixed for the life of a job"});
  update("nothing", "", "", {});
  update("workers", "", R"({"spec":{"worker":{"replicas":5}}})", {});
  update("shards", "", R"({"spec":{"parameterServer":{"replicas":5}}})", {});
  update("steps", "", R"({"spec":{"training":{"steps":500}}})", {});
  update("suspend", "", R"({"spec":{"suspend":true}})", {});
  update("template", "",
         R"({"spec":{"worker":{"template":{"spec":{"nodeSelector":{"disk":"fast"}}}}}})", {});
}

}  // namespace

std::vector<ApiCase> ApiCases() {
  std::vector<ApiCase> cases;
  cases.push_back({"valid", ValidManifest(), "", true, {}});
  AddInvalidManifests(&cases);
  AddFieldExamples(&cases);
  AddRuleExamples(&cases);
  AddUpdates(&cases);
  return cases;
}

}  // namespace sluice::api
