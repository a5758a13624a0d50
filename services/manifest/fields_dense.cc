// How gradients of dense tensors are summed: `training.dense`.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/manifest/expression.h"
#include "services/manifest/field_builder.h"
#include "services/manifest/field_table.h"

namespace sluice::api {
namespace {

constexpr char kPlainText[] = R"({"spec":{"tls":"Disabled"}})";

// Rules of `spec` for jobs that use all-reduce; `bad` are fields beside `training`.
void AddDenseJobRules(std::vector<Rule>* rules) {
  constexpr char kReduce[] = R"("training":{"dense":{"aggregation":"AllReduce"}})";
  const RuleAdder job("spec", rules);
  const auto add = [&](const char* field, const Expr& holds, const std::string& message,
                       const std::string& bad) {
    job(field, holds, message, {absl::StrCat(R"({"tls":"Disabled",)", kReduce, "}")},
        {absl::StrCat("{", bad, ",", kReduce, "}")});
  };
  const Expr unset = !Has("training.dense") || Self("training.dense.aggregation") != "AllReduce";
  add("data.partitioning", unset || Self("data.partitioning") == "Shared",
      "`dense: {aggregation: AllReduce}` needs `partitioning: Shared`: with `PerWorker`, embedding "
      "tables are always sent whole",
      R"("tls":"Disabled","data":{"partitioning":"PerWorker"})");
  add("timeouts.gradientsSeconds", unset || (!Has("timeouts") || !Has("timeouts.gradientsSeconds")),
      "with `dense: {aggregation: AllReduce}` all workers wait for the slowest one, and the shards "
      "cannot identify it: no `gradientsSeconds`",
      R"("tls":"Disabled","timeouts":{"gradientsSeconds":15})");
  add("tls", unset || (Has("tls") && Self("tls") == "Disabled"),
      "`dense: {aggregation: AllReduce}` needs `tls: Disabled`: gloo's connections among workers "
      "are not encrypted",
      R"("tls":"Enabled")");
  rules->back().failing.push_back(R"({"training":{"dense":{"aggregation":"AllReduce"}}})");
}

}  // namespace

void AddDense(const FieldAdder& add) {
  add(Object("spec.training.dense",
             "Synchronous: how the gradients of dense tensors are summed: of all tensors but those "
             "that are sent as rows of embedding tables.",
             Fixed()));
  add(String("spec.training.dense.aggregation",
             "`ParameterServer`: the shards sum them; every worker pushes all of its gradient. "
             "`AllReduce`: the workers sum them among themselves (gloo), and each pushes a part of "
             "the sum, so the shards receive one gradient a step, not one from each worker. The "
             "workers' connections are not encrypted, so `tls: Disabled` is required.",
             Default(R"("ParameterServer")"), OneOf({"ParameterServer", "AllReduce"}),
             Context(kPlainText), Good("AllReduce"),
             Bad("Ring", "must be one of ParameterServer, AllReduce")));
}

void AddDenseRules(std::vector<Rule>* rules) {
  const RuleAdder training("spec.training", rules);
  // A rule for jobs that use all-reduce; `good` and `bad` are fields beside `dense`.
  const auto add = [&](const char* field, const Expr& holds, const std::string& message,
                       const std::string& good, const std::string& bad) {
    const auto example = [](const std::string& fields, const char* aggregation) {
      return absl::StrCat(R"({"dense":{"aggregation":")", aggregation, "\"}",
                          fields.empty() ? "" : ",", fields, "}");
    };
    training(field, holds, absl::StrCat("with `dense: {aggregation: AllReduce}` ", message),
             {example(good, "AllReduce"), example(bad, "ParameterServer")},
             {example(bad, "AllReduce")}, kPlainText);
  };
  const Expr unset = !Has("dense") || Self("dense.aggregation") != "AllReduce";
  add("mode", unset || Self("mode") == "Synchronous",
      "all workers sum the gradients of one step: `mode: Synchronous`", "",
      R"("mode":"Asynchronous")");
  add("determinism", unset || Self("determinism") == "Default",
      "gradients are added in the order of the workers, so the bits depend on their number: not "
      "with BitExact",
      "", R"("determinism":"BitExact")");
  add("execution", unset || Self("execution") == "Worker",
      "workers compute the gradients, not shards: `execution: Worker`", "",
      R"("execution":"Server")");
  add("stragglers", unset || !Has("stragglers") || Self("stragglers.policy") == "Wait",
      "every sum contains all workers' gradients: no `stragglers: {policy: Drop}`",
      R"("stragglers":{"policy":"Wait"})", R"("stragglers":{"policy":"Drop"})");
  add("compression", unset || !Has("compression") || Self("compression.push") == "None",
      "gradients are sent uncompressed: no `compression.push`",
      R"("compression":{"pull":"Float16"})", R"("compression":{"push":"Float16"})");
  AddDenseJobRules(rules);
}

}  // namespace sluice::api
