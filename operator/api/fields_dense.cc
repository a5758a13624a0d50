// How gradients of dense tensors are summed: `training.dense`.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "operator/api/enum_names.h"
#include "operator/api/field_builder.h"
#include "operator/api/field_table.h"

namespace sluice::api {
namespace {

using Json = nlohmann::json;

constexpr char kPlainText[] = R"({"spec":{"tls":"Disabled"}})";

bool Is(const Json& self, const char* name, const char* value) {
  return self.contains(name) && self.at(name) == value;
}
bool Reduces(const Json& training) {
  return training.contains("dense") && Is(training["dense"], "aggregation", "AllReduce");
}

// A rule of `training` for jobs that use all-reduce; `good` and `bad` are fields beside `dense`.
void AddTrainingRule(const char* field, const std::string& cel, bool (*holds)(const Json& training),
                     const std::string& message, const std::string& good, const std::string& bad,
                     std::vector<Rule>* rules) {
  const auto example = [](const std::string& fields, const char* aggregation) {
    return absl::StrCat(R"({"dense":{"aggregation":")", aggregation, "\"}",
                        fields.empty() ? "" : ",", fields, "}");
  };
  rules->push_back(
      {"spec.training",
       field,
       absl::StrCat("!has(self.dense) || self.dense.aggregation != 'AllReduce' || ", cel),
       holds,
       absl::StrCat("with `dense: {aggregation: AllReduce}` ", message),
       {example(good, "AllReduce"), example(bad, "ParameterServer")},
       {example(bad, "AllReduce")},
       kPlainText});
}

// The same for a rule of `spec`.
void AddJobRule(const char* field, const std::string& cel, bool (*holds)(const Json& spec),
                const std::string& message, const std::string& good, const std::string& bad,
                std::vector<Rule>* rules) {
  constexpr char kReduce[] = R"("training":{"dense":{"aggregation":"AllReduce"}})";
  rules->push_back({"spec",
                    field,
                    absl::StrCat("!has(self.training.dense) || "
                                 "self.training.dense.aggregation != 'AllReduce' || ",
                                 cel),
                    holds,
                    message,
                    {absl::StrCat("{", good, ",", kReduce, "}")},
                    {absl::StrCat("{", bad, ",", kReduce, "}")}});
}

}  // namespace

void AddDense(std::vector<Field>* fields) {
  fields->push_back(Object("spec.training.dense",
                           "Synchronous: how the gradients of dense tensors are summed, that is, "
                           "of all that are not sent as rows of embedding tables.")
                        .Fixed());
  fields->push_back(
      String("spec.training.dense.aggregation",
             "`ParameterServer`: the shards sum them; every worker pushes all of its gradient. "
             "`AllReduce`: the workers sum them among themselves (gloo), and each pushes a part of "
             "the sum, so the shards receive one gradient a step, not one from each worker. The "
             "workers' connections are not encrypted, so `tls: Disabled` is required.")
          .Default(R"("ParameterServer")")
          .OneOf(NamesOf<v1::TrainingSpec::Dense::Aggregation>())
          .Context(kPlainText)
          .Example("AllReduce")
          .Invalid("Ring", "must be one of ParameterServer, AllReduce"));
}

void AddDenseRules(std::vector<Rule>* rules) {
  AddTrainingRule(
      "mode", "self.mode == 'Synchronous'",
      [](const Json& training) {
        return !Reduces(training) || Is(training, "mode", "Synchronous");
      },
      "all workers sum the gradients of one step: `mode: Synchronous`", "",
      R"("mode":"Asynchronous")", rules);
  AddTrainingRule(
      "determinism", "self.determinism == 'Default'",
      [](const Json& training) {
        return !Reduces(training) || Is(training, "determinism", "Default");
      },
      "gradients are added in the order of the workers, so the bits depend on their number: not "
      "with BitExact",
      "", R"("determinism":"BitExact")", rules);
  AddTrainingRule(
      "execution", "self.execution == 'Worker'",
      [](const Json& training) {
        return !Reduces(training) || Is(training, "execution", "Worker");
      },
      "workers compute the gradients, not shards: `execution: Worker`", "",
      R"("execution":"Server")", rules);
  AddTrainingRule(
      "stragglers", "!has(self.stragglers) || self.stragglers.policy == 'Wait'",
      [](const Json& training) {
        return !Reduces(training) || !training.contains("stragglers") ||
               Is(training["stragglers"], "policy", "Wait");
      },
      "every sum contains all workers' gradients: no `stragglers: {policy: Drop}`",
      R"("stragglers":{"policy":"Wait"})", R"("stragglers":{"policy":"Drop"})", rules);
  AddTrainingRule(
      "compression", "!has(self.compression) || self.compression.push == 'None'",
      [](const Json& training) {
        return !Reduces(training) || !training.contains("compression") ||
               Is(training["compression"], "push", "None");
      },
      "gradients are sent uncompressed: no `compression.push`",
      R"("compression":{"pull":"Float16"})", R"("compression":{"push":"Float16"})", rules);
  AddJobRule(
      "model.type", "self.model.type != 'Custom'",
      [](const Json& spec) {
        return !Reduces(spec["training"]) || !Is(spec["model"], "type", "Custom");
      },
      "`dense: {aggregation: AllReduce}` needs Sluice's own workers: not for a Custom model",
      R"("tls":"Disabled")",
      R"("tls":"Disabled","model":{"type":"Custom","name":null},
         "data":{"format":"Custom","source":null},"worker":{"command":["a"]})",
      rules);
  AddJobRule(
      "data.partitioning", "self.data.partitioning == 'Shared'",
      [](const Json& spec) {
        return !Reduces(spec["training"]) || Is(spec["data"], "partitioning", "Shared");
      },
      "`dense: {aggregation: AllReduce}` needs `partitioning: Shared`: with `PerWorker`, embedding "
      "tables are always sent whole",
      R"("tls":"Disabled")", R"("tls":"Disabled","data":{"partitioning":"PerWorker"})", rules);
  AddJobRule(
      "timeouts.gradientsSeconds", "(!has(self.timeouts) || !has(self.timeouts.gradientsSeconds))",
      [](const Json& spec) {
        return !Reduces(spec["training"]) || !spec.contains("timeouts") ||
               !spec["timeouts"].contains("gradientsSeconds");
      },
      "with `dense: {aggregation: AllReduce}` all workers wait for the slowest one, and the shards "
      "cannot tell which one that is: no `gradientsSeconds`",
      R"("tls":"Disabled")", R"("tls":"Disabled","timeouts":{"gradientsSeconds":15})", rules);
  AddJobRule(
      "tls", "(has(self.tls) && self.tls == 'Disabled')",
      [](const Json& spec) { return !Reduces(spec["training"]) || Is(spec, "tls", "Disabled"); },
      "`dense: {aggregation: AllReduce}` needs `tls: Disabled`: gloo's connections among workers "
      "are not encrypted",
      R"("tls":"Disabled")", R"("tls":"Enabled")", rules);
  rules->back().failing.push_back(R"({"training":{"dense":{"aggregation":"AllReduce"}}})");
}

}  // namespace sluice::api
