// Rules that relate fields.
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "services/common/text/web_address.h"
#include "services/manifest/expression.h"
#include "services/manifest/field_builder.h"
#include "services/manifest/field_table.h"
#include "services/manifest/training_job.h"

namespace sluice::api {
namespace {

constexpr char kIdx[] = R"({"spec":{"data":{"format":"IDX","source":{"path":"/data"}}}})";
constexpr char kCsv[] =
    R"({"spec":{"data":{"format":"CSV","source":{"path":"/d.csv"},"csv":{"labelColumn":"income"}}}})";
constexpr char kCustomModel[] =
    R"({"spec":{"model":{"type":"Custom","name":null},"worker":{"command":["a"]}}})";
constexpr char kSynthetic[] = R"({"spec":{"data":{"format":"Synthetic","source":null}}})";

void AddModelRules(std::vector<Rule>* rules) {
  const RuleAdder add("spec.model", rules);
  add("name", Self("type") != "Builtin" || Has("name"),
      "a Builtin model needs `name`, e.g. mnist-net", {R"({})"}, {R"({"name":null})"});
  add("name", Self("type") == "Builtin" || !Has("name"),
      "`name` chooses a Builtin model; a TorchScript model is chosen by `path`",
      {R"({"type":"TorchScript","name":null,"path":"/m.pt"})"},
      {R"({"type":"TorchScript","path":"/m.pt"})"});
  add("path", Self("type") != "TorchScript" || Has("path"),
      "a TorchScript model needs `path`, the file that torch.jit.save wrote",
      {R"({"type":"TorchScript","name":null,"path":"/m.pt"})"},
      {R"({"type":"TorchScript","name":null})"});
  add("path", Self("type") == "TorchScript" || !Has("path"),
      "`path` is for `type: TorchScript`; a Builtin model is chosen by `name`", {R"({})"},
      {R"({"path":"/m.pt"})"});
  add("dimensions", Self("type") == "Builtin" || !Has("dimensions"),
      "`dimensions` are for Builtin models; a TorchScript file contains its own",
      {R"({"name":"additive","dimensions":{"dim":10}})"},
      {R"({"type":"TorchScript","name":null,"path":"/m.pt","dimensions":{"dim":10}})"});
  add("dimensions",
      !Has("name") || Self("name") != "additive" ||
          (Has("dimensions") && IsIn("dim", Self("dimensions"))),
      "the model `additive` needs its size, e.g. `dimensions: {dim: 10}`",
      {R"({"name":"additive","dimensions":{"dim":10}})"},
      {R"({"name":"additive"})", R"({"name":"additive","dimensions":{"in":10}})"});
}

// Whether a field is a path; whether it is an address, as services/common/text/web_address.h parses
// it: host, directories, a name, optionally a query, the checksum.
Expr IsPath(absl::string_view field) { return !HasPart(Self(field), "://"); }
Expr IsAddress(absl::string_view field) {
  constexpr char kNot[] = "#[:space:][:cntrl:]";  // not allowed before the checksum
  return Matches(Self(field),
                 absl::StrCat("^https?://[^/?", kNot, "]+/([^?", kNot, "]*/)?[^/?", kNot,
                              "]+([?][^", kNot, "]*)?#sha256=[0-9a-fA-F]{64}$"),
                 [](absl::string_view text) { return ParseWebAddress(text).ok(); });
}
constexpr char kAddressMessage[] =
    "an address is http://HOST/FILE#sha256=CHECKSUM, or the same with https, with the 64 digits "
    "that `sha256sum FILE` prints";

// The fields that may contain an address instead of a path.
void AddAddressRules(std::vector<Rule>* rules) {
  const std::string context =
      R"({"spec":{"model":{"name":"lstm-lm"},"data":{"format":"Text","source":{"path":"/t"},
          "text":{"vocabulary":"/v"},"evaluation":{"source":{"path":"/e"},"intervalSteps":5}}}})";
  const auto sum_of = [](const std::string& url) {
    return absl::StrCat(url, "#sha256=", std::string(64, 'a'));  // not a real checksum
  };
  // Slashes in a query do not separate directories.
  const std::vector<std::string> good = {sum_of("https://h/a.gz"), sum_of("http://h/f?a=/"),
                                         sum_of("http://h//d/f?a")};
  const std::vector<std::string> bad = {"http://h/a.gz",         "ftp://h/a.gz#sha256=00",
                                        sum_of("http://h"),      sum_of("http://h/"),
                                        sum_of("http://h?a=/f"), sum_of("http://h/d/?a=f"),
                                        sum_of("http:///f"),     sum_of("http://h/a b")};
  const auto examples = [](const std::string& field, const std::vector<std::string>& values) {
    std::vector<std::string> examples;
    for (const std::string& value : values) {
      examples.push_back(absl::StrCat("{\"", field, "\":\"", value, "\"}"));
    }
    return examples;
  };
  for (const char* scope : {"spec.data.source", "spec.data.evaluation.source"}) {
    const RuleAdder add(scope, rules);
    add("path", IsPath("path") || IsAddress("path"), kAddressMessage, examples("path", good),
        examples("path", bad), context);
    add("labels", !Has("labels") || IsPath("labels") || IsAddress("labels"), kAddressMessage,
        examples("labels", {good[0]}), examples("labels", {bad[0]}),
        R"({"spec":{"data":{"evaluation":{"source":{"path":"/e"},"intervalSteps":5}}}})");
  }
  const RuleAdder add("spec.data.text", rules);
  add("vocabulary", !Has("vocabulary") || IsPath("vocabulary") || IsAddress("vocabulary"),
      kAddressMessage, examples("vocabulary", good), examples("vocabulary", bad), context);
}

// IDX data is in several files. Beside a local file the others are found by their usual names;
// beside an address they are not.
void AddIdxAddressRules(std::vector<Rule>* rules) {
  const RuleAdder add("spec.data", rules);
  const Expr other = Self("format") != "IDX";
  const std::string source =
      absl::StrCat(R"("source":{"path":"http://h/i#sha256=)", std::string(64, 'a'), R"(")");
  const std::string labels = R"(,"labels":"/labels")";
  add("source.labels", other || !Has("source") || IsPath("source.path") || Has("source.labels"),
      "IDX data at an address needs `labels`, the address of the file of labels",
      {absl::StrCat("{", source, labels, "}}")}, {absl::StrCat("{", source, "}}")});
  add("evaluation.source.labels",
      other || !Has("evaluation") || !Has("evaluation.source") ||
          IsPath("evaluation.source.path") || Has("evaluation.source.labels"),
      "IDX data at an address needs `labels`, the address of the file of labels",
      {absl::StrCat(R"({"evaluation":{"intervalSteps":5,)", source, labels, "}}}")},
      {absl::StrCat(R"({"evaluation":{"intervalSteps":5,)", source, "}}}")});
  add("evaluation.source",
      other || !Has("source") || IsPath("source.path") || !Has("evaluation") ||
          Has("evaluation.source"),
      "if the training data is at an address, evaluation needs `source`",
      {absl::StrCat("{", source, labels,
                    R"(},"evaluation":{"intervalSteps":5,"source":{"path":"/e"}}})")},
      {absl::StrCat("{", source, labels, R"(},"evaluation":{"intervalSteps":5}})")});
}

void AddDataRules(std::vector<Rule>* rules) {
  const RuleAdder add("spec.data", rules);
  add("source", Self("format") == "Synthetic" || Self("format") == "Custom" || Has("source"),
      "IDX, CSV and Text data need `source`, e.g. {path: /data/train.csv}", {R"({})"},
      {R"({"source":null})"});
  add("source", Self("format") != "Synthetic" || !Has("source"),
      "Synthetic data is generated and has no `source`",
      {R"({"format":"Synthetic","source":null,"synthetic":{"shape":[3]}})"},
      {R"({"format":"Synthetic"})"});
  add("source",
      Self("format") != "Custom" ||
          (!Has("source") && (!Has("evaluation") || !Has("evaluation.source"))),
      "the program `worker.command` reads Custom data itself: no `source`",
      {R"({"format":"Custom","source":null,"evaluation":{"intervalSteps":5}})"},
      {R"({"format":"Custom"})",
       R"({"format":"Custom","source":null,"evaluation":{"source":{"path":"/t"}}})"},
      kCustomModel);
  add("csv", Self("format") != "CSV" || Has("csv"), "CSV data needs `csv` with the `labelColumn`",
      {R"({"format":"CSV","csv":{"labelColumn":"y"}})"}, {R"({"format":"CSV"})"});
  add("csv", Self("format") == "CSV" || !Has("csv"), "`csv` is for `format: CSV`",
      {R"({"format":"CSV","csv":{"labelColumn":"y"}})"}, {R"({"csv":{"labelColumn":"y"}})"});
  add("synthetic", Self("format") == "Synthetic" || !Has("synthetic"),
      "`synthetic` is for `format: Synthetic`",
      {R"({"format":"Synthetic","source":null,"synthetic":{"samples":5,"shape":[3]}})"},
      {R"({"synthetic":{"samples":5}})"});
  add("source.labels", Self("format") == "IDX" || !Has("source") || !Has("source.labels"),
      "a file of labels is for `format: IDX`; in a CSV file they are a column",
      {R"({"source":{"labels":"/labels"}})"},
      {R"({"format":"CSV","csv":{"labelColumn":"y"},"source":{"labels":"/labels"}})"});
  add("evaluation.source",
      (Self("format") != "CSV" && Self("format") != "Text") || !Has("evaluation") ||
          Has("evaluation.source"),
      "evaluation needs `source`, a file of samples that are not used for training",
      {R"({"evaluation":{"intervalSteps":5}})",
       R"({"format":"CSV","csv":{"labelColumn":"y"},"evaluation":{"source":{"path":"/test"}}})"},
      {R"({"format":"CSV","csv":{"labelColumn":"y"},"evaluation":{"intervalSteps":5}})"});
  add("evaluation.source",
      Self("format") != "Synthetic" || !Has("evaluation") || !Has("evaluation.source"),
      "Synthetic data is generated and has no `source`",
      {R"({"format":"Synthetic","source":null,"synthetic":{"shape":[3]},"evaluation":{"intervalSteps":5}})"},
      {R"({"format":"Synthetic","source":null,"evaluation":{"source":{"path":"/test"}}})"});
  add("evaluation.source.labels",
      Self("format") == "IDX" || !Has("evaluation") || !Has("evaluation.source") ||
          !Has("evaluation.source.labels"),
      "a file of labels is for `format: IDX`; in a CSV file they are a column",
      {R"({"evaluation":{"source":{"path":"/test","labels":"/labels"}}})"},
      {R"({"format":"CSV","csv":{"labelColumn":"y"},"evaluation":{"source":{"path":"/t","labels":"/l"}}})"});

  const RuleAdder normalize("spec.data.normalize", rules);
  normalize("std", Size(Self("mean")) == Size(Self("std")),
            "`mean` and `std` must have the same length", {R"({"mean":[0.1,0.2],"std":[1,2]})"},
            {R"({"mean":[0.1],"std":[1,2]})"}, kIdx);

  const RuleAdder csv("spec.data.csv", rules);
  csv("labelColumn",
      (!Has("numericColumns") || !IsIn(Self("labelColumn"), Self("numericColumns"))) &&
          (!Has("categoricalColumns") || !IsIn(Self("labelColumn"), Self("categoricalColumns"))),
      "the column to predict must not be among `numericColumns` or `categoricalColumns`",
      {R"({"labelColumn":"y","numericColumns":["a"]})"},
      {R"({"labelColumn":"y","numericColumns":["y"]})",
       R"({"labelColumn":"y","categoricalColumns":["y"]})"},
      kCsv);
  csv("categoricalColumns",
      !Has("numericColumns") || !Has("categoricalColumns") ||
          Disjoint(Self("categoricalColumns"), Self("numericColumns")),
      "a column is either numeric or categorical, not both",
      {R"({"numericColumns":["a"],"categoricalColumns":["b"]})"},
      {R"({"numericColumns":["a","b"],"categoricalColumns":["b"]})"}, kCsv);
}

void AddCompressionRules(std::vector<Rule>* rules) {
  const std::string context = R"({"spec":{"training":{"compression":{}}}})";
  const RuleAdder add("spec.training.compression", rules);
  add("fraction", !Has("fraction") || Self("push") == "TopK", "`fraction` is for `push: TopK`",
      {R"({"push":"TopK","fraction":0.1})", R"({"push":"TopK"})"},
      {R"({"push":"Int8","fraction":0.1})"}, context);
  add("threshold", (Self("push") == "SignThreshold") == Has("threshold"),
      "`threshold` is required for `push: SignThreshold`, and only allowed with it",
      {R"({"push":"SignThreshold","threshold":0.1})"},
      {R"({"push":"SignThreshold"})", R"({"threshold":0.1})"}, context);
  add("errorFeedback", !Has("errorFeedback") || Self("push") != "None",
      "`errorFeedback` needs `push`: without it nothing is omitted",
      {R"({"push":"Int8","errorFeedback":false})"}, {R"({"errorFeedback":true})"}, context);
}

void AddStalenessRules(std::vector<Rule>* rules) {
  const std::string asynchronous =
      R"({"spec":{"training":{"mode":"Asynchronous","stalenessRule":{"name":"Inverse"}}}})";
  const RuleAdder add("spec.training.stalenessRule", rules);
  add("factor", !Has("factor") || Self("name") == "Damped", "`factor` is for `name: Damped`",
      {R"({"name":"Damped","factor":0.2})"}, {R"({"name":"Inverse","factor":0.2})"}, asynchronous);
  add("lambda", !Has("lambda") || Self("name") == "DelayCompensation",
      "`lambda` is for `name: DelayCompensation`", {R"({"name":"DelayCompensation","lambda":0.2})"},
      {R"({"name":"Inverse","lambda":0.2})"}, asynchronous);

  const RuleAdder job("spec", rules);
  const Expr unset = !Has("training.stalenessRule");
  job("training.stalenessRule",
      unset || Self("training.stalenessRule.name") == "None" || Self("optimizer.name") != "Add",
      "`optimizer: {name: Add}` does not support a staleness rule", {R"({})"},
      {R"({"optimizer":{"name":"Add"}})"}, asynchronous);
  job("training.stalenessRule",
      unset || Self("training.stalenessRule.name") != "MomentumCorrection" ||
          (Self("optimizer.name") == "SGD" && Has("optimizer.momentum") &&
           Self("optimizer.momentum") > 0.0 &&
           (!Has("optimizer.groups") ||
            All("g", Self("optimizer.groups"), !ItemHas("g", "name") || Item("g.name") == "SGD"))),
      "MomentumCorrection needs `optimizer: {name: SGD}` with a `momentum`, and no group with "
      "another optimizer",
      {R"({"optimizer":{"name":"SGD","momentum":0.9},
            "training":{"stalenessRule":{"name":"MomentumCorrection"}}})"},
      {R"({"training":{"stalenessRule":{"name":"MomentumCorrection"}}})",
       R"({"optimizer":{"name":"RMSprop","momentum":0.9},
            "training":{"stalenessRule":{"name":"MomentumCorrection"}}})",
       R"({"optimizer":{"name":"SGD","momentum":0.9,"groups":[{"patterns":["a"],"name":"Adam"}]},
            "training":{"stalenessRule":{"name":"MomentumCorrection"}}})"},
      asynchronous);
}

void AddTrainingRules(std::vector<Rule>* rules) {
  const RuleAdder add("spec.training", rules);
  add("steps", Has("steps") || Has("epochs"), "`steps` or `epochs` is required: how long to train",
      {R"({"steps":10})", R"({"steps":null,"epochs":2})"}, {R"({"steps":null})"});
  add("epochs", !Has("steps") || !Has("epochs"), "give `steps` or `epochs`, not both",
      {R"({"steps":10})", R"({"steps":null,"epochs":2})"}, {R"({"steps":10,"epochs":2})"});
  add("microbatchSize", !Has("microbatchSize") || Self("microbatchSize") <= Self("globalBatchSize"),
      absl::StrCat("`microbatchSize` must be at most `globalBatchSize` (default ",
                   kDefaultGlobalBatchSize, ")"),
      {R"({"globalBatchSize":32,"microbatchSize":32})"},
      {R"({"globalBatchSize":32,"microbatchSize":33})", R"({"microbatchSize":65})"});

  const Expr size =
      If(Has("microbatchSize"), Self("microbatchSize"),
         (Self("globalBatchSize") + (kDefaultMicrobatches - 1)) / kDefaultMicrobatches);
  const Expr inexact = Self("determinism") != "BitExact";
  add("determinism",
      inexact ||
          (Self("globalBatchSize") % size == 0 &&
           IsOneOf(Self("globalBatchSize") / size, {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024,
                                                    2048, 4096, 8192, 16384, 32768, 65536})),
      absl::StrCat(
          "BitExact needs `globalBatchSize` to be `microbatchSize` times a power of two, at most "
          "65536 (if `microbatchSize` is unset: a multiple of ",
          kDefaultMicrobatches, ", or a power of two)"),
      {R"({"determinism":"BitExact"})",
       R"({"determinism":"BitExact","globalBatchSize":100,"microbatchSize":25})"},
      {R"({"determinism":"BitExact","globalBatchSize":100})",
       R"({"determinism":"BitExact","globalBatchSize":96,"microbatchSize":32})"});
  add("determinism", inexact || Self("mode") == "Synchronous",
      "BitExact is for `mode: Synchronous`", {R"({"determinism":"BitExact"})"},
      {R"({"determinism":"BitExact","mode":"Asynchronous"})"});
  add("compression.push", inexact || Self("compression.push") == "None",
      "BitExact needs exact gradients: what a codec omits depends on which worker computed it "
      "(`pull` may be compressed)",
      {R"({"determinism":"BitExact","compression":{"pull":"Float16"}})"},
      {R"({"determinism":"BitExact","compression":{"push":"Float16"}})",
       R"({"determinism":"BitExact","compression":{"push":"TopK"}})"});
  add("stalenessRule",
      !Has("stalenessRule") || Self("stalenessRule.name") == "None" ||
          Self("mode") != "Synchronous",
      "in `mode: Synchronous` no gradient is stale",
      {R"({"mode":"Asynchronous","stalenessRule":{"name":"Inverse"}})",
       R"({"stalenessRule":{"name":"None"}})"},
      {R"({"stalenessRule":{"name":"Inverse"}})"});
  AddCompressionRules(rules);
  AddStalenessRules(rules);
  add("boundedStaleness", (Self("mode") == "BoundedStaleness") == Has("boundedStaleness"),
      "`boundedStaleness` is required for `mode: BoundedStaleness`, and only allowed with it",
      {R"({"mode":"BoundedStaleness","boundedStaleness":{"maxStaleness":4}})"},
      {R"({"mode":"BoundedStaleness"})", R"({"boundedStaleness":{"maxStaleness":4}})"});
  add("target.value",
      !Has("target") || Self("target.metric") != "accuracy" ||
          (Self("target.value") >= 0.0 && Self("target.value") <= 100.0),
      "accuracy is in percent, from 0 to 100",
      {R"({"target":{"metric":"accuracy","goal":"AtLeast","value":98.5}})"},
      {R"({"target":{"metric":"accuracy","goal":"AtLeast","value":985}})"},
      R"({"spec":{"data":{"evaluation":{"source":{"path":"/test"},"intervalSteps":100}}}})");
}

void AddTextRules(std::vector<Rule>* rules) {
  constexpr char kText[] =
      R"({"model":{"name":"lstm-lm"},"data":{"format":"Text","source":{"path":"/t"}}})";
  constexpr char kTokens[] = R"({"model":{"name":"lstm-lm"},"data":{"format":"Synthetic",
      "source":null,"synthetic":{"shape":[20],"vocabulary":100}}})";
  const RuleAdder add("spec", rules);
  // Samples are sequences of tokens.
  const Expr tokens =
      Self("data.format") == "Text" || (Has("data.synthetic") && Has("data.synthetic.vocabulary"));
  add("data.text", Self("data.format") == "Text" || !Has("data.text"),
      "`text` is for `format: Text`", {kText}, {R"({"data":{"text":{"sequenceLength":5}}})"});
  add("data.normalize", !tokens || !Has("data.normalize"),
      "`normalize` is for numbers, but this data is words; leave it out", {kText},
      {R"({"model":{"name":"lstm-lm"},"data":{"format":"Text",
                         "source":{"path":"/t"},"normalize":{"mean":[0],"std":[1]}}})"});
  add("data.classes", Self("data.format") != "Text" || !Has("data.classes"),
      "the classes of a text are its words; set `text.vocabularySize` instead", {kText},
      {R"({"model":{"name":"lstm-lm"},"data":{"format":"Text",
                         "source":{"path":"/t"},"classes":5}})"});
  add("model.name", !Has("model.name") || (Self("model.name") == "lstm-lm") == tokens,
      "`lstm-lm` takes words, other built-in models take numbers: `format: Text`, and Synthetic "
      "data with a `vocabulary`, are for `lstm-lm` only",
      {kText, kTokens},
      {R"({"model":{"name":"lstm-lm"}})", R"({"data":{"format":"Text","source":{"path":"/t"}}})"});
  add("data.text.state",
      !Has("data.text") || Self("data.text.state") != "Carried" ||
          (!Self("data.shuffle") && Self("training.determinism") != "BitExact"),
      "`state: Carried` needs `data.shuffle: false`, since the state continues along the text, and "
      "is not for BitExact, since the state depends on which worker computed the previous sample",
      {R"({"model":{"name":"lstm-lm"},"data":{"format":"Text","source":{"path":"/t"},
            "shuffle":false,"text":{"state":"Carried"}}})"},
      {R"({"model":{"name":"lstm-lm"},"data":{"format":"Text","source":{"path":"/t"},
            "text":{"state":"Carried"}}})",
       R"({"model":{"name":"lstm-lm"},"training":{"determinism":"BitExact"},"data":{
            "format":"Text","source":{"path":"/t"},"shuffle":false,"text":{"state":"Carried"}}})"});
  const Expr metric = Self("training.target.metric");
  add("training.target",
      !Has("training.target") || Self("model.type") == "Custom" || metric == "loss" ||
          metric == "accuracy" || metric == "perplexity",
      "only the program of a Custom model has metrics of its own: `metric` must be `accuracy`, "
      "`loss` or `perplexity`",
      {R"({"model":{"type":"Custom","name":null},"data":{"format":"Custom","source":null,
            "evaluation":{"intervalSeconds":5}},"worker":{"command":["python3","train.py"]},
            "training":{"target":{"metric":"auc","goal":"AtLeast","value":0.9}}})"},
      {R"({"data":{"evaluation":{"source":{"path":"/e"},"intervalSeconds":5}},
            "training":{"target":{"metric":"auc","goal":"AtLeast","value":0.9}}})"});
  add("training.target",
      !Has("training.target") || Self("training.target.metric") != "perplexity" || tokens,
      "`perplexity` is for language models: it needs `data: {format: Text}`",
      {R"({"model":{"name":"lstm-lm"},"data":{"format":"Text","source":{"path":"/t"},
            "evaluation":{"source":{"path":"/e"},"intervalSeconds":5}},
            "training":{"target":{"metric":"perplexity","goal":"AtMost","value":200}}})"},
      {R"({"data":{"evaluation":{"source":{"path":"/e"},"intervalSeconds":5}},
            "training":{"target":{"metric":"perplexity","goal":"AtMost","value":200}}})"});
}

void AddCustomRules(std::vector<Rule>* rules) {
  constexpr char kGood[] =
      R"({"model":{"type":"Custom","name":null},"data":{"format":"Custom","source":null},
          "worker":{"command":["python3","train.py"]}})";
  const RuleAdder add("spec", rules);
  add("worker.command", Self("model.type") != "Custom" || (Has("worker") && Has("worker.command")),
      "a Custom model needs `worker.command`, the program that trains it, e.g. [python3, train.py]",
      {kGood},
      {R"({"model":{"type":"Custom","name":null},"data":{"format":"Custom","source":null}})"});
  add("worker.command", Self("model.type") == "Custom" || !Has("worker") || !Has("worker.command"),
      "`command` is for `model: {type: Custom}`; other models are computed by Sluice's own workers",
      {kGood}, {R"({"worker":{"command":["python3","train.py"]}})"});
  add("data.format", (Self("model.type") == "Custom") == (Self("data.format") == "Custom"),
      "`data: {format: Custom}` and `model: {type: Custom}` need each other: the program reads its "
      "own data",
      {kGood},
      {R"({"data":{"format":"Custom","source":null}})",
       R"({"model":{"type":"Custom","name":null},"worker":{"command":["a"]}})"});
  add("loss", Self("model.type") != "Custom" || !Has("loss"),
      "a Custom model's program computes the loss; leave `loss` out", {kGood},
      {R"({"model":{"type":"Custom","name":null},"loss":"mse",
                         "data":{"format":"Custom","source":null},"worker":{"command":["a"]}})"});
}

void AddClusterRules(std::vector<Rule>* rules) {
  const RuleAdder source("spec.data.source", rules);
  source("path",
         !Has("volume") || Self("path") == Self("volume.mountPath") ||
             HasPrefix(Self("path"), Self("volume.mountPath") + "/"),
         "`path` must be in `volume.mountPath` (default /data)",
         {R"({"path":"/data/mnist","volume":{"claimName":"d"}})",
          R"({"path":"/sets","volume":{"claimName":"d","mountPath":"/sets"}})"},
         {R"({"path":"/dataset","volume":{"claimName":"d"}})",
          R"({"path":"/data","volume":{"claimName":"d","mountPath":"/sets"}})"});
  for (const char* scope : {"spec.worker", "spec.parameterServer"}) {
    const RuleAdder role(scope, rules);
    role("replicas", !Has("minReplicas") || Self("replicas") >= Self("minReplicas"),
         "`replicas` must be at least `minReplicas`", {R"({"replicas":2,"minReplicas":2})"},
         {R"({"replicas":1,"minReplicas":2})"});
    role("replicas", !Has("maxReplicas") || Self("replicas") <= Self("maxReplicas"),
         "`replicas` must be at most `maxReplicas`", {R"({"replicas":2,"maxReplicas":2})"},
         {R"({"replicas":3,"maxReplicas":2})"});
  }
  const RuleAdder policy("spec.failurePolicy", rules);
  policy("rules",
         All("rule", Self("rules"), ItemHas("rule", "exitCodes") || ItemHas("rule", "reasons")),
         "each rule needs `exitCodes` or `reasons`",
         {R"({"rules":[{"action":"Ignore","reasons":["OOMKilled"]}]})"},
         {R"({"rules":[{"action":"Ignore"}]})"});
  const RuleAdder storage("spec.checkpoint.storage", rules);
  const Expr claimed = Self("type") == "PersistentVolumeClaim";
  storage("claimName", claimed == Has("claimName"),
          "`claimName` is required for `type: PersistentVolumeClaim`, and only allowed with it",
          {R"({"type":"PersistentVolumeClaim","claimName":"c"})"},
          {R"({"type":"PersistentVolumeClaim"})", R"({"claimName":"c"})"});
  storage("subPath", claimed || !Has("subPath"),
          "`subPath` is for `type: PersistentVolumeClaim`; a Local directory is chosen by `path`",
          {R"({"type":"PersistentVolumeClaim","claimName":"c","subPath":"a/b"})"},
          {R"({"subPath":"a/b"})"});
  storage("path", Self("type") == "Local" || !Has("path"),
          "`path` is for `type: Local`; the directory in a claim is chosen by `subPath`",
          {R"({"path":"/ckpt"})"},
          {R"({"type":"PersistentVolumeClaim","claimName":"c","path":"/ckpt"})"});
}

void AddJobRules(std::vector<Rule>* rules) {
  AddCustomRules(rules);
  AddTextRules(rules);
  const RuleAdder job("spec", rules);
  job("training.target",
      !Has("training.target") ||
          (Has("data.evaluation") &&
           (Has("data.evaluation.intervalSteps") || Has("data.evaluation.intervalSeconds"))),
      "a target needs `data.evaluation` with `intervalSteps` or `intervalSeconds`",
      {R"({"training":{"target":{"metric":"loss","goal":"AtMost","value":1}},
            "data":{"evaluation":{"source":{"path":"/t"},"intervalSeconds":5}}})"},
      {R"({"training":{"target":{"metric":"loss","goal":"AtMost","value":1}}})",
       R"({"training":{"target":{"metric":"loss","goal":"AtMost","value":1}},
            "data":{"evaluation":{"source":{"path":"/t"}}}})"});
  job("data.synthetic",
      Self("data.format") != "Synthetic" ||
          (Has("data.synthetic") && Has("data.synthetic.shape")) ||
          (Has("model.name") && Self("model.name") == "additive"),
      "Synthetic data needs `synthetic.shape`, e.g. [1, 28, 28]; only the model `additive` takes "
      "no data",
      {R"({"data":{"synthetic":{"shape":[3]}}})",
       R"({"model":{"name":"additive","dimensions":{"dim":10}}})"},
      {R"({})", R"({"data":{"synthetic":{"samples":3}}})"}, kSynthetic);

  const RuleAdder server("spec.parameterServer", rules);
  server("partitions", Self("partitions") >= Self("replicas"),
         "each shard needs at least one partition: `partitions` (default 64) must be at least "
         "`replicas`",
         {R"({"replicas":4,"partitions":4})"},
         {R"({"replicas":4,"partitions":3})", R"({"replicas":65})"});
  server("copies", !Has("copies") || Self("copies") <= Self("replicas"),
         "the copies of a partition are on different shards: `copies` must be at most `replicas`",
         {R"({"replicas":2,"copies":2})"}, {R"({"replicas":1,"copies":2})"});
  job("parameterServer.copies",
      !Has("parameterServer") || !Has("parameterServer.copies") ||
          Self("parameterServer.copies") == 1 ||
          (Self("training.execution") == "Worker" &&
           (!Has("training.stalenessRule") ||
            Self("training.stalenessRule.name") != "DelayCompensation")),
      "`copies: 2` needs `execution: Worker`, and does not work with `stalenessRule: {name: "
      "DelayCompensation}`, which needs the parameters that each worker pulled: a second copy does "
      "not have them",
      {R"({"parameterServer":{"replicas":2,"copies":2}})",
       R"({"parameterServer":{"replicas":2,"copies":2},"training":{"mode":"Asynchronous"}})"},
      {R"({"parameterServer":{"replicas":2,"copies":2},"training":{"mode":"Asynchronous",
           "stalenessRule":{"name":"DelayCompensation"}}})"});
  const RuleAdder checkpoint("spec.checkpoint", rules);
  checkpoint("intervalSeconds", !Has("intervalSteps") || !Has("intervalSeconds"),
             "at most one of `intervalSteps` and `intervalSeconds` may be given",
             {R"({"intervalSteps":10})"}, {R"({"intervalSteps":10,"intervalSeconds":10})"});
  const RuleAdder timeouts("spec.timeouts", rules);
  timeouts("heartbeatSeconds", Self("heartbeatSeconds") * 2.0 <= Self("heartbeatTimeoutSeconds"),
           "`heartbeatSeconds` must be at most half of `heartbeatTimeoutSeconds`, otherwise every "
           "process would seem lost",
           {R"({"heartbeatSeconds":1})"}, {R"({"heartbeatSeconds":3})"});
  timeouts("suspectSeconds", Self("suspectSeconds") <= Self("heartbeatTimeoutSeconds"),
           "`suspectSeconds` must be at most `heartbeatTimeoutSeconds`",
           {R"({"suspectSeconds":2})"}, {R"({"suspectSeconds":6})"});
}

}  // namespace

const std::vector<Rule>& Rules() {
  static const std::vector<Rule>& all = *[] {
    auto* rules = new std::vector<Rule>;
    AddModelRules(rules);
    AddDataRules(rules);
    AddAddressRules(rules);
    AddIdxAddressRules(rules);
    AddOptimizerRules(rules);
    AddTrainingRules(rules);
    AddStragglerRules(rules);
    AddDecisionRules(rules);
    AddDenseRules(rules);
    AddSyncRules(rules);
    AddBatchSizeRules(rules);
    AddPartitioningRules(rules);
    AddJobRules(rules);
    AddExecutionRules(rules);
    AddClusterRules(rules);
    return rules;
  }();
  return all;
}

}  // namespace sluice::api
