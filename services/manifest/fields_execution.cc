// Rows and rules for where the layers are computed: server-side execution.
#include <string>
#include <vector>

#include "services/manifest/expression.h"
#include "services/manifest/field_builder.h"
#include "services/manifest/field_table.h"

namespace sluice::api {
namespace {

constexpr char kServer[] = R"({"spec":{"training":{"execution":"Server"}}})";
constexpr char kTwoStages[] =
    R"({"spec":{"model":{"name":"mnist-net","stages":[{"layers":["conv1","conv2"]},
        {"layers":["fc1","fc2"]}]},"training":{"execution":"Server"},
        "parameterServer":{"replicas":2}}})";

}  // namespace

void AddStages(const FieldAdder& add) {
  add(List("spec.model.stages",
           "With `training.execution: Server`: the layers of each shard that computes, in the "
           "order of the forward pass. Every layer of the model is in exactly one stage. Unset: "
           "one shard computes all layers.",
           Shapes(), Size(1, 64), Context(kTwoStages),
           Good("[{layers: [conv1, conv2]}, {layers: [fc1, fc2]}]"),
           Bad("[conv1]", "must be a map")));
  add(Object("spec.model.stages[]", "One stage."));
  add(List("spec.model.stages[].layers",
           "Names of layers: the part of a name in PyTorch's state_dict before the last dot, e.g. "
           "`conv1` of `conv1.weight`.",
           Required(), Size(1, 256)));
  add(String("spec.model.stages[].layers[]", "One layer.", Size(1, 253)));
  add(String(
      "spec.model.stages[].device",
      "The device on which the shard computes this stage, as in `model.device`. If the GPU is "
      "missing, the shard uses the CPU, with a warning. Unset: `model.device`.",
      Size(1, 16),
      Pattern("^(cpu|cuda(:[0-9]+)?)$", IsDeviceName, "must be `cpu`, `cuda` or `cuda:<number>`")));
}

void AddExecution(const FieldAdder& add) {
  add(String("spec.training.execution",
             "`Worker`: workers pull the parameters and compute. `Server`: the "
             "shards (sluice-ps-torch) compute the layers; workers send inputs "
             "forward and gradients backward.",
             Fixed(), Default(R"("Worker")"), OneOf({"Worker", "Server"}), Good("Server"),
             Bad("Remote", "must be one of Worker, Server")));
}

void AddDebug(const FieldAdder& add) {
  add(Object("spec.debug", "For tests and demonstrations: jobs that train need none of it."));
  add(Number("spec.debug.stepDelaySeconds",
             "A worker's pause before each computation of a gradient: once a step, and with "
             "`determinism: BitExact` once for each microbatch.",
             Default("0"), Min(0), Max(60), Good("0.1"), Bad("61", "at most 60")));
  add(Boolean("spec.debug.verifyGradients",
              "With `execution: Server`: workers fetch the gradients of every context and fail if "
              "any is missing, empty or not finite. It needs the traffic that server-side "
              "execution saves.",
              Default("false"), Context(kServer), Good("true"),
              Bad("maybe", "must be true or false")));
}

void AddExecutionRules(std::vector<Rule>* rules) {
  const RuleAdder add("spec", rules);
  const Expr by_workers = Self("training.execution") == "Worker";
  const Expr by_shards = Self("training.execution") == "Server";
  add("training.execution", by_workers || Self("model.type") != "Custom",
      "`execution: Server` is for models that Sluice computes; `worker.command` computes a Custom "
      "model",
      {R"({"training":{"execution":"Server"}})"},
      {R"({"model":{"type":"Custom","name":null},"data":{"format":"Custom","source":null},
            "worker":{"command":["a"]},"training":{"execution":"Server"}})"});
  add("training.determinism", by_workers || Self("training.determinism") == "Default",
      "`determinism: BitExact` is not for `execution: Server`: gradients are added on the shards",
      {R"({"training":{"determinism":"BitExact"}})"},
      {R"({"training":{"execution":"Server","determinism":"BitExact"}})"});
  add("training.kernels",
      by_workers || !Has("training.kernels") || Self("training.kernels") == "Native",
      "`kernels` is not for `execution: Server`: the shards compute the layers",
      {R"({"training":{"kernels":"x86-64-v3"}})",
       R"({"training":{"execution":"Server","kernels":"Native"}})"},
      {R"({"training":{"execution":"Server","kernels":"x86-64-v3"}})"});
  add("training.compression",
      by_workers || !Has("training.compression") ||
          (Self("training.compression.push") == "None" &&
           Self("training.compression.pull") == "None"),
      "with `execution: Server` neither gradients nor parameters are sent: no `compression`",
      {R"({"training":{"compression":{"push":"Int8"}}})"},
      {R"({"training":{"execution":"Server","compression":{"push":"Int8"}}})"});
  add("debug.verifyGradients", by_shards || !Has("debug") || !Self("debug.verifyGradients"),
      "`verifyGradients` is for `execution: Server`",
      {R"({"training":{"execution":"Server"},"debug":{"verifyGradients":true}})"},
      {R"({"debug":{"verifyGradients":true}})"});
  add("model.stages", by_shards || !Has("model.stages"),
      "`stages` are for `training.execution: Server`",
      {R"({"model":{"name":"mlp","stages":[{"layers":["fc1","fc2"]}]},
                         "training":{"execution":"Server"}})"},
      {R"({"model":{"name":"mlp","stages":[{"layers":["fc1","fc2"]}]}})"});
  add("model.stages",
      !Has("model.stages") || Size(Self("model.stages")) <=
                                  If(Has("parameterServer"), Self("parameterServer.replicas"), 1),
      "there must be a shard for each stage: `parameterServer.replicas` is less than the number of "
      "`stages`",
      {R"({"model":{"name":"mlp","stages":[{"layers":["fc1"]},{"layers":["fc2"]}]},
            "training":{"execution":"Server"},"parameterServer":{"replicas":2}})"},
      {R"({"model":{"name":"mlp","stages":[{"layers":["fc1"]},{"layers":["fc2"]}]},
            "training":{"execution":"Server"},"parameterServer":{"replicas":1}})"});
  add("data.text.state", by_workers || !Has("data.text") || Self("data.text.state") != "Carried",
      "`state: Carried` is not for `execution: Server`",
      {R"({"model":{"name":"lstm-lm"},"data":{"format":"Text","source":{"path":"/t"}},
            "training":{"execution":"Server"}})"},
      {R"({"model":{"name":"lstm-lm"},"data":{"format":"Text","source":{"path":"/t"},
            "text":{"state":"Carried"}},"training":{"execution":"Server"}})"});
}

}  // namespace sluice::api
