// Rows of the table, and rules: the optimizer and its groups.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "services/manifest/field_builder.h"
#include "services/manifest/field_table.h"

namespace sluice::api {
namespace {

std::string WithOptimizer(const std::string& name) {
  return R"({"spec":{"optimizer":{"name":")" + name + R"("}}})";
}

// The optimizers that have all of the usual options, and more of them.
std::vector<std::string> Names(const std::vector<std::string>& more) {
  std::vector<std::string> names = {"SGD",   "Adagrad", "RMSprop", "Adam",     "AdamW",
                                    "NAdam", "RAdam",   "Adamax",  "Adadelta", "Lion"};
  names.insert(names.end(), more.begin(), more.end());
  return names;
}

bool IsLibraryName(absl::string_view text) {
  if (text.empty() || text[0] == '.' || text[0] == '-') return false;
  return std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.';
  });
}

std::vector<Expr> Literals(const std::vector<std::string>& names) {
  return {names.begin(), names.end()};
}

// Whether a row is an option that a group may have.
bool IsOptionOfGroups(const Field& field) {
  return !field.optimizers.empty() && !absl::StartsWith(field.path, "spec.optimizer.groups") &&
         !absl::StartsWith(field.path, "spec.optimizer.schedule") &&
         absl::c_linear_search(Names({}), field.optimizers[0]);
}

void AddOptionsOfOneOptimizer(const FieldAdder& add) {
  add(Number("spec.optimizer.lrDecay", "Adagrad: decay of the learning rate.",
             OptionOf({"Adagrad"}, "0.1"), DefaultWhereAllowed("0"), Min(0),
             Context(WithOptimizer("Adagrad")), Good("1e-4")));
  add(Number("spec.optimizer.initialAccumulatorValue",
             "Adagrad: initial value of the sum of squares.", OptionOf({"Adagrad"}, "0.1"),
             DefaultWhereAllowed("0"), Min(0), Context(WithOptimizer("Adagrad")), Good("0.1")));
  add(Number("spec.optimizer.alpha", "RMSprop: decay rate of the mean square of gradients.",
             OptionOf({"RMSprop"}, "0.9"), DefaultWhereAllowed("0.99"), Min(0), Max(1),
             Context(WithOptimizer("RMSprop")), Good("0.9"), Bad("1.5", "at most 1")));
  add(Boolean("spec.optimizer.centered",
              "RMSprop: divide by the standard deviation instead of the root of the mean square.",
              Shapes(), OptionOf({"RMSprop"}, "true"), DefaultWhereAllowed("false"),
              Context(WithOptimizer("RMSprop")), Good("true")));
  add(Boolean("spec.optimizer.amsgrad", "Adam, AdamW: divide by the largest mean square so far.",
              Shapes(), OptionOf({"Adam", "AdamW"}, "true"), DefaultWhereAllowed("false"),
              Context(WithOptimizer("AdamW")), Good("true")));
  add(Number("spec.optimizer.momentumDecay", "NAdam: how fast its momentum rises to `betas[0]`.",
             OptionOf({"NAdam"}, "0.1"), DefaultWhereAllowed("0.004"), Min(0),
             Context(WithOptimizer("NAdam")), Good("0.01"), Bad("-1", "at least 0")));
  add(Number("spec.optimizer.rho", "Adadelta: decay rate of the mean squares.",
             OptionOf({"Adadelta"}, "0.5"), DefaultWhereAllowed("0.9"), Min(0), Max(1),
             Context(WithOptimizer("Adadelta")), Good("0.95"), Bad("2", "at most 1")));
  add(Boolean("spec.optimizer.decoupledWeightDecay",
              "NAdam, RAdam: subtract the weight decay from the parameter, as AdamW does.",
              OptionOf({"NAdam", "RAdam"}, "true"), DefaultWhereAllowed("false"),
              Context(WithOptimizer("RAdam")), Good("true")));
}

void AddPlugin(const FieldAdder& add) {
  add(String(
      "spec.optimizer.library",
      "Plugin: the shared library `lib<library>.so` on the shards' machines, in a directory of "
      "$SLUICE_PLUGIN_PATH, /usr/local/lib/sluice or /usr/lib/sluice.",
      Shapes(), OptionOf({"Plugin"}, R"("lion")"), Size(1, 64),
      Pattern("^[A-Za-z0-9_][A-Za-z0-9_.-]*$", IsLibraryName,
              "must be a name of letters, digits, `-`, `_` and `.`, without `lib` and `.so`"),
      Context(R"({"spec":{"optimizer":{"name":"Plugin"}}})"), Good("lion"),
      Bad("plugins/liblion.so", "must be a name")));
  add(Map("spec.optimizer.parameters", "Plugin: parameters of the library's optimizer, by name.",
          OptionOf({"Plugin"}, R"({"beta1":0.9})"), Size(0, 32),
          Context(R"({"spec":{"optimizer":{"name":"Plugin","library":"lion"}}})"),
          Good("{beta1: 0.9, beta2: 0.99}"), Bad("{beta1: high}", "must be a number")));
  add(Number("spec.optimizer.parameters{}", "One number."));
}

}  // namespace

void AddOptimizer(const FieldAdder& add) {
  add(Object("spec.optimizer",
             "How gradients change parameters. Options have the names, meanings and defaults of "
             "PyTorch; options of another optimizer are refused.",
             Fixed(), Required()));
  add(String("spec.optimizer.name",
             "The optimizer, as in `torch.optim`; `Lion` as in its paper, arXiv:2302.06675. `Add`: "
             "parameters <- parameters + update, for exact sums. `Plugin`: the optimizer of a "
             "shared library.",
             Shapes(), Required(), Alias("type"), OneOf(Names({"Add", "Plugin"})), Good("Adam"),
             Bad("adam", "did you mean `Adam`?"), Bad("LBFGS", "must be one of SGD, Adagrad")));
  add(Number("spec.optimizer.learningRate", "Step size. Not for Add.", Rate(),
             OptionOf(Names({"Plugin"}), "0.1"),
             DefaultBy("name", {{{"Adadelta"}, "1"},
                                {{"Adagrad", "RMSprop"}, "0.01"},
                                {{"NAdam", "Adamax"}, "0.002"},
                                {{"Lion"}, "0.0001"},
                                {{}, "0.001"}}),
             Alias("lr"), Min(0), Good("0.05"), Bad("-0.1", "at least 0"),
             Bad("fast", "must be a number")));
  add(Number("spec.optimizer.momentum", "SGD, RMSprop: factor of the previous step.", Shapes(),
             OptionOf({"SGD", "RMSprop"}, "0.9"), DefaultWhereAllowed("0"), Min(0), Good("0.9"),
             Bad("-1", "at least 0")));
  add(Number("spec.optimizer.dampening",
             "SGD: the part of the gradient that is not added to the momentum.",
             OptionOf({"SGD"}, "0.1"), DefaultWhereAllowed("0"), Good("0.1")));
  add(Boolean("spec.optimizer.nesterov", "SGD: Nesterov momentum.", OptionOf({"SGD"}, "false"),
              DefaultWhereAllowed("false"), Context(R"({"spec":{"optimizer":{"momentum":0.9}}})"),
              Good("true")));
  add(Number("spec.optimizer.weightDecay",
             "Weight decay: added to the gradient (L2); AdamW and Lion subtract it from the "
             "parameter. Not for Add.",
             Rate(), OptionOf(Names({}), "0.1"),
             DefaultBy("name", {{{"AdamW"}, "0.01"}, {{}, "0"}}), Min(0), Good("1e-4"),
             Bad("-1e-4", "at least 0")));
  add(List("spec.optimizer.betas",
           "Adam, AdamW, NAdam, RAdam, Adamax, Lion: decay rates of the mean and of the mean "
           "square (Adamax: the largest size) of gradients. Lion: the weight of the mean in the "
           "step, and its decay rate.",
           OptionOf({"Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Lion"}, "[0.9,0.99]"),
           DefaultBy("name", {{{"Lion"}, "[0.9, 0.99]"}, {{}, "[0.9, 0.999]"}}),
           Proto({"beta1", "beta2"}), Size(2, 2), Context(WithOptimizer("Adam")),
           Good("[0.9, 0.99]"), Bad("[0.9]", "must have at least 2 items"),
           Bad("[0.9, 1]", "must be less than 1")));
  add(Number("spec.optimizer.betas[]", "One rate.", Min(0), Below(1)));
  add(Number(
      "spec.optimizer.eps", "Added to the divisor. Not for SGD and Lion.",
      OptionOf({"Adagrad", "RMSprop", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adadelta"},
               "1e-6"),
      DefaultBy("name", {{{"Adagrad"}, "1e-10"}, {{"Adadelta"}, "1e-6"}, {{}, "1e-8"}}), Min(0),
      Context(WithOptimizer("Adam")), Good("1e-7")));
  AddOptionsOfOneOptimizer(add);
  AddPlugin(add);
  add(Number("spec.optimizer.clipNorm",
             "Gradients whose 2-norm over all parameters is larger are scaled down to this norm. "
             "Unset: no gradient is scaled.",
             Above(0), Good("1.0"), Bad("0", "must be more than 0")));
}

void AddGroups(const FieldAdder& add) {
  add(List("spec.optimizer.groups",
           "Other options, or another optimizer, for some parameters. A parameter belongs to the "
           "first group with a pattern that matches its name. Options that the group does not set "
           "are those of the optimizer. Not for Add and Plugin.",
           Shapes(), OptionOf(Names({}), R"([{"patterns":["a"],"weightDecay":0}])"), Size(0, 64),
           Good("[{patterns: [\"*.bias\"], weightDecay: 0}]"),
           Good("[{patterns: [\"embedding.*\"], name: Adagrad, learningRate: 0.1}]"),
           Bad("{patterns: [a]}", "must be a list"),
           Bad("[{patterns: [a], name: Plugin}]", "must be one of SGD, Adagrad")));
  add(Object("spec.optimizer.groups[]", "One group."));
  add(List("spec.optimizer.groups[].patterns",
           "Names of parameters, as in PyTorch's state_dict; `*` matches any characters, `?` "
           "matches one.",
           Required(), Size(1, 64)));
  add(String("spec.optimizer.groups[].patterns[]", "One pattern.", Size(1, 253)));
  add(String("spec.optimizer.groups[].name",
             "The optimizer of these parameters. Options that a group with a `name` does not set "
             "have this optimizer's defaults, not the values of the job's optimizer. Unset: the "
             "job's optimizer.",
             OneOf(Names({}))));
  const size_t count = add.rows().size();  // `add` appends to them
  for (size_t i = 0; i < count; ++i) {
    const Field& row = add.rows()[i];
    const bool item = row.path == "spec.optimizer.betas[]";
    if (!item && !IsOptionOfGroups(row)) continue;
    Field option = row;
    option.path =
        absl::StrCat("spec.optimizer.groups[]", row.path.substr(sizeof("spec.optimizer") - 1));
    option.optimizers.clear();
    option.default_by.clear();
    option.default_cases.clear();
    option.context.clear();
    option.examples.clear();
    option.invalid.clear();
    add(std::move(option));
  }
  AddScheduleOfGroups(add);
}

namespace {

// An option of some optimizers only.
void AddOptionRules(std::vector<Rule>* rules) {
  const SchemaNode& optimizer = *FindSchema("spec.optimizer");
  const RuleAdder add("spec.optimizer", rules);
  for (const SchemaNode* option : optimizer.children) {
    const std::vector<std::string>& fitting = option->field->optimizers;
    if (fitting.empty()) continue;
    std::vector<std::string> passing, failing;
    for (const std::string& name : optimizer.Child("name")->field->values) {
      const bool library = name == "Plugin" && option->name != "library";
      (absl::c_linear_search(fitting, name) ? passing : failing)
          .push_back(absl::StrCat(R"({"name":")", name, R"(",")", option->name, R"(":)",
                                  option->field->option_example,
                                  library ? R"(,"library":"lion"})" : "}"));
    }
    add(option->name, !Has(option->name) || IsOneOf(Self("name"), Literals(fitting)),
        absl::StrCat("`", option->name, "` is an option of ", JoinWords(fitting),
                     " only; leave it out"),
        passing, failing);
  }
}

// The same for the options of groups.
void AddGroupOptionRules(std::vector<Rule>* rules) {
  const RuleAdder add("spec.optimizer", rules);
  const Expr name = If(ItemHas("g", "name"), Item("g.name"), Self("name"));
  for (const SchemaNode* option : FindSchema("spec.optimizer")->children) {
    const Field& field = *option->field;
    if (!IsOptionOfGroups(field) || field.optimizers.size() >= Names({}).size()) continue;
    const auto group = [&](const std::string& optimizer) {
      return absl::StrCat(R"({"patterns":["a"],"name":")", optimizer, R"(",")", option->name,
                          R"(":)", field.option_example, "}");
    };
    std::vector<std::string> failing;
    for (const std::string& other : Names({})) {
      if (absl::c_linear_search(field.optimizers, other)) continue;
      failing.push_back(absl::StrCat(R"({"groups":[)", group(other), "]}"));
    }
    add("groups",
        !Has("groups") ||
            All("g", Self("groups"),
                !ItemHas("g", option->name) || IsOneOf(name, Literals(field.optimizers))),
        absl::StrCat("`", option->name, "` is an option of ", JoinWords(field.optimizers),
                     " only; leave it out of the groups of other optimizers"),
        {absl::StrCat(R"({"groups":[)", group(field.optimizers[0]), "]}"),
         absl::StrCat(R"({"name":")", field.optimizers[0], R"(","groups":[{"patterns":["a"],")",
                      option->name, R"(":)", field.option_example, "}]}")},
        failing);
  }
}

// The value of an option for the group `g`, which is `otherwise` where nothing sets it.
Expr OfGroup(const std::string& option, const Expr& otherwise) {
  return If(ItemHas("g", option), Item("g." + option),
            If(ItemHas("g", "name") || !Has(option), otherwise, Self(option)));
}

void AddGroupRules(std::vector<Rule>* rules) {
  const RuleAdder add("spec.optimizer", rules);
  std::vector<Expr> set;
  for (const SchemaNode* option : FindSchema("spec.optimizer.groups[]")->children) {
    if (option->name != "patterns") set.push_back(ItemHas("g", option->name));
  }
  Expr any = set[0];
  for (size_t i = 1; i < set.size(); ++i) any = any || set[i];
  add("groups", !Has("groups") || All("g", Self("groups"), any),
      "each group must set something, e.g. `learningRate` or `name`",
      {R"({"groups":[{"patterns":["a"],"momentum":0}]})"}, {R"({"groups":[{"patterns":["a"]}]})"});
  AddGroupOptionRules(rules);
  const Expr nesterov = If(ItemHas("g", "nesterov"), Item("g.nesterov"),
                           !ItemHas("g", "name") && Has("nesterov") && Self("nesterov"));
  add("groups",
      !Has("groups") ||
          All("g", Self("groups"),
              !nesterov || (OfGroup("momentum", 0.0) > 0.0 && OfGroup("dampening", 0.0) == 0.0)),
      "Nesterov momentum needs `momentum` above 0 and no `dampening`, in each group too",
      {R"({"momentum":0.9,"groups":[{"patterns":["a"],"nesterov":true}]})",
       R"({"nesterov":true,"momentum":0.9,"groups":[{"patterns":["a"],"name":"SGD"}]})"},
      {R"({"groups":[{"patterns":["a"],"nesterov":true}]})",
       R"({"nesterov":true,"momentum":0.9,"groups":[{"patterns":["a"],"momentum":0}]})",
       R"({"momentum":0.9,"groups":[{"patterns":["a"],"nesterov":true,"dampening":0.1}]})"});
}

// Only some optimizers have a momentum that a schedule can move.
void AddMomentumRules(std::vector<Rule>* rules) {
  const std::vector<std::string> names = {"Adam", "AdamW", "RAdam", "Adamax", "Lion"};
  const std::string cycle = R"("schedule":{"type":"OneCycle","totalSteps":9,"cycleMomentum":{}})";
  const RuleAdder add("spec.optimizer", rules);
  const Expr none = !Has("schedule") || !Has("schedule.cycleMomentum");
  add("schedule.cycleMomentum",
      none || IsOneOf(Self("name"), Literals(names)) || (Has("momentum") && Self("momentum") > 0.0),
      "`cycleMomentum` needs SGD or RMSprop with a `momentum`, Adam, AdamW, RAdam, Adamax or Lion",
      {absl::StrCat(R"({"name":"Adam",)", cycle, "}"),
       absl::StrCat(R"({"momentum":0.9,)", cycle, "}")},
      {absl::StrCat("{", cycle, "}"), absl::StrCat(R"({"name":"NAdam",)", cycle, "}")});
  const Expr cycles = If(ItemHas("g", "schedule"), ItemHas("g", "schedule.cycleMomentum"), !none);
  add("groups",
      !Has("groups") ||
          All("g", Self("groups"),
              !cycles || OfGroup("momentum", 0.0) > 0.0 ||
                  IsOneOf(If(ItemHas("g", "name"), Item("g.name"), Self("name")), Literals(names))),
      "a group whose optimizer has no momentum needs a `schedule` of its own, without "
      "`cycleMomentum`",
      {absl::StrCat(R"({"name":"Adam","groups":[{"patterns":["a"],"name":"SGD","momentum":0.5}],)",
                    cycle, "}"),
       absl::StrCat(R"({"name":"Adam","groups":[{"patterns":["a"],"name":"SGD","schedule":{}}],)",
                    cycle, "}"),
       absl::StrCat(R"({"groups":[{"patterns":["a"],"name":"Lion",)", cycle, "}]}")},
      {absl::StrCat(R"({"name":"Adam","groups":[{"patterns":["a"],"name":"SGD"}],)", cycle, "}"),
       absl::StrCat(R"({"groups":[{"patterns":["a"],"name":"NAdam",)", cycle, "}]}")});
}

}  // namespace

void AddOptimizerRules(std::vector<Rule>* rules) {
  AddOptionRules(rules);
  const RuleAdder add("spec.optimizer", rules);
  add("library", Self("name") != "Plugin" || Has("library"),
      "Plugin needs `library`, the name of the shared library",
      {R"({"name":"Plugin","library":"lion"})", R"({"name":"Adam"})"}, {R"({"name":"Plugin"})"});
  add("nesterov",
      !Has("nesterov") || !Self("nesterov") ||
          (Has("momentum") && Self("momentum") > 0.0 &&
           (!Has("dampening") || Self("dampening") == 0.0)),
      "Nesterov momentum needs `momentum` above 0 and no `dampening`",
      {R"({"nesterov":true,"momentum":0.9})", R"({"nesterov":false})"},
      {R"({"nesterov":true})", R"({"nesterov":true,"momentum":0.9,"dampening":0.1})"});
  AddGroupRules(rules);
  AddMomentumRules(rules);
  AddScheduleRules(rules);
}

}  // namespace sluice::api
