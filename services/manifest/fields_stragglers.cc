// Slow workers (stragglers, batch sizes by speed), and iteration over the data independently of
// other workers.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/manifest/expression.h"
#include "services/manifest/field_builder.h"
#include "services/manifest/field_table.h"
#include "services/manifest/training_job.h"

namespace sluice::api {
void AddStragglers(const FieldAdder& add) {
  add(Object("spec.training.stragglers",
             "Synchronous: whether a step waits for slow workers. Not with BitExact.", Fixed()));
  add(String(
      "spec.training.stragglers.policy",
      "`Wait`: a step uses the contributions of all workers. `Drop`: a step does not wait "
      "for the last `backup` contributions. They are dropped, and their samples are not used "
      "in this epoch.",
      Default(R"("Wait")"), OneOf({"Wait", "Drop"}), Good("Drop"),
      Bad("Ignore", "must be one of Wait, Drop")));
  add(Integer(
      "spec.training.stragglers.backup",
      "Drop: the number of workers for which a step does not wait. It always waits for one.",
      Default("1"), Min(1), Max(1023),
      Context(R"({"spec":{"training":{"stragglers":{"policy":"Drop"}}}})"), Good("2"),
      Bad("0", "at least 1")));
}

void AddPartitioningRules(std::vector<Rule>* rules) {
  const RuleAdder job("spec", rules);
  job("data.partitioning",
      Self("data.partitioning") == "Shared" || Self("training.determinism") != "BitExact",
      "with `PerWorker` the samples of an update depend on its worker: not with BitExact",
      {R"({"data":{"partitioning":"PerWorker"}})"}, {R"({"data":{"partitioning":"PerWorker"},
                         "training":{"determinism":"BitExact"}})"});
  const RuleAdder data("spec.data", rules);
  data("partitioning",
       Self("partitioning") == "Shared" || !Has("text") || Self("text.state") != "Carried",
       "`text.state: Carried` divides the text among the workers: it needs `partitioning: Shared`",
       {R"({"format":"Text","source":{"path":"/t"},"partitioning":"PerWorker","text":{}})"},
       {R"({"format":"Text","source":{"path":"/t"},"partitioning":"PerWorker","shuffle":false,
            "text":{"state":"Carried"}})"},
       R"({"spec":{"model":{"name":"lstm-lm"}}})");
}

// With Drop, timing decides which workers contribute to a step, so runs cannot be bit-identical.
void AddStragglerRules(std::vector<Rule>* rules) {
  const RuleAdder add("spec.training", rules);
  const Expr waits = !Has("stragglers") || Self("stragglers.policy") != "Drop";
  add("stragglers", waits || Self("mode") == "Synchronous",
      "in other modes than Synchronous no step waits for workers",
      {R"({"stragglers":{"policy":"Drop"}})",
       R"({"mode":"Asynchronous","stragglers":{"policy":"Wait"}})"},
      {R"({"mode":"Asynchronous","stragglers":{"policy":"Drop"}})"});
  add("stragglers", waits || Self("determinism") != "BitExact",
      "the dropped contributions depend on timing: not with BitExact",
      {R"({"determinism":"BitExact","stragglers":{"policy":"Wait"}})"},
      {R"({"determinism":"BitExact","stragglers":{"policy":"Drop","backup":2}})"});
  const RuleAdder stragglers("spec.training.stragglers", rules);
  stragglers("backup", Self("policy") == "Drop" || Self("backup") == 1,
             "`backup` is for `policy: Drop`", {R"({"policy":"Drop","backup":2})"},
             {R"({"policy":"Wait","backup":2})"},
             R"({"spec":{"training":{"stragglers":{"policy":"Wait"}}}})");
  add("stragglers", waits || Self("execution") == "Worker",
      "`policy: Drop` is for `execution: Worker`", {R"({"stragglers":{"policy":"Drop"}})"},
      {R"({"execution":"Server","stragglers":{"policy":"Drop"}})"});
}

// Batch sizes by speed.
void AddBatchSizeRules(std::vector<Rule>* rules) {
  const std::string balanced = R"({"mode":"Asynchronous","maxBatchSize":128})";
  const RuleAdder add("spec.training", rules);
  add("maxBatchSize", !Has("maxBatchSize") || Self("mode") != "Synchronous",
      "in `mode: Synchronous` the microbatches of a step are assigned by speed: no `maxBatchSize`",
      {balanced}, {R"({"maxBatchSize":128})"});
  add("minBatchSize", !Has("minBatchSize") || Has("maxBatchSize"),
      "`minBatchSize` needs `maxBatchSize`",
      {R"({"mode":"Asynchronous","minBatchSize":2,"maxBatchSize":128})"},
      {R"({"mode":"Asynchronous","minBatchSize":2})"});
  add("globalBatchSize",
      (!Has("maxBatchSize") || Self("globalBatchSize") <= Self("maxBatchSize")) &&
          (!Has("minBatchSize") || Self("minBatchSize") <= Self("globalBatchSize")),
      absl::StrCat("`globalBatchSize` (default ", kDefaultGlobalBatchSize,
                   "), the batch at the mean speed, must be between `minBatchSize` and "
                   "`maxBatchSize`"),
      {R"({"mode":"Asynchronous","globalBatchSize":32,"minBatchSize":32,"maxBatchSize":32})"},
      {R"({"mode":"Asynchronous","globalBatchSize":129,"maxBatchSize":128})",
       R"({"mode":"Asynchronous","globalBatchSize":8,"minBatchSize":9,"maxBatchSize":128})"});
  const RuleAdder job("spec", rules);
  job("training.maxBatchSize",
      !Has("training.maxBatchSize") || !Has("data.text") || Self("data.text.state") != "Carried",
      "`text.state: Carried` needs a fixed batch size, with one stream of text per sample: no "
      "`maxBatchSize`",
      {R"({"model":{"name":"lstm-lm"},"data":{"format":"Text","source":{"path":"/t"}},
            "training":{"mode":"Asynchronous","maxBatchSize":128}})"},
      {R"({"model":{"name":"lstm-lm"},"data":{"format":"Text","source":{"path":"/t"},
            "text":{"state":"Carried"}},
            "training":{"mode":"Asynchronous","maxBatchSize":128}})"});
}

}  // namespace sluice::api
