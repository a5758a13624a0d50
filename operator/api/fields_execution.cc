// Rows and rules for where the layers are computed: server-side execution.
#include <string>
#include <vector>

#include "operator/api/enum_names.h"
#include "operator/api/field_builder.h"
#include "operator/api/field_table.h"

namespace sluice::api {
namespace {

using Json = nlohmann::json;

constexpr char kServer[] = R"({"spec":{"training":{"execution":"Server"}}})";
constexpr char kTwoStages[] =
    R"({"spec":{"model":{"name":"mnist-net","stages":[{"layers":["conv1","conv2"]},
        {"layers":["fc1","fc2"]}]},"training":{"execution":"Server"},
        "parameterServer":{"replicas":2}}})";

bool IsServer(const Json& spec) { return spec.at("training").at("execution") == "Server"; }

int64_t Shards(const Json& spec) {
  return spec.contains("parameterServer") ? spec["parameterServer"].value("replicas", int64_t{1})
                                          : 1;
}

}  // namespace

void AddStages(std::vector<Field>* fields) {
  fields->push_back(List("spec.model.stages",
                         "With `training.execution: Server`: the layers of each shard that "
                         "computes, in the order of the forward pass. Every layer of the model is "
                         "in exactly one stage. Unset: one shard computes all layers.")
                        .Fixed()
                        .Size(1, 64)
                        .Context(kTwoStages)
                        .Example("[{layers: [conv1, conv2]}, {layers: [fc1, fc2]}]")
                        .Invalid("[conv1]", "must be a map"));
  fields->push_back(Object("spec.model.stages[]", "One stage."));
  fields->push_back(List("spec.model.stages[].layers",
                         "Names of layers: the part of a name in PyTorch's state_dict before the "
                         "last dot, e.g. `conv1` of `conv1.weight`.")
                        .Required()
                        .Size(1, 256));
  fields->push_back(String("spec.model.stages[].layers[]", "One layer.").Size(1, 253));
  fields->push_back(
      String("spec.model.stages[].device",
             "The device on which the shard computes this stage, as in `model.device`. If the GPU "
             "is missing, the shard uses the CPU, with a warning. Unset: `model.device`.")
          .Size(1, 16)
          .Pattern("^(cpu|cuda(:[0-9]+)?)$", IsDeviceName,
                   "must be `cpu`, `cuda` or `cuda:<number>`"));
}

void AddExecution(std::vector<Field>* fields) {
  fields->push_back(String("spec.training.execution",
                           "`Worker`: workers pull the parameters and compute. `Server`: the "
                           "shards (sluice-ps-torch) compute the layers; workers send inputs "
                           "forward and gradients backward.")
                        .Fixed()
                        .Default(R"("Worker")")
                        .OneOf(NamesOf<v1::TrainingSpec::Execution>())
                        .Example("Server")
                        .Invalid("Remote", "must be one of Worker, Server"));
  fields->push_back(Boolean("spec.training.verifyGradients",
                            "With `execution: Server`: workers fetch the gradients of every "
                            "context and fail if any is missing, empty or not finite. For tests: "
                            "it needs the traffic that server-side execution saves.")
                        .Default("false")
                        .Context(kServer)
                        .Example("true")
                        .Invalid("maybe", "must be true or false"));
}

void AddExecutionRules(std::vector<Rule>* rules) {
  rules->push_back(
      {"spec",
       "training.execution",
       "self.training.execution == 'Worker' || self.model.type != 'Custom'",
       [](const Json& self) { return !IsServer(self) || self["model"]["type"] != "Custom"; },
       "`execution: Server` is for models that Sluice computes; `worker.command` computes a Custom "
       "model",
       {R"({"training":{"execution":"Server"}})"},
       {R"({"model":{"type":"Custom","name":null},"data":{"format":"Custom","source":null},
            "worker":{"command":["a"]},"training":{"execution":"Server"}})"}});
  rules->push_back(
      {"spec",
       "training.determinism",
       "self.training.execution == 'Worker' || self.training.determinism == 'Default'",
       [](const Json& self) {
         return !IsServer(self) || self["training"]["determinism"] == "Default";
       },
       "`determinism: BitExact` is not for `execution: Server`: gradients are added on the shards",
       {R"({"training":{"determinism":"BitExact"}})"},
       {R"({"training":{"execution":"Server","determinism":"BitExact"}})"}});
  rules->push_back(
      {"spec",
       "training.compression",
       "self.training.execution == 'Worker' || !has(self.training.compression) || "
       "(self.training.compression.push == 'None' && self.training.compression.pull == 'None')",
       [](const Json& self) {
         if (!IsServer(self) || !self["training"].contains("compression")) return true;
         const Json& compression = self["training"]["compression"];
         return compression["push"] == "None" && compression["pull"] == "None";
       },
       "with `execution: Server` neither gradients nor parameters are sent: no `compression`",
       {R"({"training":{"compression":{"push":"Int8"}}})"},
       {R"({"training":{"execution":"Server","compression":{"push":"Int8"}}})"}});
  rules->push_back({"spec",
                    "training.verifyGradients",
                    "self.training.execution == 'Server' || !self.training.verifyGradients",
                    [](const Json& self) {
                      return IsServer(self) || self["training"]["verifyGradients"] == false;
                    },
                    "`verifyGradients` is for `execution: Server`",
                    {R"({"training":{"execution":"Server","verifyGradients":true}})"},
                    {R"({"training":{"verifyGradients":true}})"}});
  rules->push_back(
      {"spec",
       "model.stages",
       "self.training.execution == 'Server' || !has(self.model.stages)",
       [](const Json& self) { return IsServer(self) || !self["model"].contains("stages"); },
       "`stages` are for `training.execution: Server`",
       {R"({"model":{"name":"mlp","stages":[{"layers":["fc1","fc2"]}]},
                         "training":{"execution":"Server"}})"},
       {R"({"model":{"name":"mlp","stages":[{"layers":["fc1","fc2"]}]}})"}});
  rules->push_back(
      {"spec",
       "model.stages",
       "!has(self.model.stages) || size(self.model.stages) <= (has(self.parameterServer) ? "
       "self.parameterServer.replicas : 1)",
       [](const Json& self) {
         return !self["model"].contains("stages") ||
                static_cast<int64_t>(self["model"]["stages"].size()) <= Shards(self);
       },
       "there must be a shard for each stage: `parameterServer.replicas` is less than the number "
       "of "
       "`stages`",
       {R"({"model":{"name":"mlp","stages":[{"layers":["fc1"]},{"layers":["fc2"]}]},
            "training":{"execution":"Server"},"parameterServer":{"replicas":2}})"},
       {R"({"model":{"name":"mlp","stages":[{"layers":["fc1"]},{"layers":["fc2"]}]},
            "training":{"execution":"Server"},"parameterServer":{"replicas":1}})"}});
  rules->push_back(
      {"spec",
       "data.text.state",
       "self.training.execution == 'Worker' || !has(self.data.text) || self.data.text.state != "
       "'Carried'",
       [](const Json& self) {
         return !IsServer(self) || !self["data"].contains("text") ||
                self["data"]["text"]["state"] != "Carried";
       },
       "`state: Carried` is not for `execution: Server`",
       {R"({"model":{"name":"lstm-lm"},"data":{"format":"Text","source":{"path":"/t"}},
            "training":{"execution":"Server"}})"},
       {R"({"model":{"name":"lstm-lm"},"data":{"format":"Text","source":{"path":"/t"},
            "text":{"state":"Carried"}},"training":{"execution":"Server"}})"}});
}

}  // namespace sluice::api
