#include "cli/optimizer_file.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/common/tensor_text.h"
#include "services/common/status_macros.h"
#include "services/common/text/json_text.h"
#include "services/protocol/elements.h"
#include "services/ps/optimizer/groups.h"
#include "services/ps/optimizer/schedule.h"

namespace sluice::cli {
namespace {

using Json = nlohmann::ordered_json;
using Spec = v1::OptimizerSpec;

constexpr size_t kMaxMetadataDepth = 16;

// ---------------------------------------------------------------- torch.optim

struct Option {
  const char* name;  // in torch.optim's param_groups
  Json (*value)(const Spec&);
};

const Option kWeightDecay = {"weight_decay",
                             [](const Spec& s) -> Json { return s.weight_decay(); }};
const Option kEps = {"eps", [](const Spec& s) -> Json { return s.eps(); }};
const Option kMomentum = {"momentum", [](const Spec& s) -> Json { return s.momentum(); }};
const Option kAmsgrad = {"amsgrad", [](const Spec& s) -> Json { return s.amsgrad(); }};
const Option kBetas = {"betas", [](const Spec& s) -> Json {
                         return Json::array({s.beta1(), s.beta2()});
                       }};
const Option kDecoupled = {"decoupled_weight_decay",
                           [](const Spec& s) -> Json { return s.decoupled_weight_decay(); }};
const Option kNeverDecoupled = {"decoupled_weight_decay",
                                [](const Spec&) -> Json { return false; }};
const Option kAlwaysDecoupled = {"decoupled_weight_decay",
                                 [](const Spec&) -> Json { return true; }};

// An optimizer and its class in torch.optim. `lr` and what says how PyTorch computes are the same
// for all.
struct Row {
  Spec::Name name;
  const char* python;
  std::vector<Option> options;
};

const std::vector<Row>& Rows() {
  static const auto* const rows = new std::vector<Row>{
      {Spec::SGD,
       "SGD",
       {kMomentum,
        {"dampening", [](const Spec& s) -> Json { return s.dampening(); }},
        kWeightDecay,
        {"nesterov", [](const Spec& s) -> Json { return s.nesterov(); }}}},
      {Spec::ADAGRAD,
       "Adagrad",
       {{"lr_decay", [](const Spec& s) -> Json { return s.lr_decay(); }},
        kEps,
        kWeightDecay,
        {"initial_accumulator_value",
         [](const Spec& s) -> Json { return s.initial_accumulator_value(); }}}},
      {Spec::RMS_PROP,
       "RMSprop",
       {{"alpha", [](const Spec& s) -> Json { return s.alpha(); }},
        kEps,
        kMomentum,
        kWeightDecay,
        {"centered", [](const Spec& s) -> Json { return s.centered(); }}}},
      {Spec::ADAM, "Adam", {kBetas, kEps, kWeightDecay, kAmsgrad, kNeverDecoupled}},
      {Spec::ADAM_W, "AdamW", {kBetas, kEps, kWeightDecay, kAmsgrad, kAlwaysDecoupled}},
      {Spec::N_ADAM,
       "NAdam",
       {kBetas,
        kEps,
        kWeightDecay,
        {"momentum_decay", [](const Spec& s) -> Json { return s.momentum_decay(); }},
        kDecoupled}},
      {Spec::R_ADAM, "RAdam", {kBetas, kEps, kWeightDecay, kDecoupled}},
      {Spec::ADAMAX, "Adamax", {kBetas, kEps, kWeightDecay}},
      {Spec::ADADELTA,
       "Adadelta",
       {{"rho", [](const Spec& s) -> Json { return s.rho(); }}, kEps, kWeightDecay}},
  };
  return *rows;
}

absl::StatusOr<const Row*> RowOf(const Spec& spec) {
  for (const Row& row : Rows()) {
    if (row.name == spec.name()) return &row;
  }
  return absl::InvalidArgumentError(absl::StrCat("the job's optimizer is ",
                                                 Spec::Name_Name(spec.name()),
                                                 ", which torch.optim does not have"));
}

// NAdam's second state beside the step: the product of the factors of its momentum so far.
double MuProduct(const Spec& spec, uint64_t updates) {
  double product = 1;
  for (uint64_t step = 1; step <= updates; ++step) {
    const double decay = std::pow(0.96, static_cast<double>(step) * spec.momentum_decay());
    product *= spec.beta1() * (1 - 0.5 * decay);
  }
  return product;
}

// ---------------------------------------------------------------- to PyTorch

// The factor of the learning rate of the step after the checkpoint.
double RateFactor(const Spec& group, const v1::CheckpointIndex& checkpoint_index) {
  const double plateau = checkpoint_index.decisions().learning_rate_factor();
  return ScheduleFactor(group.schedule(), checkpoint_index.checkpoint().step()) *
         (plateau == 0 ? 1 : plateau);
}

Json OptionsOf(const Row& row, const Spec& spec, double rate_factor) {
  Json options = Json::object();
  options["lr"] = spec.learning_rate() * rate_factor;
  options["initial_lr"] = spec.learning_rate();
  for (const Option& option : row.options) options[option.name] = option.value(spec);
  options["maximize"] = false;
  options["foreach"] = nullptr;
  options["fused"] = nullptr;
  options["capturable"] = false;
  options["differentiable"] = false;
  return options;
}

// ---------------------------------------------------------------- from PyTorch

// One group of a file.
struct FileGroup {
  std::string python;  // its class
  Json options;
};

struct FileParameter {
  size_t group = 0;
  uint64_t updates = 0;
};

struct Contents {
  uint64_t step = 0;
  std::vector<FileGroup> groups;
  std::map<std::string, FileParameter> parameters;
  std::map<std::string, const SafetensorsArray*> arrays;  // "fc1.weight/exp_avg"
};

absl::Status ReadGroup(const Json& entry, Contents* contents) {
  const absl::Status wrong =
      absl::InvalidArgumentError("its metadata 'optimizer' has a group that is not as in the docs");
  if (!entry.is_object() || !entry.contains("class") || !entry["class"].is_string() ||
      !entry.contains("options") || !entry["options"].is_object() || !entry.contains("params") ||
      !entry["params"].is_array() || !entry.contains("updates") || !entry["updates"].is_array() ||
      entry["params"].size() != entry["updates"].size()) {
    return wrong;
  }

  for (size_t i = 0; i < entry["params"].size(); ++i) {
    const Json& name = entry["params"][i];
    const Json& updates = entry["updates"][i];
    if (!name.is_string() || !updates.is_number_unsigned()) return wrong;
    const FileParameter parameter = {contents->groups.size(), updates.get<uint64_t>()};
    if (!contents->parameters.emplace(name.get<std::string>(), parameter).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("parameter '", name.get<std::string>(), "' is in two groups"));
    }
  }

  contents->groups.push_back({entry["class"].get<std::string>(), entry["options"]});
  return absl::OkStatus();
}

absl::StatusOr<Contents> ReadContents(const std::vector<SafetensorsArray>& arrays,
                                      const std::map<std::string, std::string>& metadata) {
  const auto format = metadata.find("format");
  const auto text = metadata.find("optimizer");
  if (format == metadata.end() || format->second != kOptimizerFormat || text == metadata.end()) {
    return absl::InvalidArgumentError(
        "it has no optimizer's state: `sluice export --optimizer` and sluice.save_checkpoint write "
        "such files");
  }

  RETURN_IF_ERROR(CheckJsonText(text->second, kMaxMetadataDepth));
  const Json json = Json::parse(text->second, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("groups") || !json["groups"].is_array() ||
      !json.contains("step") || !json["step"].is_number_unsigned()) {
    return absl::InvalidArgumentError("its metadata 'optimizer' has no step or no groups");
  }

  Contents contents;
  contents.step = json["step"].get<uint64_t>();
  for (const Json& entry : json["groups"]) RETURN_IF_ERROR(ReadGroup(entry, &contents));

  for (const SafetensorsArray& array : arrays) contents.arrays[array.name] = &array;
  return contents;
}

// "3 parameters (a, b, c)"; long lists are shortened.
std::string Named(const std::vector<std::string>& names) {
  constexpr size_t kShown = 3;
  std::string text =
      absl::StrCat(names.size(), names.size() == 1 ? " parameter (" : " parameters (");
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ", names[i]);
  }
  return absl::StrCat(text, names.size() > kShown ? ", …)" : ")");
}

// Reads the state of a job's parameters from a file.
class Importer {
 public:
  Importer(const std::string& source, const ParameterGroups& groups, const Contents& contents)
      : source_(source), groups_(groups), contents_(contents) {}

  absl::StatusOr<TensorState> Read(const v1::TensorSpec& tensor);
  absl::Status CheckNoOthers(const v1::TensorTable& table) const;
  std::vector<std::string> Notes() const;

 private:
  absl::Status CheckClass(const std::string& name, const Row& row, const FileGroup& group) const;
  absl::StatusOr<SafetensorsArray> ReadSlot(const v1::TensorSpec& tensor,
                                            absl::string_view slot) const;
  void Compare(const std::string& name, const Row& row, const Spec& spec, const FileGroup& group);

  const std::string& source_;
  const ParameterGroups& groups_;
  const Contents& contents_;
  // Text of a difference -> the parameters that have it.
  std::map<std::string, std::vector<std::string>> differences_;
};

absl::Status Importer::CheckClass(const std::string& name, const Row& row,
                                  const FileGroup& group) const {
  if (group.python == row.python) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the state of '", name, "' is ", group.python, "'s, and the job's optimizer for it is ",
      row.python,
      ": give the job this optimizer, or leave the state out, so that it starts afresh"));
}

void Importer::Compare(const std::string& name, const Row& row, const Spec& spec,
                       const FileGroup& group) {
  const auto compare = [&](const char* option, const Json& mine, const char* theirs) {
    const auto found = group.options.find(theirs);
    if (found == group.options.end() || *found == mine) return;
    differences_[absl::StrCat(option, " ", mine.dump(), ", was ", found->dump(), " in ", source_)]
        .push_back(name);
  };
  // Without a schedule the job continues at its own rate, not at what a scheduler has left of it.
  const bool scheduled = spec.has_schedule() && group.options.contains("initial_lr");
  compare("lr", spec.learning_rate(), scheduled ? "initial_lr" : "lr");
  for (const Option& option : row.options) compare(option.name, option.value(spec), option.name);
}

absl::StatusOr<SafetensorsArray> Importer::ReadSlot(const v1::TensorSpec& tensor,
                                                    absl::string_view slot) const {
  const std::string name = absl::StrCat(tensor.name(), "/", slot);
  const auto found = contents_.arrays.find(name);
  if (found == contents_.arrays.end()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", name, "' is missing: the job's optimizer needs ", slot, " of each parameter"));
  }

  SafetensorsArray array = *found->second;
  array.name = std::string(slot);

  const std::vector<int64_t> shape(tensor.shape().begin(), tensor.shape().end());
  const v1::DataType dtype = ComputeDataType(tensor.dtype());
  if (array.shape != shape || array.dtype != dtype) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", name, "' is ", array.other_type.empty() ? TypeText(array.dtype) : array.other_type,
        ShapeText(array.shape), ", and should be ", TypeText(dtype), ShapeText(shape)));
  }

  const std::vector<double> values = ElementsOf(array);
  const auto bad = std::find_if(values.begin(), values.end(),
                                [](double value) { return !std::isfinite(value); });
  if (bad != values.end()) {
    return absl::InvalidArgumentError(absl::StrCat("element ", bad - values.begin(), " of '", name,
                                                   "' is ", *bad,
                                                   ": a state must have finite numbers"));
  }
  return array;
}

absl::StatusOr<TensorState> Importer::Read(const v1::TensorSpec& tensor) {
  const auto found = contents_.parameters.find(tensor.name());
  if (found == contents_.parameters.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("it has no parameter '", tensor.name(), "', which the job trains"));
  }

  const FileGroup& group = contents_.groups[found->second.group];
  const ParameterGroups::Group& mine = groups_.For(tensor.name());

  ASSIGN_OR_RETURN(const Row* const row, RowOf(mine.spec));
  RETURN_IF_ERROR(CheckClass(tensor.name(), *row, group));

  if (const auto maximize = group.options.find("maximize");
      maximize != group.options.end() && *maximize == true) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", tensor.name(), "' has maximize=True: negate the loss, and set it to False"));
  }
  Compare(tensor.name(), *row, mine.spec, group);

  TensorState state;
  state.updates = found->second.updates;
  // SGD begins its momentum with the first gradient that it gets with momentum.
  const bool begins = row->name == Spec::SGD && !mine.optimizer->slots().empty() &&
                      contents_.arrays.count(absl::StrCat(tensor.name(), "/momentum_buffer")) == 0;
  if (begins) state.updates = 0;
  state.fewest = state.updates;
  if (state.updates == 0) return state;
  for (const SlotSpec& slot : mine.optimizer->slots()) {
    ASSIGN_OR_RETURN(SafetensorsArray array, ReadSlot(tensor, slot.name));
    state.slots.push_back(std::move(array));
  }
  return state;
}

absl::Status Importer::CheckNoOthers(const v1::TensorTable& table) const {
  std::set<std::string> trained;
  for (const v1::TensorSpec& tensor : table.tensors()) {
    if (tensor.kind() == v1::PARAMETER) trained.insert(tensor.name());
  }
  for (const auto& [name, parameter] : contents_.parameters) {
    if (trained.count(name) > 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("it has the parameter '", name, "', which the job does not train"));
  }
  return absl::OkStatus();
}

std::vector<std::string> Importer::Notes() const {
  std::vector<std::string> notes;
  for (const auto& [text, names] : differences_) {
    notes.push_back(absl::StrCat(text, ": ", Named(names)));
  }
  return notes;
}

}  // namespace

absl::StatusOr<SlotsOf> SlotsOfOptimizer(const v1::OptimizerSpec& optimizer) {
  RETURN_IF_ERROR(RowOf(optimizer).status());
  ASSIGN_OR_RETURN(ParameterGroups created, ParameterGroups::Create(optimizer));
  auto groups = std::make_shared<const ParameterGroups>(std::move(created));
  return [groups](const v1::TensorSpec& tensor) {
    std::vector<Slot> slots;
    for (const SlotSpec& slot : groups->For(tensor.name()).optimizer->slots()) {
      slots.push_back({std::string(slot.name), slot.initial_value});
    }
    return slots;
  };
}

absl::StatusOr<OptimizerFile> MakeOptimizerFile(const v1::OptimizerSpec& optimizer,
                                                const v1::CheckpointIndex& checkpoint_index,
                                                std::vector<TensorState> states) {
  ASSIGN_OR_RETURN(const ParameterGroups groups, ParameterGroups::Create(optimizer));
  std::vector<Json> entries(groups.size());
  for (size_t i = 0; i < groups.size(); ++i) {
    ASSIGN_OR_RETURN(const Row* const row, RowOf(groups[i].spec));
    entries[i] = {
        {"class", row->python},
        {"options", OptionsOf(*row, groups[i].spec, RateFactor(groups[i].spec, checkpoint_index))},
        {"params", Json::array()},
        {"updates", Json::array()}};
    if (row->name == Spec::N_ADAM) entries[i]["mu_products"] = Json::array();
  }

  OptimizerFile file;
  std::vector<std::string> uneven;
  for (int i = 0; i < checkpoint_index.table().tensors_size(); ++i) {
    const v1::TensorSpec& tensor = checkpoint_index.table().tensors(i);
    if (tensor.kind() != v1::PARAMETER) continue;
    TensorState& state = states[static_cast<size_t>(i)];
    const size_t group = groups.IndexOf(tensor.name());
    Json& entry = entries[group];
    entry["params"].push_back(tensor.name());
    entry["updates"].push_back(state.updates);
    if (entry.contains("mu_products")) {
      entry["mu_products"].push_back(MuProduct(groups[group].spec, state.updates));
    }

    if (state.fewest != state.updates) uneven.push_back(tensor.name());

    for (SafetensorsArray& slot : state.slots) {
      slot.name = absl::StrCat(tensor.name(), "/", slot.name);
      file.arrays.push_back(std::move(slot));
    }
  }
  if (!uneven.empty()) {
    file.notes.push_back(absl::StrCat("parts of ", Named(uneven),
                                      " have had fewer updates than others; PyTorch has one step "
                                      "for a parameter, which is the largest"));
  }

  Json json = {{"step", checkpoint_index.checkpoint().step()}, {"groups", Json::array()}};
  for (Json& entry : entries) {
    if (!entry["params"].empty()) json["groups"].push_back(std::move(entry));
  }
  file.metadata = {{"format", kOptimizerFormat},
                   {"optimizer", json.dump(-1, ' ', false, Json::error_handler_t::replace)}};
  return file;
}

absl::StatusOr<ImportedState> ReadOptimizerFile(
    const std::string& source, const v1::OptimizerSpec& optimizer, const v1::TensorTable& table,
    const std::vector<SafetensorsArray>& arrays,
    const std::map<std::string, std::string>& metadata) {
  RETURN_IF_ERROR(RowOf(optimizer).status());
  ASSIGN_OR_RETURN(const ParameterGroups groups, ParameterGroups::Create(optimizer));
  const auto in_file = [&](const absl::Status& status) {
    return absl::InvalidArgumentError(absl::StrCat(source, ": ", status.message()));
  };
  ASSIGN_OR_RETURN(const Contents contents, ReadContents(arrays, metadata), in_file(_));
  Importer importer(source, groups, contents);
  RETURN_IF_ERROR(importer.CheckNoOthers(table), in_file(_));

  ImportedState imported;
  for (const v1::TensorSpec& tensor : table.tensors()) {
    TensorState& state = imported.states.emplace_back();
    if (tensor.kind() != v1::PARAMETER) continue;
    ASSIGN_OR_RETURN(state, importer.Read(tensor), in_file(_));
  }
  imported.step = contents.step;
  imported.notes = importer.Notes();
  return imported;
}

std::vector<std::string> OptimizerLines(const std::vector<SafetensorsArray>& arrays,
                                        const std::map<std::string, std::string>& metadata) {
  const absl::StatusOr<Contents> contents = ReadContents(arrays, metadata);
  if (!contents.ok()) return {};

  std::vector<std::string> lines = {absl::StrCat("step        ", contents->step)};
  for (size_t i = 0; i < contents->groups.size(); ++i) {
    std::vector<std::string> names;
    for (const auto& [name, parameter] : contents->parameters) {
      if (parameter.group == i) names.push_back(name);
    }

    const FileGroup& group = contents->groups[i];
    lines.push_back(absl::StrCat("group       ", group.python, ", ", Named(names)));
    lines.push_back(absl::StrCat("            ", group.options.dump()));
  }
  return lines;
}

}  // namespace sluice::cli
