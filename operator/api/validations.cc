// Rules that relate fields. The CEL text and the predicate of a rule mean the same; examples keep
// them consistent.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "operator/api/field_builder.h"
#include "operator/api/field_table.h"
#include "services/common/web_address.h"

namespace sluice::api {
namespace {

using Json = nlohmann::json;

// Predicates are called on objects whose fields are valid by themselves and have their defaults, so
// the types are known.
bool Has(const Json& self, const char* name) { return self.contains(name); }
bool Is(const Json& self, const char* name, const char* value) {
  return self.contains(name) && self.at(name) == value;
}
int64_t Int(const Json& self, const char* name) { return self.at(name).get<int64_t>(); }
double Num(const Json& self, const char* name) { return self.at(name).get<double>(); }
bool Contains(const Json& list, const Json& value) {
  for (const Json& item : list) {
    if (item == value) return true;
  }
  return false;
}

constexpr char kIdx[] = R"({"spec":{"data":{"format":"IDX","source":{"path":"/data"}}}})";
constexpr char kCsv[] =
    R"({"spec":{"data":{"format":"CSV","source":{"path":"/d.csv"},"csv":{"labelColumn":"income"}}}})";
constexpr char kCustomModel[] =
    R"({"spec":{"model":{"type":"Custom","name":null},"worker":{"command":["a"]}}})";
constexpr char kSynthetic[] = R"({"spec":{"data":{"format":"Synthetic","source":null}}})";

void AddModelRules(std::vector<Rule>* rules) {
  rules->push_back(
      {"spec.model",
       "name",
       "self.type != 'Builtin' || has(self.name)",
       [](const Json& self) { return !Is(self, "type", "Builtin") || Has(self, "name"); },
       "a Builtin model needs `name`, e.g. mnist-net",
       {R"({})"},
       {R"({"name":null})"}});
  rules->push_back(
      {"spec.model",
       "name",
       "self.type == 'Builtin' || !has(self.name)",
       [](const Json& self) { return Is(self, "type", "Builtin") || !Has(self, "name"); },
       "`name` chooses a Builtin model; a TorchScript model is chosen by `path`",
       {R"({"type":"TorchScript","name":null,"path":"/m.pt"})"},
       {R"({"type":"TorchScript","path":"/m.pt"})"}});
  rules->push_back(
      {"spec.model",
       "path",
       "self.type != 'TorchScript' || has(self.path)",
       [](const Json& self) { return !Is(self, "type", "TorchScript") || Has(self, "path"); },
       "a TorchScript model needs `path`, the file that torch.jit.save wrote",
       {R"({"type":"TorchScript","name":null,"path":"/m.pt"})"},
       {R"({"type":"TorchScript","name":null})"}});
  rules->push_back(
      {"spec.model",
       "path",
       "self.type == 'TorchScript' || !has(self.path)",
       [](const Json& self) { return Is(self, "type", "TorchScript") || !Has(self, "path"); },
       "`path` is for `type: TorchScript`; a Builtin model is chosen by `name`",
       {R"({})"},
       {R"({"path":"/m.pt"})"}});
  rules->push_back(
      {"spec.model",
       "dimensions",
       "self.type == 'Builtin' || !has(self.dimensions)",
       [](const Json& self) { return Is(self, "type", "Builtin") || !Has(self, "dimensions"); },
       "`dimensions` are for Builtin models; a TorchScript file contains its own",
       {R"({"name":"additive","dimensions":{"dim":10}})"},
       {R"({"type":"TorchScript","name":null,"path":"/m.pt","dimensions":{"dim":10}})"}});
  rules->push_back({"spec.model",
                    "dimensions",
                    "!has(self.name) || self.name != 'additive' || (has(self.dimensions) && 'dim' "
                    "in self.dimensions)",
                    [](const Json& self) {
                      return !Is(self, "name", "additive") ||
                             (Has(self, "dimensions") && Has(self["dimensions"], "dim"));
                    },
                    "the model `additive` needs its size, e.g. `dimensions: {dim: 10}`",
                    {R"({"name":"additive","dimensions":{"dim":10}})"},
                    {R"({"name":"additive"})", R"({"name":"additive","dimensions":{"in":10}})"}});
}

// The CEL form of an address as services/common/web_address.h parses it: host, directories, a name,
// optionally a query, the checksum.
std::string AddressCel(const std::string& value) {
  constexpr char kNot[] = "#[:space:][:cntrl:]";  // not allowed before the checksum
  return absl::StrCat("!", value, ".contains('://') || ", value, ".matches('^https?://[^/?", kNot,
                      "]+/([^?", kNot, "]*/)?[^/?", kNot, "]+([?][^", kNot,
                      "]*)?#sha256=[0-9a-fA-F]{64}$')");
}
constexpr char kAddressMessage[] =
    "an address is http://HOST/FILE#sha256=CHECKSUM, or the same with https, with the 64 digits "
    "that `sha256sum FILE` prints";

bool IsPathOrAddress(const Json& text) {
  return !IsWebAddress(text.get<std::string>()) || ParseWebAddress(text.get<std::string>()).ok();
}
bool IsAddress(const Json& data) {
  return Has(data, "source") && IsWebAddress(data["source"]["path"].get<std::string>());
}

// The fields that may contain an address instead of a path.
void AddAddressRules(std::vector<Rule>* rules) {
  const std::string good =
      absl::StrCat("https://h/a.gz#sha256=", std::string(64, 'a'));  // not a real checksum
  const std::string context =
      R"({"spec":{"model":{"name":"lstm-lm"},"data":{"format":"Text","source":{"path":"/t"},
          "text":{"vocabulary":"/v"},"evaluation":{"source":{"path":"/e"},"intervalSteps":5}}}})";
  const auto sum_of = [](const std::string& url) {
    return absl::StrCat(url, "#sha256=", std::string(64, 'a'));
  };
  // Slashes in a query do not separate directories.
  const std::vector<std::string> more_good = {sum_of("http://h/f?a=/"), sum_of("http://h//d/f?a")};
  const std::vector<std::string> bad = {"http://h/a.gz",         "ftp://h/a.gz#sha256=00",
                                        sum_of("http://h"),      sum_of("http://h/"),
                                        sum_of("http://h?a=/f"), sum_of("http://h/d/?a=f"),
                                        sum_of("http:///f"),     sum_of("http://h/a b")};
  const auto add = [&](const char* scope, const char* field, const std::string& cel,
                       bool (*holds)(const Json&), const std::string& extra) {
    const auto example = [&](const std::string& value) {
      return absl::StrCat("{", extra, "\"", field, "\":\"", value, "\"}");
    };
    Rule rule = {scope, field, cel, holds, kAddressMessage, {example(good)}, {}, context};
    for (const std::string& value : more_good) rule.passing.push_back(example(value));
    for (const std::string& value : bad) rule.failing.push_back(example(value));
    rules->push_back(std::move(rule));
  };
  const auto path_holds = [](const Json& self) { return IsPathOrAddress(self["path"]); };
  const auto labels_hold = [](const Json& self) {
    return !Has(self, "labels") || IsPathOrAddress(self["labels"]);
  };
  for (const char* scope : {"spec.data.source", "spec.data.evaluation.source"}) {
    add(scope, "path", AddressCel("self.path"), path_holds, "");
    Rule rule = {scope,
                 "labels",
                 absl::StrCat("!has(self.labels) || ", AddressCel("self.labels")),
                 labels_hold,
                 kAddressMessage,
                 {absl::StrCat(R"({"labels":")", good, R"("})")},
                 {R"({"labels":"http://h/a.gz"})"},
                 R"({"spec":{"data":{"evaluation":{"source":{"path":"/e"},"intervalSteps":5}}}})"};
    rules->push_back(std::move(rule));
  }
  add(
      "spec.data.text", "vocabulary",
      absl::StrCat("!has(self.vocabulary) || ", AddressCel("self.vocabulary")),
      [](const Json& self) {
        return !Has(self, "vocabulary") || IsPathOrAddress(self["vocabulary"]);
      },
      "");
}

// IDX data is in several files: a local file has others beside it, an address has not.
void AddIdxAddressRules(std::vector<Rule>* rules) {
  const std::string source =
      absl::StrCat(R"("source":{"path":"http://h/i#sha256=)", std::string(64, 'a'), R"(")");
  const std::string labels = R"(,"labels":"/labels")";
  rules->push_back(
      {"spec.data",
       "source.labels",
       "self.format != 'IDX' || !has(self.source) || !self.source.path.contains('://') || "
       "has(self.source.labels)",
       [](const Json& self) {
         return !Is(self, "format", "IDX") || !IsAddress(self) || Has(self["source"], "labels");
       },
       "IDX data at an address needs `labels`, the address of the file of labels",
       {absl::StrCat("{", source, labels, "}}")},
       {absl::StrCat("{", source, "}}")}});
  rules->push_back(
      {"spec.data",
       "evaluation.source.labels",
       "self.format != 'IDX' || !has(self.evaluation) || !has(self.evaluation.source) || "
       "!self.evaluation.source.path.contains('://') || has(self.evaluation.source.labels)",
       [](const Json& self) {
         return !Is(self, "format", "IDX") || !Has(self, "evaluation") ||
                !IsAddress(self["evaluation"]) || Has(self["evaluation"]["source"], "labels");
       },
       "IDX data at an address needs `labels`, the address of the file of labels",
       {absl::StrCat(R"({"evaluation":{"intervalSteps":5,)", source, labels, "}}}")},
       {absl::StrCat(R"({"evaluation":{"intervalSteps":5,)", source, "}}}")}});
  rules->push_back(
      {"spec.data",
       "evaluation.source",
       "self.format != 'IDX' || !has(self.source) || !self.source.path.contains('://') || "
       "!has(self.evaluation) || has(self.evaluation.source)",
       [](const Json& self) {
         return !Is(self, "format", "IDX") || !IsAddress(self) || !Has(self, "evaluation") ||
                Has(self["evaluation"], "source");
       },
       "if the training data is at an address, evaluation needs `source`",
       {absl::StrCat("{", source, labels,
                     R"(},"evaluation":{"intervalSteps":5,"source":{"path":"/e"}}})")},
       {absl::StrCat("{", source, labels, R"(},"evaluation":{"intervalSteps":5}})")}});
}

void AddDataRules(std::vector<Rule>* rules) {
  rules->push_back({"spec.data",
                    "source",
                    "self.format == 'Synthetic' || self.format == 'Custom' || has(self.source)",
                    [](const Json& self) {
                      return Is(self, "format", "Synthetic") || Is(self, "format", "Custom") ||
                             Has(self, "source");
                    },
                    "IDX, CSV and Text data need `source`, e.g. {path: /data/train.csv}",
                    {R"({})"},
                    {R"({"source":null})"}});
  rules->push_back(
      {"spec.data",
       "source",
       "self.format != 'Synthetic' || !has(self.source)",
       [](const Json& self) { return !Is(self, "format", "Synthetic") || !Has(self, "source"); },
       "Synthetic data is generated and has no `source`",
       {R"({"format":"Synthetic","source":null,"synthetic":{"shape":[3]}})"},
       {R"({"format":"Synthetic"})"}});
  rules->push_back({"spec.data",
                    "source",
                    "self.format != 'Custom' || (!has(self.source) && (!has(self.evaluation) || "
                    "!has(self.evaluation.source)))",
                    [](const Json& self) {
                      if (!Is(self, "format", "Custom")) return true;
                      return !Has(self, "source") &&
                             (!Has(self, "evaluation") || !Has(self["evaluation"], "source"));
                    },
                    "the program `worker.command` reads Custom data itself: no `source`",
                    {R"({"format":"Custom","source":null,"evaluation":{"intervalSteps":5}})"},
                    {R"({"format":"Custom"})",
                     R"({"format":"Custom","source":null,"evaluation":{"source":{"path":"/t"}}})"},
                    kCustomModel});
  rules->push_back({"spec.data",
                    "csv",
                    "self.format != 'CSV' || has(self.csv)",
                    [](const Json& self) { return !Is(self, "format", "CSV") || Has(self, "csv"); },
                    "CSV data needs `csv` with the `labelColumn`",
                    {R"({"format":"CSV","csv":{"labelColumn":"y"}})"},
                    {R"({"format":"CSV"})"}});
  rules->push_back({"spec.data",
                    "csv",
                    "self.format == 'CSV' || !has(self.csv)",
                    [](const Json& self) { return Is(self, "format", "CSV") || !Has(self, "csv"); },
                    "`csv` is for `format: CSV`",
                    {R"({"format":"CSV","csv":{"labelColumn":"y"}})"},
                    {R"({"csv":{"labelColumn":"y"}})"}});
  rules->push_back(
      {"spec.data",
       "synthetic",
       "self.format == 'Synthetic' || !has(self.synthetic)",
       [](const Json& self) { return Is(self, "format", "Synthetic") || !Has(self, "synthetic"); },
       "`synthetic` is for `format: Synthetic`",
       {R"({"format":"Synthetic","source":null,"synthetic":{"samples":5,"shape":[3]}})"},
       {R"({"synthetic":{"samples":5}})"}});
  rules->push_back(
      {"spec.data",
       "source.labels",
       "self.format == 'IDX' || !has(self.source) || !has(self.source.labels)",
       [](const Json& self) {
         return Is(self, "format", "IDX") || !Has(self, "source") || !Has(self["source"], "labels");
       },
       "a file of labels is for `format: IDX`; in a CSV file they are a column",
       {R"({"source":{"labels":"/labels"}})"},
       {R"({"format":"CSV","csv":{"labelColumn":"y"},"source":{"labels":"/labels"}})"}});
  rules->push_back(
      {"spec.data",
       "evaluation.source",
       "(self.format != 'CSV' && self.format != 'Text') || !has(self.evaluation) || "
       "has(self.evaluation.source)",
       [](const Json& self) {
         return (!Is(self, "format", "CSV") && !Is(self, "format", "Text")) ||
                !Has(self, "evaluation") || Has(self["evaluation"], "source");
       },
       "evaluation needs `source`, a file of samples that are not used for training",
       {R"({"evaluation":{"intervalSteps":5}})",
        R"({"format":"CSV","csv":{"labelColumn":"y"},"evaluation":{"source":{"path":"/test"}}})"},
       {R"({"format":"CSV","csv":{"labelColumn":"y"},"evaluation":{"intervalSteps":5}})"}});
  rules->push_back(
      {"spec.data",
       "evaluation.source",
       "self.format != 'Synthetic' || !has(self.evaluation) || !has(self.evaluation.source)",
       [](const Json& self) {
         return !Is(self, "format", "Synthetic") || !Has(self, "evaluation") ||
                !Has(self["evaluation"], "source");
       },
       "Synthetic data is generated and has no `source`",
       {R"({"format":"Synthetic","source":null,"synthetic":{"shape":[3]},"evaluation":{"intervalSteps":5}})"},
       {R"({"format":"Synthetic","source":null,"evaluation":{"source":{"path":"/test"}}})"}});
  rules->push_back(
      {"spec.data",
       "evaluation.source.labels",
       "self.format == 'IDX' || !has(self.evaluation) || !has(self.evaluation.source) || "
       "!has(self.evaluation.source.labels)",
       [](const Json& self) {
         return Is(self, "format", "IDX") || !Has(self, "evaluation") ||
                !Has(self["evaluation"], "source") || !Has(self["evaluation"]["source"], "labels");
       },
       "a file of labels is for `format: IDX`; in a CSV file they are a column",
       {R"({"evaluation":{"source":{"path":"/test","labels":"/labels"}}})"},
       {R"({"format":"CSV","csv":{"labelColumn":"y"},"evaluation":{"source":{"path":"/t","labels":"/l"}}})"}});
  rules->push_back({"spec.data.normalize",
                    "std",
                    "size(self.mean) == size(self.std)",
                    [](const Json& self) { return self["mean"].size() == self["std"].size(); },
                    "`mean` and `std` must have the same length",
                    {R"({"mean":[0.1,0.2],"std":[1,2]})"},
                    {R"({"mean":[0.1],"std":[1,2]})"},
                    kIdx});
  rules->push_back(
      {"spec.data.csv",
       "labelColumn",
       "(!has(self.numericColumns) || !(self.labelColumn in self.numericColumns)) && "
       "(!has(self.categoricalColumns) || !(self.labelColumn in self.categoricalColumns))",
       [](const Json& self) {
         for (const char* list : {"numericColumns", "categoricalColumns"}) {
           if (Has(self, list) && Contains(self[list], self["labelColumn"])) return false;
         }
         return true;
       },
       "the column to predict must not be among `numericColumns` or `categoricalColumns`",
       {R"({"labelColumn":"y","numericColumns":["a"]})"},
       {R"({"labelColumn":"y","numericColumns":["y"]})",
        R"({"labelColumn":"y","categoricalColumns":["y"]})"},
       kCsv});
  rules->push_back({"spec.data.csv",
                    "categoricalColumns",
                    "!has(self.numericColumns) || !has(self.categoricalColumns) || "
                    "self.categoricalColumns.all(c, !(c in self.numericColumns))",
                    [](const Json& self) {
                      if (!Has(self, "numericColumns") || !Has(self, "categoricalColumns"))
                        return true;
                      for (const Json& column : self["categoricalColumns"]) {
                        if (Contains(self["numericColumns"], column)) return false;
                      }
                      return true;
                    },
                    "a column is either numeric or categorical, not both",
                    {R"({"numericColumns":["a"],"categoricalColumns":["b"]})"},
                    {R"({"numericColumns":["a","b"],"categoricalColumns":["b"]})"},
                    kCsv});
}

// Options that belong to some optimizers only; `value` is a valid value for examples.
struct OptimizerOption {
  const char* name;
  std::vector<std::string> optimizers;
  const char* value;
};
const std::vector<OptimizerOption>& OptimizerOptions() {
  static const auto& options = *new std::vector<OptimizerOption>{
      {"learningRate", {"SGD", "Adagrad", "Adam", "AdamW", "Plugin"}, "0.1"},
      {"momentum", {"SGD"}, "0.9"},
      {"dampening", {"SGD"}, "0.1"},
      {"nesterov", {"SGD"}, "false"},
      {"weightDecay", {"SGD", "Adagrad", "Adam", "AdamW"}, "0.1"},
      {"betas", {"Adam", "AdamW"}, "[0.9,0.99]"},
      {"eps", {"Adagrad", "Adam", "AdamW"}, "1e-6"},
      {"lrDecay", {"Adagrad"}, "0.1"},
      {"initialAccumulatorValue", {"Adagrad"}, "0.1"},
      {"amsgrad", {"Adam", "AdamW"}, "true"},
      {"schedule", {"SGD", "Adagrad", "Adam", "AdamW", "Plugin"}, R"({"type":"Constant"})"},
      {"groups", {"SGD", "Adagrad", "Adam", "AdamW"}, R"([{"patterns":["a"],"weightDecay":0}])"},
      {"library", {"Plugin"}, R"("lion")"},
      {"parameters", {"Plugin"}, R"({"beta1":0.9})"}};
  return options;
}
constexpr size_t kOptimizerOptions = 14;

// A predicate is a plain function: one is instantiated for each option, by its index in the list.
template <size_t kIndex>
bool OptionFits(const Json& self) {
  const OptimizerOption& option = OptimizerOptions()[kIndex];
  if (!Has(self, option.name)) return true;
  for (const std::string& name : option.optimizers) {
    if (self.at("name") == name) return true;
  }
  return false;
}
template <size_t... kIndex>
std::vector<bool (*)(const Json&)> OptionPredicates(std::index_sequence<kIndex...>) {
  return {&OptionFits<kIndex>...};
}

void AddOptimizerOptionRules(std::vector<Rule>* rules) {
  const auto predicates = OptionPredicates(std::make_index_sequence<kOptimizerOptions>());
  for (size_t i = 0; i < kOptimizerOptions; ++i) {
    const OptimizerOption& option = OptimizerOptions()[i];
    const std::string name = option.name;
    std::string listed, words;
    for (size_t k = 0; k < option.optimizers.size(); ++k) {
      absl::StrAppend(&listed, k == 0 ? "'" : ", '", option.optimizers[k], "'");
      words += k == 0 ? "" : k + 1 == option.optimizers.size() ? " and " : ", ";
      words += option.optimizers[k];
    }
    Rule rule;
    rule.scope = "spec.optimizer";
    rule.field = name;
    rule.cel = absl::StrCat("!has(self.", name, ") || self.name in [", listed, "]");
    rule.holds = predicates[i];
    rule.message = absl::StrCat("`", name, "` is an option of ", words, " only; leave it out");
    const auto example = [&](const std::string& optimizer) {
      const bool library = optimizer == "Plugin" && name != "library";
      return absl::StrCat(R"({"name":")", optimizer, R"(",")", name, R"(":)", option.value,
                          library ? R"(,"library":"lion"})" : "}");
    };
    for (const char* optimizer : {"SGD", "Adagrad", "Adam", "AdamW", "Add", "Plugin"}) {
      const bool fits = Contains(Json(option.optimizers), optimizer);
      (fits ? rule.passing : rule.failing).push_back(example(optimizer));
    }
    rules->push_back(std::move(rule));
  }
}

void AddOptimizerRules(std::vector<Rule>* rules) {
  AddOptimizerOptionRules(rules);
  rules->push_back(
      {"spec.optimizer",
       "library",
       "self.name != 'Plugin' || has(self.library)",
       [](const Json& self) { return !Is(self, "name", "Plugin") || Has(self, "library"); },
       "Plugin needs `library`, the name of the shared library",
       {R"({"name":"Plugin","library":"lion"})", R"({"name":"Adam"})"},
       {R"({"name":"Plugin"})"}});
  rules->push_back(
      {"spec.optimizer",
       "nesterov",
       "!has(self.nesterov) || !self.nesterov || (has(self.momentum) && self.momentum > 0.0 && "
       "(!has(self.dampening) || self.dampening == 0.0))",
       [](const Json& self) {
         if (!Has(self, "nesterov") || !self["nesterov"].get<bool>()) return true;
         return Has(self, "momentum") && Num(self, "momentum") > 0 &&
                (!Has(self, "dampening") || Num(self, "dampening") == 0);
       },
       "Nesterov momentum needs `momentum` above 0 and no `dampening`",
       {R"({"nesterov":true,"momentum":0.9})", R"({"nesterov":false})"},
       {R"({"nesterov":true})", R"({"nesterov":true,"momentum":0.9,"dampening":0.1})"}});
  rules->push_back({"spec.optimizer",
                    "groups",
                    "!has(self.groups) || self.groups.all(g, has(g.learningRate) || "
                    "has(g.weightDecay) || has(g.momentum))",
                    [](const Json& self) {
                      if (!Has(self, "groups")) return true;
                      for (const Json& group : self["groups"]) {
                        if (!Has(group, "learningRate") && !Has(group, "weightDecay") &&
                            !Has(group, "momentum")) {
                          return false;
                        }
                      }
                      return true;
                    },
                    "each group must set `learningRate`, `weightDecay` or `momentum`",
                    {R"({"groups":[{"patterns":["a"],"momentum":0}]})"},
                    {R"({"groups":[{"patterns":["a"]}]})"}});
  rules->push_back(
      {"spec.optimizer",
       "groups",
       "self.name == 'SGD' || !has(self.groups) || self.groups.all(g, !has(g.momentum))",
       [](const Json& self) {
         if (Is(self, "name", "SGD") || !Has(self, "groups")) return true;
         for (const Json& group : self["groups"]) {
           if (Has(group, "momentum")) return false;
         }
         return true;
       },
       "`momentum` is an option of SGD only; leave it out of the groups",
       {R"({"groups":[{"patterns":["a"],"momentum":0}]})"},
       {R"({"name":"Adam","groups":[{"patterns":["a"],"momentum":0}]})"}});
  const std::string scope = "spec.optimizer.schedule";
  rules->push_back(
      {scope,
       "stepSize",
       "(self.type == 'Step') == has(self.stepSize)",
       [](const Json& self) { return Is(self, "type", "Step") == Has(self, "stepSize"); },
       "`stepSize` is required for `type: Step`, and only allowed with it",
       {R"({"type":"Step","stepSize":10})"},
       {R"({"type":"Step"})", R"({"type":"Constant","stepSize":10})"}});
  rules->push_back({scope,
                    "totalSteps",
                    "!has(self.totalSteps) || self.totalSteps > self.warmupSteps",
                    [](const Json& self) {
                      return !Has(self, "totalSteps") ||
                             Int(self, "totalSteps") > Int(self, "warmupSteps");
                    },
                    "`totalSteps` must be more than `warmupSteps`",
                    {R"({"type":"Cosine","totalSteps":10,"warmupSteps":9})"},
                    {R"({"type":"Cosine","totalSteps":10,"warmupSteps":10})"}});
  rules->push_back(
      {scope,
       "gamma",
       "self.type == 'Step' || !has(self.gamma)",
       [](const Json& self) { return Is(self, "type", "Step") || !Has(self, "gamma"); },
       "`gamma` is for `type: Step`",
       {R"({"type":"Step","stepSize":10,"gamma":0.5})"},
       {R"({"gamma":0.5})"}});
  rules->push_back(
      {scope,
       "totalSteps",
       "(self.type == 'Cosine') == has(self.totalSteps)",
       [](const Json& self) { return Is(self, "type", "Cosine") == Has(self, "totalSteps"); },
       "`totalSteps` is required for `type: Cosine`, and only allowed with it",
       {R"({"type":"Cosine","totalSteps":10})"},
       {R"({"type":"Cosine"})", R"({"totalSteps":10})"}});
  rules->push_back(
      {scope,
       "minFactor",
       "self.type == 'Cosine' || !has(self.minFactor)",
       [](const Json& self) { return Is(self, "type", "Cosine") || !Has(self, "minFactor"); },
       "`minFactor` is for `type: Cosine`",
       {R"({"type":"Cosine","totalSteps":10,"minFactor":0.1})"},
       {R"({"minFactor":0.1})"}});
}

// The number of microbatches of a step, with the default of `microbatchSize` if it is unset.
int64_t MicrobatchSize(const Json& training) {
  if (Has(training, "microbatchSize")) return Int(training, "microbatchSize");
  return (Int(training, "globalBatchSize") + 15) / 16;
}

void AddCompressionRules(std::vector<Rule>* rules) {
  const std::string scope = "spec.training.compression";
  const std::string context = R"({"spec":{"training":{"compression":{}}}})";
  rules->push_back(
      {scope,
       "fraction",
       "!has(self.fraction) || self.push == 'TopK'",
       [](const Json& self) { return !Has(self, "fraction") || Is(self, "push", "TopK"); },
       "`fraction` is for `push: TopK`",
       {R"({"push":"TopK","fraction":0.1})", R"({"push":"TopK"})"},
       {R"({"push":"Int8","fraction":0.1})"},
       context});
  rules->push_back(
      {scope,
       "threshold",
       "(self.push == 'SignThreshold') == has(self.threshold)",
       [](const Json& self) { return Is(self, "push", "SignThreshold") == Has(self, "threshold"); },
       "`threshold` is required for `push: SignThreshold`, and only allowed with it",
       {R"({"push":"SignThreshold","threshold":0.1})"},
       {R"({"push":"SignThreshold"})", R"({"threshold":0.1})"},
       context});
  rules->push_back(
      {scope,
       "errorFeedback",
       "!has(self.errorFeedback) || self.push != 'None'",
       [](const Json& self) { return !Has(self, "errorFeedback") || !Is(self, "push", "None"); },
       "`errorFeedback` needs `push`: without it nothing is omitted",
       {R"({"push":"Int8","errorFeedback":false})"},
       {R"({"errorFeedback":true})"},
       context});
  const std::string rule = "spec.training.stalenessRule";
  const std::string asynchronous =
      R"({"spec":{"training":{"mode":"Asynchronous","stalenessRule":{"name":"Inverse"}}}})";
  rules->push_back(
      {rule,
       "factor",
       "!has(self.factor) || self.name == 'Damped'",
       [](const Json& self) { return !Has(self, "factor") || Is(self, "name", "Damped"); },
       "`factor` is for `name: Damped`",
       {R"({"name":"Damped","factor":0.2})"},
       {R"({"name":"Inverse","factor":0.2})"},
       asynchronous});
  rules->push_back({rule,
                    "lambda",
                    "!has(self.lambda) || self.name == 'DelayCompensation'",
                    [](const Json& self) {
                      return !Has(self, "lambda") || Is(self, "name", "DelayCompensation");
                    },
                    "`lambda` is for `name: DelayCompensation`",
                    {R"({"name":"DelayCompensation","lambda":0.2})"},
                    {R"({"name":"Inverse","lambda":0.2})"},
                    asynchronous});
  rules->push_back(
      {"spec",
       "training.stalenessRule",
       "!has(self.training.stalenessRule) || self.training.stalenessRule.name == 'None' || "
       "self.optimizer.name != 'Add'",
       [](const Json& self) {
         const Json& training = self["training"];
         return !Has(training, "stalenessRule") || Is(training["stalenessRule"], "name", "None") ||
                !Is(self["optimizer"], "name", "Add");
       },
       "`optimizer: {name: Add}` does not support a staleness rule",
       {R"({})"},
       {R"({"optimizer":{"name":"Add"}})"},
       asynchronous});
  rules->push_back(
      {"spec",
       "training.stalenessRule",
       "!has(self.training.stalenessRule) || self.training.stalenessRule.name != "
       "'MomentumCorrection' || (has(self.optimizer.momentum) && self.optimizer.momentum > 0.0)",
       [](const Json& self) {
         const Json& training = self["training"];
         if (!Has(training, "stalenessRule")) return true;
         if (!Is(training["stalenessRule"], "name", "MomentumCorrection")) return true;
         return Has(self["optimizer"], "momentum") && Num(self["optimizer"], "momentum") > 0;
       },
       "MomentumCorrection needs `optimizer: {name: SGD}` with a `momentum`",
       {R"({"optimizer":{"name":"SGD","momentum":0.9},
            "training":{"stalenessRule":{"name":"MomentumCorrection"}}})"},
       {R"({"training":{"stalenessRule":{"name":"MomentumCorrection"}}})",
        R"({"optimizer":{"name":"Adam"},
            "training":{"stalenessRule":{"name":"MomentumCorrection"}}})"},
       asynchronous});
}

void AddTrainingRules(std::vector<Rule>* rules) {
  const std::string scope = "spec.training";
  rules->push_back({scope,
                    "steps",
                    "has(self.steps) || has(self.epochs)",
                    [](const Json& self) { return Has(self, "steps") || Has(self, "epochs"); },
                    "`steps` or `epochs` is required: how long to train",
                    {R"({"steps":10})", R"({"steps":null,"epochs":2})"},
                    {R"({"steps":null})"}});
  rules->push_back({scope,
                    "epochs",
                    "!has(self.steps) || !has(self.epochs)",
                    [](const Json& self) { return !Has(self, "steps") || !Has(self, "epochs"); },
                    "give `steps` or `epochs`, not both",
                    {R"({"steps":10})", R"({"steps":null,"epochs":2})"},
                    {R"({"steps":10,"epochs":2})"}});
  rules->push_back({scope,
                    "microbatchSize",
                    "!has(self.microbatchSize) || self.microbatchSize <= self.globalBatchSize",
                    [](const Json& self) {
                      return !Has(self, "microbatchSize") ||
                             Int(self, "microbatchSize") <= Int(self, "globalBatchSize");
                    },
                    "`microbatchSize` must be at most `globalBatchSize` (default 64)",
                    {R"({"globalBatchSize":32,"microbatchSize":32})"},
                    {R"({"globalBatchSize":32,"microbatchSize":33})", R"({"microbatchSize":65})"}});
  const std::string size =
      "(has(self.microbatchSize) ? self.microbatchSize : (self.globalBatchSize + 15) / 16)";
  rules->push_back(
      {scope,
       "determinism",
       "self.determinism != 'BitExact' || (self.globalBatchSize % " + size +
           " == 0 && self.globalBatchSize / " + size +
           " in [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, "
           "65536])",
       [](const Json& self) {
         if (!Is(self, "determinism", "BitExact")) return true;
         const int64_t size = MicrobatchSize(self);
         const int64_t count = Int(self, "globalBatchSize") / size;
         return Int(self, "globalBatchSize") % size == 0 && (count & (count - 1)) == 0 &&
                count >= 1 && count <= 65536;
       },
       "BitExact needs `globalBatchSize` to be `microbatchSize` times a power of two, at most "
       "65536 (if `microbatchSize` is unset: a multiple of 16, or a power of two)",
       {R"({"determinism":"BitExact"})",
        R"({"determinism":"BitExact","globalBatchSize":100,"microbatchSize":25})"},
       {R"({"determinism":"BitExact","globalBatchSize":100})",
        R"({"determinism":"BitExact","globalBatchSize":96,"microbatchSize":32})"}});
  rules->push_back({scope,
                    "determinism",
                    "self.determinism != 'BitExact' || self.mode == 'Synchronous'",
                    [](const Json& self) {
                      return !Is(self, "determinism", "BitExact") ||
                             Is(self, "mode", "Synchronous");
                    },
                    "BitExact is for `mode: Synchronous`",
                    {R"({"determinism":"BitExact"})"},
                    {R"({"determinism":"BitExact","mode":"Asynchronous"})"}});
  rules->push_back({scope,
                    "compression.push",
                    "self.determinism != 'BitExact' || self.compression.push == 'None'",
                    [](const Json& self) {
                      return !Is(self, "determinism", "BitExact") ||
                             Is(self["compression"], "push", "None");
                    },
                    "BitExact needs exact gradients: what a codec omits depends on which worker "
                    "computed it (`pull` may be compressed)",
                    {R"({"determinism":"BitExact","compression":{"pull":"Float16"}})"},
                    {R"({"determinism":"BitExact","compression":{"push":"Float16"}})",
                     R"({"determinism":"BitExact","compression":{"push":"TopK"}})"}});
  rules->push_back({scope,
                    "stalenessRule",
                    "!has(self.stalenessRule) || self.stalenessRule.name == 'None' || self.mode != "
                    "'Synchronous'",
                    [](const Json& self) {
                      return !Has(self, "stalenessRule") ||
                             Is(self["stalenessRule"], "name", "None") ||
                             !Is(self, "mode", "Synchronous");
                    },
                    "in `mode: Synchronous` no gradient is stale",
                    {R"({"mode":"Asynchronous","stalenessRule":{"name":"Inverse"}})",
                     R"({"stalenessRule":{"name":"None"}})"},
                    {R"({"stalenessRule":{"name":"Inverse"}})"}});
  AddCompressionRules(rules);
  rules->push_back(
      {scope,
       "boundedStaleness",
       "(self.mode == 'BoundedStaleness') == has(self.boundedStaleness)",
       [](const Json& self) {
         return Is(self, "mode", "BoundedStaleness") == Has(self, "boundedStaleness");
       },
       "`boundedStaleness` is required for `mode: BoundedStaleness`, and only allowed with it",
       {R"({"mode":"BoundedStaleness","boundedStaleness":{"maxStaleness":4}})"},
       {R"({"mode":"BoundedStaleness"})", R"({"boundedStaleness":{"maxStaleness":4}})"}});
  rules->push_back(
      {scope,
       "target.value",
       "!has(self.target) || self.target.metric != 'accuracy' || (self.target.value >= 0.0 && "
       "self.target.value <= 100.0)",
       [](const Json& self) {
         if (!Has(self, "target") || !Is(self["target"], "metric", "accuracy")) return true;
         return Num(self["target"], "value") >= 0 && Num(self["target"], "value") <= 100;
       },
       "accuracy is in percent, from 0 to 100",
       {R"({"target":{"metric":"accuracy","goal":"AtLeast","value":98.5}})"},
       {R"({"target":{"metric":"accuracy","goal":"AtLeast","value":985}})"},
       R"({"spec":{"data":{"evaluation":{"source":{"path":"/test"},"intervalSteps":100}}}})"});
}

// Whether samples are sequences of tokens.
bool IsTokens(const Json& spec) {
  const Json& data = spec["data"];
  return Is(data, "format", "Text") ||
         (Has(data, "synthetic") && Has(data["synthetic"], "vocabulary"));
}

void AddTextRules(std::vector<Rule>* rules) {
  constexpr char kText[] =
      R"({"model":{"name":"lstm-lm"},"data":{"format":"Text","source":{"path":"/t"}}})";
  constexpr char kTokens[] = R"({"model":{"name":"lstm-lm"},"data":{"format":"Synthetic",
      "source":null,"synthetic":{"shape":[20],"vocabulary":100}}})";
  const std::string tokens =
      "(self.data.format == 'Text' || (has(self.data.synthetic) && "
      "has(self.data.synthetic.vocabulary)))";
  rules->push_back({"spec",
                    "data.text",
                    "self.data.format == 'Text' || !has(self.data.text)",
                    [](const Json& self) {
                      return Is(self["data"], "format", "Text") || !Has(self["data"], "text");
                    },
                    "`text` is for `format: Text`",
                    {kText},
                    {R"({"data":{"text":{"sequenceLength":5}}})"}});
  rules->push_back(
      {"spec",
       "data.normalize",
       "!" + tokens + " || !has(self.data.normalize)",
       [](const Json& self) { return !IsTokens(self) || !Has(self["data"], "normalize"); },
       "`normalize` is for numbers, but this data is words; leave it out",
       {kText},
       {R"({"model":{"name":"lstm-lm"},"data":{"format":"Text",
                         "source":{"path":"/t"},"normalize":{"mean":[0],"std":[1]}}})"}});
  rules->push_back({"spec",
                    "data.classes",
                    "self.data.format != 'Text' || !has(self.data.classes)",
                    [](const Json& self) {
                      return !Is(self["data"], "format", "Text") || !Has(self["data"], "classes");
                    },
                    "the classes of a text are its words; set `text.vocabularySize` instead",
                    {kText},
                    {R"({"model":{"name":"lstm-lm"},"data":{"format":"Text",
                         "source":{"path":"/t"},"classes":5}})"}});
  rules->push_back({"spec",
                    "model.name",
                    "!has(self.model.name) || (self.model.name == 'lstm-lm') == " + tokens,
                    [](const Json& self) {
                      return !Has(self["model"], "name") ||
                             Is(self["model"], "name", "lstm-lm") == IsTokens(self);
                    },
                    "`lstm-lm` takes words, other built-in models take numbers: `format: Text`, "
                    "and Synthetic data with a `vocabulary`, are for `lstm-lm` only",
                    {kText, kTokens},
                    {R"({"model":{"name":"lstm-lm"}})",
                     R"({"data":{"format":"Text","source":{"path":"/t"}}})"}});
  rules->push_back(
      {"spec",
       "data.text.state",
       "!has(self.data.text) || self.data.text.state != 'Carried' || (!self.data.shuffle && "
       "self.training.determinism != 'BitExact')",
       [](const Json& self) {
         if (!Has(self["data"], "text") || !Is(self["data"]["text"], "state", "Carried")) {
           return true;
         }
         return !self["data"]["shuffle"].get<bool>() &&
                !Is(self["training"], "determinism", "BitExact");
       },
       "`state: Carried` needs `data.shuffle: false`, since the state continues along the text, "
       "and is not for BitExact, since the state depends on which worker computed the previous "
       "sample",
       {R"({"model":{"name":"lstm-lm"},"data":{"format":"Text","source":{"path":"/t"},
            "shuffle":false,"text":{"state":"Carried"}}})"},
       {R"({"model":{"name":"lstm-lm"},"data":{"format":"Text","source":{"path":"/t"},
            "text":{"state":"Carried"}}})",
        R"({"model":{"name":"lstm-lm"},"training":{"determinism":"BitExact"},"data":{
            "format":"Text","source":{"path":"/t"},"shuffle":false,"text":{"state":"Carried"}}})"}});
  rules->push_back(
      {"spec",
       "training.target",
       "!has(self.training.target) || self.training.target.metric != 'perplexity' || " + tokens,
       [](const Json& self) {
         return !Has(self["training"], "target") ||
                !Is(self["training"]["target"], "metric", "perplexity") || IsTokens(self);
       },
       "`perplexity` is for language models: it needs `data: {format: Text}`",
       {R"({"model":{"name":"lstm-lm"},"data":{"format":"Text","source":{"path":"/t"},
            "evaluation":{"source":{"path":"/e"},"intervalSeconds":5}},
            "training":{"target":{"metric":"perplexity","goal":"AtMost","value":200}}})"},
       {R"({"data":{"evaluation":{"source":{"path":"/e"},"intervalSeconds":5}},
            "training":{"target":{"metric":"perplexity","goal":"AtMost","value":200}}})"}});
}

bool IsCustom(const Json& spec) { return Is(spec["model"], "type", "Custom"); }

void AddCustomRules(std::vector<Rule>* rules) {
  constexpr char kGood[] =
      R"({"model":{"type":"Custom","name":null},"data":{"format":"Custom","source":null},
          "worker":{"command":["python3","train.py"]}})";
  rules->push_back(
      {"spec",
       "worker.command",
       "self.model.type != 'Custom' || (has(self.worker) && has(self.worker.command))",
       [](const Json& self) {
         return !IsCustom(self) || (Has(self, "worker") && Has(self["worker"], "command"));
       },
       "a Custom model needs `worker.command`, the program that trains it, e.g. [python3, "
       "train.py]",
       {kGood},
       {R"({"model":{"type":"Custom","name":null},"data":{"format":"Custom","source":null}})"}});
  rules->push_back({"spec",
                    "worker.command",
                    "self.model.type == 'Custom' || !has(self.worker) || !has(self.worker.command)",
                    [](const Json& self) {
                      return IsCustom(self) || !Has(self, "worker") ||
                             !Has(self["worker"], "command");
                    },
                    "`command` is for `model: {type: Custom}`; other models are computed by "
                    "Sluice's own workers",
                    {kGood},
                    {R"({"worker":{"command":["python3","train.py"]}})"}});
  rules->push_back(
      {"spec",
       "data.format",
       "(self.model.type == 'Custom') == (self.data.format == 'Custom')",
       [](const Json& self) { return IsCustom(self) == Is(self["data"], "format", "Custom"); },
       "`data: {format: Custom}` and `model: {type: Custom}` need each other: the program reads "
       "its own data",
       {kGood},
       {R"({"data":{"format":"Custom","source":null}})",
        R"({"model":{"type":"Custom","name":null},"worker":{"command":["a"]}})"}});
  rules->push_back({"spec",
                    "loss",
                    "self.model.type != 'Custom' || !has(self.loss)",
                    [](const Json& self) { return !IsCustom(self) || !Has(self, "loss"); },
                    "a Custom model's program computes the loss; leave `loss` out",
                    {kGood},
                    {R"({"model":{"type":"Custom","name":null},"loss":"mse",
                         "data":{"format":"Custom","source":null},"worker":{"command":["a"]}})"}});
}

void AddClusterRules(std::vector<Rule>* rules) {
  rules->push_back({"spec.data.source",
                    "path",
                    "!has(self.volume) || self.path == self.volume.mountPath || "
                    "self.path.startsWith(self.volume.mountPath + '/')",
                    [](const Json& self) {
                      if (!Has(self, "volume")) return true;
                      const std::string mount = self["volume"]["mountPath"];
                      const std::string path = self["path"];
                      return path == mount || absl::StartsWith(path, mount + "/");
                    },
                    "`path` must be in `volume.mountPath` (default /data)",
                    {R"({"path":"/data/mnist","volume":{"claimName":"d"}})",
                     R"({"path":"/sets","volume":{"claimName":"d","mountPath":"/sets"}})"},
                    {R"({"path":"/dataset","volume":{"claimName":"d"}})",
                     R"({"path":"/data","volume":{"claimName":"d","mountPath":"/sets"}})"}});
  for (const char* role : {"spec.worker", "spec.parameterServer"}) {
    rules->push_back({role,
                      "replicas",
                      "!has(self.minReplicas) || self.replicas >= self.minReplicas",
                      [](const Json& self) {
                        return !Has(self, "minReplicas") ||
                               Int(self, "replicas") >= Int(self, "minReplicas");
                      },
                      "`replicas` must be at least `minReplicas`",
                      {R"({"replicas":2,"minReplicas":2})"},
                      {R"({"replicas":1,"minReplicas":2})"}});
    rules->push_back({role,
                      "replicas",
                      "!has(self.maxReplicas) || self.replicas <= self.maxReplicas",
                      [](const Json& self) {
                        return !Has(self, "maxReplicas") ||
                               Int(self, "replicas") <= Int(self, "maxReplicas");
                      },
                      "`replicas` must be at most `maxReplicas`",
                      {R"({"replicas":2,"maxReplicas":2})"},
                      {R"({"replicas":3,"maxReplicas":2})"}});
  }
  rules->push_back({"spec.failurePolicy",
                    "rules",
                    "self.rules.all(rule, has(rule.exitCodes) || has(rule.reasons))",
                    [](const Json& self) {
                      const Json& list = self["rules"];
                      return std::all_of(list.begin(), list.end(), [](const Json& rule) {
                        return Has(rule, "exitCodes") || Has(rule, "reasons");
                      });
                    },
                    "each rule needs `exitCodes` or `reasons`",
                    {R"({"rules":[{"action":"Ignore","reasons":["OOMKilled"]}]})"},
                    {R"({"rules":[{"action":"Ignore"}]})"}});
  const std::string scope = "spec.checkpoint.storage";
  rules->push_back(
      {scope,
       "claimName",
       "(self.type == 'PersistentVolumeClaim') == has(self.claimName)",
       [](const Json& self) {
         return Is(self, "type", "PersistentVolumeClaim") == Has(self, "claimName");
       },
       "`claimName` is required for `type: PersistentVolumeClaim`, and only allowed with it",
       {R"({"type":"PersistentVolumeClaim","claimName":"c"})"},
       {R"({"type":"PersistentVolumeClaim"})", R"({"claimName":"c"})"}});
  rules->push_back(
      {scope,
       "subPath",
       "self.type == 'PersistentVolumeClaim' || !has(self.subPath)",
       [](const Json& self) {
         return Is(self, "type", "PersistentVolumeClaim") || !Has(self, "subPath");
       },
       "`subPath` is for `type: PersistentVolumeClaim`; a Local directory is chosen by `path`",
       {R"({"type":"PersistentVolumeClaim","claimName":"c","subPath":"a/b"})"},
       {R"({"subPath":"a/b"})"}});
  rules->push_back(
      {scope,
       "path",
       "self.type == 'Local' || !has(self.path)",
       [](const Json& self) { return Is(self, "type", "Local") || !Has(self, "path"); },
       "`path` is for `type: Local`; the directory in a claim is chosen by `subPath`",
       {R"({"path":"/ckpt"})"},
       {R"({"type":"PersistentVolumeClaim","claimName":"c","path":"/ckpt"})"}});
}

void AddJobRules(std::vector<Rule>* rules) {
  AddCustomRules(rules);
  AddTextRules(rules);
  rules->push_back(
      {"spec",
       "training.target",
       "!has(self.training.target) || (has(self.data.evaluation) && "
       "(has(self.data.evaluation.intervalSteps) || has(self.data.evaluation.intervalSeconds)))",
       [](const Json& self) {
         if (!Has(self["training"], "target")) return true;
         if (!Has(self["data"], "evaluation")) return false;
         const Json& evaluation = self["data"]["evaluation"];
         return Has(evaluation, "intervalSteps") || Has(evaluation, "intervalSeconds");
       },
       "a target needs `data.evaluation` with `intervalSteps` or `intervalSeconds`",
       {R"({"training":{"target":{"metric":"loss","goal":"AtMost","value":1}},
            "data":{"evaluation":{"source":{"path":"/t"},"intervalSeconds":5}}})"},
       {R"({"training":{"target":{"metric":"loss","goal":"AtMost","value":1}}})",
        R"({"training":{"target":{"metric":"loss","goal":"AtMost","value":1}},
            "data":{"evaluation":{"source":{"path":"/t"}}}})"}});
  rules->push_back(
      {"spec",
       "data.synthetic",
       "self.data.format != 'Synthetic' || (has(self.data.synthetic) && "
       "has(self.data.synthetic.shape)) || (has(self.model.name) && self.model.name == 'additive')",
       [](const Json& self) {
         if (!Is(self["data"], "format", "Synthetic")) return true;
         if (Has(self["data"], "synthetic") && Has(self["data"]["synthetic"], "shape")) return true;
         return Is(self["model"], "name", "additive");
       },
       "Synthetic data needs `synthetic.shape`, e.g. [1, 28, 28]; only the model `additive` takes "
       "no data",
       {R"({"data":{"synthetic":{"shape":[3]}}})",
        R"({"model":{"name":"additive","dimensions":{"dim":10}}})"},
       {R"({})", R"({"data":{"synthetic":{"samples":3}}})"},
       kSynthetic});
  rules->push_back(
      {"spec.parameterServer",
       "partitions",
       "self.partitions >= self.replicas",
       [](const Json& self) { return Int(self, "partitions") >= Int(self, "replicas"); },
       "each shard needs at least one partition: `partitions` (default 64) must be at least "
       "`replicas`",
       {R"({"replicas":4,"partitions":4})"},
       {R"({"replicas":4,"partitions":3})", R"({"replicas":65})"}});
  rules->push_back({"spec.checkpoint",
                    "intervalSeconds",
                    "!has(self.intervalSteps) || !has(self.intervalSeconds)",
                    [](const Json& self) {
                      return !Has(self, "intervalSteps") || !Has(self, "intervalSeconds");
                    },
                    "at most one of `intervalSteps` and `intervalSeconds` may be given",
                    {R"({"intervalSteps":10})"},
                    {R"({"intervalSteps":10,"intervalSeconds":10})"}});
  rules->push_back({"spec.timeouts",
                    "heartbeatSeconds",
                    "self.heartbeatSeconds * 2.0 <= self.heartbeatTimeoutSeconds",
                    [](const Json& self) {
                      return Num(self, "heartbeatSeconds") * 2.0 <=
                             Num(self, "heartbeatTimeoutSeconds");
                    },
                    "`heartbeatSeconds` must be at most half of `heartbeatTimeoutSeconds`, "
                    "otherwise every process would seem lost",
                    {R"({"heartbeatSeconds":1})"},
                    {R"({"heartbeatSeconds":3})"}});
  rules->push_back({"spec.timeouts",
                    "suspectSeconds",
                    "self.suspectSeconds <= self.heartbeatTimeoutSeconds",
                    [](const Json& self) {
                      return Num(self, "suspectSeconds") <= Num(self, "heartbeatTimeoutSeconds");
                    },
                    "`suspectSeconds` must be at most `heartbeatTimeoutSeconds`",
                    {R"({"suspectSeconds":2})"},
                    {R"({"suspectSeconds":6})"}});
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
    AddDenseRules(rules);
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
