// Layers that compute with numbers of a whole step: `training.sync`.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/manifest/expression.h"
#include "services/manifest/field_builder.h"
#include "services/manifest/field_table.h"

namespace sluice::api {
namespace {

constexpr char kCustom[] =
    R"({"spec":{"model":{"type":"Custom","name":null},"worker":{"command":["a"]},
                "data":{"format":"Custom","source":null}}})";
constexpr char kSync[] = R"({"sync":"BatchNorm"})";

}  // namespace

void AddSync(const FieldAdder& add) {
  add(String(
      "spec.training.sync",
      "Synchronous, Python workers: the layers that compute with numbers of the whole step. "
      "`None`: batch norm uses the statistics of each worker's part of a step, as with "
      "DistributedDataParallel. `BatchNorm`: it uses those of the whole step, as "
      "SyncBatchNorm does, so that they do not depend on the number of workers. Each batch "
      "norm then waits for all workers, forward and backward, and a step that loses a worker "
      "is computed again by all of them.",
      Fixed(), Default(R"("None")"), OneOf({"None", "BatchNorm"}), Context(kCustom),
      Good("BatchNorm"), Bad("SyncBatchNorm", "must be one of None, BatchNorm")));
}

void AddSyncRules(std::vector<Rule>* rules) {
  const RuleAdder training("spec.training", rules);
  const Expr unset = Self("sync") == "None";
  const auto add = [&](const char* field, const Expr& holds, const std::string& message,
                       const std::string& bad) {
    training(field, unset || holds, message, {kSync, absl::StrCat("{", bad, "}")},
             {absl::StrCat(R"({"sync":"BatchNorm",)", bad, "}")}, kCustom);
  };
  add("mode", Self("mode") == "Synchronous",
      "`sync: BatchNorm` needs `mode: Synchronous`: in other modes an update is computed by one "
      "worker",
      R"("mode":"Asynchronous")");
  add("determinism", Self("determinism") == "Default",
      "`sync: BatchNorm` is not for BitExact, where each microbatch is computed by itself: batch "
      "norm then uses the statistics of a microbatch, which are the same for any number of "
      "workers. Leave `sync` out, and choose a larger `microbatchSize`",
      R"("determinism":"BitExact")");
  add("aggregation", Self("aggregation") == "Mean",
      "`sync: BatchNorm` needs `aggregation: Mean`: with Sum each microbatch is computed by itself",
      R"("aggregation":"Sum")");
  add("stragglers", !Has("stragglers") || Self("stragglers.policy") == "Wait",
      "with `sync: BatchNorm` every batch norm waits for all workers: no `stragglers: {policy: "
      "Drop}`",
      R"("stragglers":{"policy":"Drop"})");

  const RuleAdder job("spec", rules);
  const Expr none = Self("training.sync") == "None";
  job("model.type", none || Self("model.type") == "Custom",
      "`sync: BatchNorm` is for `model: {type: Custom}` with a PyTorch module in Python: the "
      "built-in "
      "models have no batch norm, and that of a TorchScript file cannot be replaced. Train the "
      "module "
      "in Python, or leave `training.sync` out",
      {R"({"training":{"sync":"BatchNorm"}})"},
      {R"({"model":{"type":"Builtin","name":"mlp"},"training":{"sync":"BatchNorm"}})"}, kCustom);
  job("timeouts.gradientsSeconds", none || !Has("timeouts") || !Has("timeouts.gradientsSeconds"),
      "with `sync: BatchNorm` all workers wait for the slowest one, and the shards cannot identify "
      "it: no `gradientsSeconds`",
      {R"({"training":{"sync":"BatchNorm"}})", R"({"timeouts":{"gradientsSeconds":15}})"},
      {R"({"timeouts":{"gradientsSeconds":15},"training":{"sync":"BatchNorm"}})"}, kCustom);
}

}  // namespace sluice::api
