// Slow workers (stragglers, batch sizes by speed), and iteration over the data independently of
// other workers.
#include <string>
#include <vector>

#include "operator/api/enum_names.h"
#include "operator/api/field_builder.h"
#include "operator/api/field_table.h"

namespace sluice::api {
namespace {

using Json = nlohmann::json;

bool Has(const Json& self, const char* name) { return self.contains(name); }
bool Is(const Json& self, const char* name, const char* value) {
  return self.contains(name) && self.at(name) == value;
}
bool Drops(const Json& training) {
  return Has(training, "stragglers") && Is(training["stragglers"], "policy", "Drop");
}

}  // namespace

void AddStragglers(std::vector<Field>* fields) {
  fields->push_back(Object("spec.training.stragglers",
                           "Synchronous: whether a step waits for slow workers. Not with BitExact.")
                        .Fixed());
  fields->push_back(
      String("spec.training.stragglers.policy",
             "`Wait`: a step uses the contributions of all workers. `Drop`: it uses the first "
             "contributions, of all workers but `backup`. The late contributions to this step are "
             "dropped, and their samples are not used in this epoch.")
          .Default(R"("Wait")")
          .OneOf(NamesOf<v1::TrainingSpec::Stragglers::Policy>())
          .Example("Drop")
          .Invalid("Ignore", "must be one of Wait, Drop"));
  fields->push_back(
      Integer(
          "spec.training.stragglers.backup",
          "Drop: the number of workers for which a step does not wait. It always waits for one.")
          .Default("1")
          .Min(1)
          .Max(1023)
          .Context(R"({"spec":{"training":{"stragglers":{"policy":"Drop"}}}})")
          .Example("2")
          .Invalid("0", "at least 1"));
}

void AddPartitioningRules(std::vector<Rule>* rules) {
  rules->push_back(
      {"spec",
       "data.partitioning",
       "self.data.partitioning == 'Shared' || self.training.determinism != 'BitExact'",
       [](const Json& self) {
         return Is(self["data"], "partitioning", "Shared") ||
                !Is(self["training"], "determinism", "BitExact");
       },
       "with `PerWorker` the samples of an update depend on its worker: not with BitExact",
       {R"({"data":{"partitioning":"PerWorker"}})"},
       {R"({"data":{"partitioning":"PerWorker"},
                         "training":{"determinism":"BitExact"}})"}});
  rules->push_back(
      {"spec.data",
       "partitioning",
       "self.partitioning == 'Shared' || !has(self.text) || self.text.state != 'Carried'",
       [](const Json& self) {
         return Is(self, "partitioning", "Shared") || !Has(self, "text") ||
                !Is(self["text"], "state", "Carried");
       },
       "`text.state: Carried` divides the text among the workers: it needs `partitioning: Shared`",
       {R"({"format":"Text","source":{"path":"/t"},"partitioning":"PerWorker","text":{}})"},
       {R"({"format":"Text","source":{"path":"/t"},"partitioning":"PerWorker","shuffle":false,
            "text":{"state":"Carried"}})"},
       R"({"spec":{"model":{"name":"lstm-lm"}}})"});
}

// With Drop, timing decides which workers contribute to a step, so runs cannot be bit-identical.
void AddStragglerRules(std::vector<Rule>* rules) {
  const std::string drop = "!has(self.stragglers) || self.stragglers.policy != 'Drop' || ";
  rules->push_back(
      {"spec.training",
       "stragglers",
       drop + "self.mode == 'Synchronous'",
       [](const Json& self) { return !Drops(self) || Is(self, "mode", "Synchronous"); },
       "in other modes than Synchronous no step waits for workers",
       {R"({"stragglers":{"policy":"Drop"}})",
        R"({"mode":"Asynchronous","stragglers":{"policy":"Wait"}})"},
       {R"({"mode":"Asynchronous","stragglers":{"policy":"Drop"}})"}});
  rules->push_back(
      {"spec.training",
       "stragglers",
       drop + "self.determinism != 'BitExact'",
       [](const Json& self) { return !Drops(self) || !Is(self, "determinism", "BitExact"); },
       "the dropped contributions depend on timing: not with BitExact",
       {R"({"determinism":"BitExact","stragglers":{"policy":"Wait"}})"},
       {R"({"determinism":"BitExact","stragglers":{"policy":"Drop","backup":2}})"}});
  rules->push_back(
      {"spec.training.stragglers",
       "backup",
       "self.policy == 'Drop' || self.backup == 1",
       [](const Json& self) { return Is(self, "policy", "Drop") || self["backup"] == 1; },
       "`backup` is for `policy: Drop`",
       {R"({"policy":"Drop","backup":2})"},
       {R"({"policy":"Wait","backup":2})"},
       R"({"spec":{"training":{"stragglers":{"policy":"Wait"}}}})"});
  rules->push_back(
      {"spec.training",
       "stragglers",
       drop + "self.execution == 'Worker'",
       [](const Json& self) { return !Drops(self) || Is(self, "execution", "Worker"); },
       "`policy: Drop` is for `execution: Worker`",
       {R"({"stragglers":{"policy":"Drop"}})"},
       {R"({"execution":"Server","stragglers":{"policy":"Drop"}})"}});
}

// Batch sizes by speed.
void AddBatchSizeRules(std::vector<Rule>* rules) {
  const std::string balanced = R"({"mode":"Asynchronous","maxBatchSize":128})";
  rules->push_back(
      {"spec.training",
       "maxBatchSize",
       "!has(self.maxBatchSize) || self.mode != 'Synchronous'",
       [](const Json& self) {
         return !Has(self, "maxBatchSize") || !Is(self, "mode", "Synchronous");
       },
       "in `mode: Synchronous` the microbatches of a step are assigned by speed: no `maxBatchSize`",
       {balanced},
       {R"({"maxBatchSize":128})"}});
  rules->push_back(
      {"spec.training",
       "minBatchSize",
       "!has(self.minBatchSize) || has(self.maxBatchSize)",
       [](const Json& self) { return !Has(self, "minBatchSize") || Has(self, "maxBatchSize"); },
       "`minBatchSize` needs `maxBatchSize`",
       {R"({"mode":"Asynchronous","minBatchSize":2,"maxBatchSize":128})"},
       {R"({"mode":"Asynchronous","minBatchSize":2})"}});
  rules->push_back(
      {"spec.training",
       "globalBatchSize",
       "(!has(self.maxBatchSize) || self.globalBatchSize <= self.maxBatchSize) && "
       "(!has(self.minBatchSize) || self.minBatchSize <= self.globalBatchSize)",
       [](const Json& self) {
         const auto size = [&](const char* name) { return self.at(name).get<int64_t>(); };
         return (!Has(self, "maxBatchSize") || size("globalBatchSize") <= size("maxBatchSize")) &&
                (!Has(self, "minBatchSize") || size("minBatchSize") <= size("globalBatchSize"));
       },
       "`globalBatchSize` (default 64), the batch at the mean speed, must be between "
       "`minBatchSize` and `maxBatchSize`",
       {R"({"mode":"Asynchronous","globalBatchSize":32,"minBatchSize":32,"maxBatchSize":32})"},
       {R"({"mode":"Asynchronous","globalBatchSize":129,"maxBatchSize":128})",
        R"({"mode":"Asynchronous","globalBatchSize":8,"minBatchSize":9,"maxBatchSize":128})"}});
  rules->push_back(
      {"spec",
       "training.maxBatchSize",
       "!has(self.training.maxBatchSize) || !has(self.data.text) || self.data.text.state != "
       "'Carried'",
       [](const Json& self) {
         return !Has(self["training"], "maxBatchSize") || !Has(self["data"], "text") ||
                !Is(self["data"]["text"], "state", "Carried");
       },
       "`text.state: Carried` needs a fixed batch size, with one stream of text per sample: no "
       "`maxBatchSize`",
       {R"({"model":{"name":"lstm-lm"},"data":{"format":"Text","source":{"path":"/t"}},
            "training":{"mode":"Asynchronous","maxBatchSize":128}})"},
       {R"({"model":{"name":"lstm-lm"},"data":{"format":"Text","source":{"path":"/t"},
            "text":{"state":"Carried"}},
            "training":{"mode":"Asynchronous","maxBatchSize":128}})"}});
}

}  // namespace sluice::api
