// Fields for the decisions of evaluations: the learning rate (plateau), the end (stopping), and the
// kept checkpoints (keepBest).
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "services/manifest/expression.h"
#include "services/manifest/field_builder.h"
#include "services/manifest/field_table.h"
#include "services/protocol/worker_limits.h"

namespace sluice::api {
namespace {

constexpr char kEvaluation[] =
    R"("data":{"evaluation":{"source":{"path":"/data/test"},"intervalSteps":100}})";

std::string With(const std::string& parent, const std::string& field) {
  return absl::StrCat(R"({"spec":{)", kEvaluation, R"(,")", parent, R"(":{")", field,
                      R"(":{"metric":"loss","patience":3}}}})");
}

void AddMetric(const FieldAdder& add, const std::string& path, const std::string& context) {
  add(String(absl::StrCat(path, ".metric"),
             "`loss`, `accuracy`, `perplexity` of a language model, or a metric of the program's "
             "own by its name.",
             Required(), MetricName(), Context(context), Good("loss"),
             Bad("\"\"", "must not be empty"), Bad("val/auc", "must be a metric's name")));
  add(String(absl::StrCat(path, ".direction"),
             "Whether lower or higher values are better. A metric of the program's own needs it.",
             Implied("`Maximize` for accuracy, `Minimize` for loss and perplexity"),
             OneOf({"Minimize", "Maximize"}), Context(context), Good("Maximize"),
             Bad("max", "must be one of Minimize, Maximize")));
}

bool IsMetricName(absl::string_view text) {
  return !text.empty() && absl::ascii_isalpha(static_cast<unsigned char>(text[0])) &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_';
         });
}

}  // namespace

Attribute MetricName() {
  return Both(Size(1, kMaxMetricNameBytes),
              Pattern("^[A-Za-z][A-Za-z0-9_]*$", IsMetricName,
                      "must be a metric's name: letters, digits and `_`, first a letter"));
}

void AddPlateau(const FieldAdder& add) {
  const std::string path = "spec.optimizer.plateau";
  const std::string context = With("optimizer", "plateau");
  add(Object(
      path,
      "Multiplies the learning rate by `factor` when a metric of the evaluations has stopped "
      "improving, as PyTorch's ReduceLROnPlateau, from the evaluated step on and in addition to "
      "`schedule`. Synchronous training waits at each version that is due for evaluation, so that "
      "a job that is interrupted anywhere reduces at the same steps. Otherwise a reduction holds "
      "from the next view on, and runs differ. Not for Add.",
      Rate(), Context(absl::StrCat(R"({"spec":{)", kEvaluation, "}}"))));
  AddMetric(add, path, context);
  add(Number(path + ".factor", "The factor of each reduction.", Default("0.1"), Above(0), Below(1),
             Context(context), Good("0.5"), Bad("1", "must be less than 1")));
  add(Integer(path + ".patience",
              "Evaluations without improvement that are accepted: the next one reduces the rate.",
              Default("10"), Min(0), Max(1e6), Context(context), Good("2"),
              Bad("-1", "at least 0")));
  add(Number(path + ".threshold", "A value better by no more than this is no improvement.",
             Default("1e-4"), Min(0), Context(context), Good("0.01"), Bad("-0.1", "at least 0")));
  add(Boolean(path + ".relativeThreshold",
              "`threshold` is a fraction of the best value's magnitude. PyTorch takes the value "
              "itself, and so counts slightly worse negative values as improvements.",
              Default("true"), Context(context), Good("false")));
  add(Integer(path + ".cooldown", "Evaluations after a reduction that are not counted.",
              Default("0"), Min(0), Max(1e6), Context(context), Good("3")));
  add(Number(path + ".minFactor", "The lowest product of all reductions.", Default("0"), Min(0),
             Max(1), Context(context), Good("0.001"), Bad("2", "at most 1")));
}

void AddStopping(const FieldAdder& add) {
  const std::string path = "spec.training.stopping";
  const std::string context = With("training", "stopping");
  add(Object(
      path,
      "Ends training when a metric of the evaluations has stopped improving. The job ends at "
      "the evaluated version, with a last evaluation and a checkpoint, and has succeeded. "
      "Synchronous training waits at each version that is due for evaluation.",
      Length(), Context(absl::StrCat(R"({"spec":{)", kEvaluation, "}}"))));
  AddMetric(add, path, context);
  add(Integer(path + ".patience", "The number of evaluations in a row without improvement.",
              Required(), Min(1), Max(1e6), Context(context), Good("3"), Bad("0", "at least 1")));
  add(Number(path + ".minDelta", "A value better by no more than this is no improvement.",
             Default("0"), Min(0), Context(context), Good("0.001"), Bad("-1", "at least 0")));
}

void AddKeepBest(const FieldAdder& add) {
  const std::string path = "spec.checkpoint.keepBest";
  const std::string context = absl::StrCat(R"({"spec":{)", kEvaluation,
                                           R"(,"checkpoint":{"keepBest":{"metric":"loss"}}}})");
  add(Object(path,
             "Keeps the checkpoints of the evaluations with the best values, besides the newest "
             "ones. Each evaluated version is written, and its files are removed if its evaluation "
             "is not among the best. Of equal values the first one is kept.",
             Context(absl::StrCat(R"({"spec":{)", kEvaluation, "}}"))));
  AddMetric(add, path, context);
  add(Integer(path + ".count", "The number of checkpoints.", Default("1"), Min(1), Max(1000),
              Context(context), Good("3"), Bad("0", "at least 1")));
}

void AddDecisionRules(std::vector<Rule>* rules) {
  const RuleAdder job("spec", rules);
  job("optimizer.plateau", !Has("optimizer.plateau") || Self("optimizer.name") != "Add",
      "the optimizer Add has no learning rate: no `plateau`",
      {absl::StrCat("{", kEvaluation, R"(,"optimizer":{"plateau":{"metric":"loss"}}})")},
      {absl::StrCat("{", kEvaluation,
                    R"(,"optimizer":{"name":"Add","plateau":{"metric":"loss"}}})")});
  for (const auto& [parent, field] : std::vector<std::pair<std::string, std::string>>{
           {"optimizer", "plateau"}, {"training", "stopping"}, {"checkpoint", "keepBest"}}) {
    const std::string path = absl::StrCat(parent, ".", field);
    const auto with = [&, name = field, in = parent](
                          const std::string& evaluation, const std::string& mode,
                          const std::string& metric = "loss", const std::string& more = "") {
      const std::string object =
          absl::StrCat(R"(")", name, R"(":{"metric":")", metric, R"(","patience":2)", more, "}");
      if (in == "checkpoint") {
        return absl::StrCat(R"({"data":{)", evaluation, R"(},"training":{"mode":")", mode,
                            R"("},"checkpoint":{"keepBest":{"metric":")", metric, R"(")", more,
                            "}}}");
      }
      return in == "training"
                 ? absl::StrCat(R"({"data":{)", evaluation, R"(},"training":{"mode":")", mode,
                                R"(",)", object, "}}")
                 : absl::StrCat(R"({"data":{)", evaluation, R"(},"training":{"mode":")", mode,
                                R"("},"optimizer":{)", object, "}}");
    };
    const std::string steps = R"("evaluation":{"source":{"path":"/t"},"intervalSteps":5})";
    const std::string seconds = R"("evaluation":{"source":{"path":"/t"},"intervalSeconds":5})";
    const Expr unset = parent == "checkpoint" ? !Has(parent) || !Has(path) : !Has(path);
    job(path,
        unset || (Has("data.evaluation") &&
                  (Has("data.evaluation.intervalSteps") || Has("data.evaluation.intervalSeconds"))),
        absl::StrCat("`", field,
                     "` needs `data.evaluation` with `intervalSteps` (or, in other modes than "
                     "Synchronous, `intervalSeconds`)"),
        {with(steps, "Synchronous"), with(seconds, "Asynchronous")},
        {with("", "Synchronous"),
         with(R"("evaluation":{"source":{"path":"/t"}})", "Asynchronous")});
    if (parent != "checkpoint")
      job(path,
          unset || !Has("data.evaluation") || Self("training.mode") != "Synchronous" ||
              !Has("data.evaluation.intervalSeconds"),
          absl::StrCat("in `mode: Synchronous` `", field,
                       "` needs `data.evaluation` with `intervalSteps` and without "
                       "`intervalSeconds`: training waits at steps that are known before"),
          {with(steps, "Synchronous")}, {with(seconds, "Synchronous")});
    job(path + ".direction",
        unset || Has(path + ".direction") ||
            IsOneOf(Self(path + ".metric"), {"loss", "accuracy", "perplexity"}),
        "a metric of the program's own needs `direction: Minimize` or `direction: Maximize`",
        {with(steps, "Synchronous", "auc", R"(,"direction":"Maximize")")},
        {with(steps, "Synchronous", "auc")});
  }
}

}  // namespace sluice::api
