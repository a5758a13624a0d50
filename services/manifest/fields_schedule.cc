// Rows of the table, and rules: the schedule of the learning rate.
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "services/manifest/field_builder.h"
#include "services/manifest/field_table.h"

namespace sluice::api {
namespace {

constexpr char kSchedule[] = "spec.optimizer.schedule";
constexpr char kPart[] = "spec.optimizer.schedule.parts[]";

Attribute InType(const std::string& type, const std::string& fields = "") {
  return Context(absl::StrCat(R"({"spec":{"optimizer":{"schedule":{"type":")", type, "\"",
                              fields.empty() ? "" : ",", fields, "}}}}"));
}

const char* const kTypes[] = {"Constant", "Step",       "MultiStep",  "Exponential",
                              "Linear",   "Polynomial", "Cosine",     "CosineRestarts",
                              "OneCycle", "Points",     "Sequential", "Chained"};

// A row of a schedule within another one, or within a group.
Field Like(Field field, absl::string_view from, absl::string_view to) {
  if (field.like.empty()) field.like = field.path;
  field.description = absl::StrCat("As `", field.like, "`.");
  field.path = absl::StrCat(to, field.path.substr(from.size()));
  field.context.clear();
  field.examples.clear();
  field.invalid.clear();
  return field;
}

bool IsBelow(const Field& field, absl::string_view path) {
  return field.path.size() > path.size() && absl::StartsWith(field.path, path) &&
         (field.path[path.size()] == '.' || field.path[path.size()] == '[');
}

// The parts have the fields of the schedule, except for the fields about parts.
void AddParts(const FieldAdder& add) {
  const size_t count = add.rows().size();  // `add` appends to them
  add(List("spec.optimizer.schedule.parts",
           "Sequential: schedules, of which each begins at its milestone and counts its steps from "
           "there. Chained: schedules whose factors are multiplied. They have the fields of "
           "`spec.optimizer.schedule`, without `parts` and `cycleMomentum`.",
           Size(1, 8), InType("Chained"),
           Good("[{warmupSteps: 10}, {type: Exponential, gamma: 0.99}]"),
           Bad("[{type: Exponential}]", "needs `gamma`"),
           Bad("[{type: Chained}]", "must be one of Constant, Step")));
  Field part = Object(kPart, "One schedule.");
  part.like = kSchedule;
  add(std::move(part));
  for (size_t i = 0; i < count; ++i) {
    const Field& row = add.rows()[i];
    if (!IsBelow(row, kSchedule) || row.path.find("cycleMomentum") != std::string::npos) continue;
    Field field = Like(row, kSchedule, kPart);
    if (!field.values.empty()) field.values.resize(field.values.size() - 2);
    add(std::move(field));
  }
}

void AddStepsAndFactors(const FieldAdder& add) {
  add(Integer("spec.optimizer.schedule.stepSize", "Step: steps between two changes.", Min(1),
              InType("Step", R"("stepSize":100)"), Good("1000")));
  add(Number("spec.optimizer.schedule.gamma",
             "Step, MultiStep, Exponential: factor of each change. Exponential needs it.",
             DefaultBy("type", {{{"Step", "MultiStep"}, "0.1"}}), Above(0),
             InType("Step", R"("stepSize":100)"), Good("0.5"), Bad("0", "must be more than 0")));
  add(Integer("spec.optimizer.schedule.totalSteps",
              "Cosine, Linear, Polynomial, OneCycle, Constant: steps until the end, including the "
              "warm-up.",
              Min(1), InType("Cosine", R"("totalSteps":1000)"), Good("10000")));
  add(Number("spec.optimizer.schedule.minFactor",
             "Cosine, CosineRestarts: the lowest rate, as a multiple of the learning rate.",
             DefaultWhereAllowed("0"), Min(0), Max(1), InType("Cosine", R"("totalSteps":1000)"),
             Good("0.01"), Bad("2", "at most 1")));
  add(Number("spec.optimizer.schedule.startFactor",
             "Linear, and Constant with `totalSteps`: the first factor.",
             DefaultWhereAllowed("0.3333333333333333"), Min(0), Max(1),
             InType("Linear", R"("totalSteps":10)"), Good("0.1"), Bad("1.5", "at most 1")));
  add(Number("spec.optimizer.schedule.endFactor", "Linear: the last factor.",
             DefaultWhereAllowed("1"), Min(0), Max(1), InType("Linear", R"("totalSteps":10)"),
             Good("0"), Bad("-1", "at least 0")));
  add(List("spec.optimizer.schedule.milestones",
           "MultiStep: the steps of the changes; a step that is there twice counts twice. "
           "Sequential: the first step of each part after the first one.",
           Size(1, 64), InType("MultiStep"), Good("[1000, 2000]"), Good("[1000]"),
           Bad("[-1]", "at least 0"), Bad("[]", "must have at least 1 item"),
           Bad("[9, 5]", "must be ascending")));
  add(Integer("spec.optimizer.schedule.milestones[]", "One step.", Min(0)));
  add(Number("spec.optimizer.schedule.power", "Polynomial: the exponent of what is left.",
             DefaultWhereAllowed("1"), Above(0), InType("Polynomial", R"("totalSteps":10)"),
             Good("2"), Bad("0", "must be more than 0")));
  add(Integer("spec.optimizer.schedule.restartSteps", "CosineRestarts: steps of the first cycle.",
              Min(1), InType("CosineRestarts", R"("restartSteps":10)"), Good("1000")));
  add(Integer("spec.optimizer.schedule.restartMultiple",
              "CosineRestarts: each cycle is so many times longer than the one before it.",
              DefaultWhereAllowed("1"), Min(1), Max(1000),
              InType("CosineRestarts", R"("restartSteps":10)"), Good("2"), Bad("0", "at least 1")));
}

void AddOneCycle(const FieldAdder& add) {
  add(Number("spec.optimizer.schedule.increasingFraction",
             "OneCycle: the part of `totalSteps` in which the rate rises.",
             DefaultWhereAllowed("0.3"), Min(0), Max(1), InType("OneCycle", R"("totalSteps":10)"),
             Good("0.1"), Bad("2", "at most 1")));
  add(Number("spec.optimizer.schedule.initialDivisor",
             "OneCycle: the first rate is the learning rate divided by it.",
             DefaultWhereAllowed("25"), Above(0), InType("OneCycle", R"("totalSteps":10)"),
             Good("10"), Bad("0", "must be more than 0")));
  add(Number("spec.optimizer.schedule.finalDivisor",
             "OneCycle: the last rate is the first one divided by it.",
             DefaultWhereAllowed("10000"), Above(0), InType("OneCycle", R"("totalSteps":10)"),
             Good("1000"), Bad("0", "must be more than 0")));
  add(Boolean("spec.optimizer.schedule.linearAnneal",
              "OneCycle: along straight lines, otherwise along half cosines.",
              DefaultWhereAllowed("false"), InType("OneCycle", R"("totalSteps":10)"),
              Good("true")));
  add(Boolean("spec.optimizer.schedule.threePhases",
              "OneCycle: first down to the first rate, as fast as up, and then to the last one.",
              DefaultWhereAllowed("false"), InType("OneCycle", R"("totalSteps":10)"),
              Good("true")));
  add(Object(
      "spec.optimizer.schedule.cycleMomentum",
      "OneCycle: `momentum` (of optimizers with `betas`: the first one) moves between these, "
      "down while the rate rises. Unset: it does not move. Not for NAdam."));
  const Attribute cycle = Context(
      R"({"spec":{"optimizer":{"momentum":0.9,
          "schedule":{"type":"OneCycle","totalSteps":10,"cycleMomentum":{}}}}})");
  add(Number("spec.optimizer.schedule.cycleMomentum.lowest", "At the highest rate.",
             Default("0.85"), Above(0), Below(1), cycle, Good("0.8"),
             Bad("0", "must be more than 0")));
  add(Number("spec.optimizer.schedule.cycleMomentum.highest", "At the first and at the last rate.",
             Default("0.95"), Above(0), Below(1), cycle, Good("0.9"),
             Bad("1", "must be less than 1")));
}

void AddPoints(const FieldAdder& add) {
  add(List("spec.optimizer.schedule.points",
           "Points: pairs of a step and the factor there. In between the factor is on a straight "
           "line, before the first point and after the last one constant. Two points of one step "
           "are a jump.",
           Size(1, 256), InType("Points"), Good("[[0, 0.1], [500, 1], [10000, 0]]"),
           Good("[[0, 1]]"), Bad("[[0, -1]]", "at least 0"),
           Bad("[[0]]", "must have at least 2 items"),
           Bad("[[9, 1], [5, 1]]", "must be ascending")));
  add(List("spec.optimizer.schedule.points[]", "A step and a factor.", Proto({"step", "factor"}),
           Size(2, 2)));
  add(Number("spec.optimizer.schedule.points[][]", "One number.", Min(0), Max(1e15)));
}

}  // namespace

void AddSchedule(const FieldAdder& add) {
  add(Object(kSchedule,
             "How the learning rate changes over the steps. Unset: it is constant. Not for Add.",
             Rate(),
             OptionOf({"SGD", "Adagrad", "RMSprop", "Adam", "AdamW", "NAdam", "RAdam", "Adamax",
                       "Adadelta", "Lion", "Plugin"},
                      R"({"type":"Constant"})")));
  add(String(
      "spec.optimizer.schedule.type",
      "The form of the schedule, each as the scheduler of PyTorch that docs/models.md names. "
      "Steps are counted from the end of the warm-up. `Constant`: `startFactor` until "
      "`totalSteps`, then 1. `Step`: multiplied by `gamma` every `stepSize` steps. "
      "`MultiStep`: by `gamma` at each of the `milestones`. `Exponential`: by `gamma` at "
      "each step. `Linear`: from `startFactor` to `endFactor`. `Polynomial`: down to 0. "
      "`Cosine`: half a cosine from 1 to `minFactor`, then constant. `CosineRestarts`: half "
      "cosines that begin again. `OneCycle`: up to 1 and down to almost 0, then constant. "
      "`Points`: straight lines between points. `Sequential`: one of the `parts` after the "
      "other. `Chained`: the product of the `parts`.",
      Default(R"("Constant")"), OneOf({std::begin(kTypes), std::end(kTypes)}), Good("Constant"),
      Bad("Lambda", "must be one of Constant, Step")));
  add(Integer(
      "spec.optimizer.schedule.warmupSteps",
      "Steps in which the learning rate rises to its full value, before the schedule of any type.",
      Default("0"), Min(0), Good("500"), Bad("-5", "at least 0")));
  AddStepsAndFactors(add);
  AddOneCycle(add);
  AddPoints(add);
  AddParts(add);
}

void AddScheduleOfGroups(const FieldAdder& add) {
  constexpr char kOfGroup[] = "spec.optimizer.groups[].schedule";
  const size_t count = add.rows().size();  // `add` appends to them
  Field group = Object(kOfGroup,
                       "The schedule of these parameters, with the fields of "
                       "`spec.optimizer.schedule`. Unset: that one.",
                       Rate());
  group.like = kSchedule;
  add(std::move(group));
  for (size_t i = 0; i < count; ++i) {
    const Field& row = add.rows()[i];
    if (IsBelow(row, kSchedule)) add(Like(row, kSchedule, kOfGroup));
  }
}

namespace {

// A field that some types need or may have.
class FieldOfTypes {
 public:
  FieldOfTypes(const RuleAdder& add, std::string field, std::string value,
               std::vector<std::string> types)
      : add_(add), field_(std::move(field)), value_(std::move(value)), types_(std::move(types)) {}

  void MayHave(const std::string& others = "") const {
    add_(field_, !Has(field_) || OfTheseTypes(), absl::StrCat("`", field_, "` is for ", Words()),
         {Example(types_[0], others)},
         {Example("Constant", ""), Example("Points", R"("points":[[0,1]])")});
  }
  void Need(const std::string& others = "") const {
    const std::string more = others.empty() ? "" : "," + others;
    add_(field_, OfTheseTypes() == Has(field_),
         absl::StrCat("`", field_, "` is required for ", Words(), ", and only allowed with ",
                      types_.size() == 1 ? "it" : "these"),
         {Example(types_[0], others)},
         {absl::StrCat(R"({"type":")", types_[0], "\"", more, "}"),
          Example("Exponential", R"("gamma":0.5)")});
  }

 private:
  Expr OfTheseTypes() const { return IsOneOf(Self("type"), {types_.begin(), types_.end()}); }
  std::string Words() const { return absl::StrCat("`type: ", JoinWords(types_), "`"); }
  std::string Example(const std::string& type, const std::string& others) const {
    return absl::StrCat(R"({"type":")", type, R"(",")", field_, "\":", value_,
                        others.empty() ? "" : ",", others, "}");
  }

  const RuleAdder& add_;
  const std::string field_;
  const std::string value_;
  const std::vector<std::string> types_;
};

void AddRulesOfSteps(const RuleAdder& add) {
  FieldOfTypes(add, "stepSize", "10", {"Step"}).Need();
  add("totalSteps", !Has("totalSteps") || Self("totalSteps") > Self("warmupSteps"),
      "`totalSteps` must be more than `warmupSteps`",
      {R"({"type":"Cosine","totalSteps":10,"warmupSteps":9})"},
      {R"({"type":"Cosine","totalSteps":10,"warmupSteps":10})"});
  add("totalSteps",
      IsOneOf(Self("type"), {"Cosine", "Linear", "Polynomial", "OneCycle"}) == Has("totalSteps") ||
          Self("type") == "Constant",
      "`totalSteps` is required for `type: Cosine, Linear, Polynomial and OneCycle`, and only "
      "allowed with these and Constant",
      {R"({"type":"Cosine","totalSteps":10})", R"({"totalSteps":10})", "{}"},
      {R"({"type":"Cosine"})", R"({"type":"OneCycle"})",
       R"({"type":"Exponential","gamma":0.5,"totalSteps":10})"});
  FieldOfTypes(add, "restartSteps", "10", {"CosineRestarts"}).Need();
  FieldOfTypes(add, "restartMultiple", "2", {"CosineRestarts"}).MayHave(R"("restartSteps":10)");
  FieldOfTypes(add, "points", "[[0,1]]", {"Points"}).Need();
  add("points", !Has("points") || All("p", Self("points"), IsWhole(Item("p[0]"))),
      "the step of a point must be a whole number", {R"({"type":"Points","points":[[5,0.5]]})"},
      {R"({"type":"Points","points":[[0.5,1]]})"});
  add("points", !Has("points") || IsSorted(Each("p", Self("points"), Item("p[0]"))),
      "the steps of `points` must be ascending",
      {R"({"type":"Points","points":[[5,0.5],[5,0.1],[7,1]]})"},
      {R"({"type":"Points","points":[[5,0.5],[4,0.1]]})"});
}

void AddRulesOfParts(const RuleAdder& add) {
  const std::string parts = R"("parts":[{"warmupSteps":5},{}])";
  FieldOfTypes(add, "parts", "[{}]", {"Sequential", "Chained"}).Need();
  add("milestones", !Has("milestones") || IsOneOf(Self("type"), {"MultiStep", "Sequential"}),
      "`milestones` are for `type: MultiStep and Sequential`",
      {R"({"type":"MultiStep","milestones":[5]})"}, {R"({"milestones":[5]})"});
  add("milestones", Self("type") != "MultiStep" || Has("milestones"),
      "MultiStep needs `milestones`, the steps of the changes",
      {R"({"type":"MultiStep","milestones":[5]})"}, {R"({"type":"MultiStep"})"});
  add("milestones", !Has("milestones") || IsSorted(Self("milestones")),
      "`milestones` must be ascending", {R"({"type":"MultiStep","milestones":[5,5,6]})"},
      {R"({"type":"MultiStep","milestones":[6,5]})"});
  add("milestones",
      Self("type") != "Sequential" || !Has("parts") ||
          If(Has("milestones"), Size(Self("milestones")), 0) + 1 == Size(Self("parts")),
      "Sequential needs a milestone for each part but the first one, where it begins",
      {absl::StrCat(R"({"type":"Sequential","milestones":[5],)", parts, "}"),
       R"({"type":"Sequential","parts":[{}]})"},
      {absl::StrCat(R"({"type":"Sequential",)", parts, "}"),
       absl::StrCat(R"({"type":"Sequential","milestones":[5,6],)", parts, "}")});
}

}  // namespace

void AddScheduleRules(std::vector<Rule>* rules) {
  const RuleAdder add(kSchedule, rules);
  AddRulesOfSteps(add);
  AddRulesOfParts(add);
  FieldOfTypes(add, "gamma", "0.5", {"Exponential", "Step", "MultiStep"}).MayHave();
  add("gamma", Self("type") != "Exponential" || Has("gamma"),
      "Exponential needs `gamma`, the factor of each step",
      {R"({"type":"Exponential","gamma":0.9})"}, {R"({"type":"Exponential"})"});
  FieldOfTypes(add, "minFactor", "0.1", {"Cosine", "CosineRestarts"}).MayHave(R"("totalSteps":10)");
  add("startFactor",
      !Has("startFactor") || Self("type") == "Linear" ||
          (Self("type") == "Constant" && Has("totalSteps")),
      "`startFactor` is for `type: Linear`, and for Constant with `totalSteps`",
      {R"({"type":"Linear","totalSteps":9,"startFactor":0.5})",
       R"({"totalSteps":9,"startFactor":0.5})"},
      {R"({"startFactor":0.5})", R"({"type":"Exponential","gamma":0.5,"startFactor":0.5})"});
  FieldOfTypes(add, "endFactor", "0.1", {"Linear"}).MayHave(R"("totalSteps":10)");
  FieldOfTypes(add, "power", "2", {"Polynomial"}).MayHave(R"("totalSteps":10)");
  for (const auto& [field, value] :
       {std::pair("increasingFraction", "0.1"), std::pair("initialDivisor", "9"),
        std::pair("finalDivisor", "9"), std::pair("linearAnneal", "true"),
        std::pair("threePhases", "true")}) {
    FieldOfTypes(add, field, value, {"OneCycle"}).MayHave(R"("totalSteps":10)");
  }
  add("cycleMomentum", !Has("cycleMomentum") || Self("type") == "OneCycle",
      "`cycleMomentum` is for `type: OneCycle`", {R"({"type":"OneCycle","totalSteps":9})"},
      {R"({"cycleMomentum":{}})"});
  const RuleAdder momentum("spec.optimizer.schedule.cycleMomentum", rules);
  momentum(
      "lowest", Self("lowest") <= Self("highest"), "`lowest` must be at most `highest`",
      {R"({"lowest":0.8})"}, {R"({"lowest":0.96})"},
      R"({"spec":{"optimizer":{"momentum":0.9,"schedule":{"type":"OneCycle","totalSteps":9}}}})");
}

}  // namespace sluice::api
