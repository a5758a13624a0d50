#include "services/worker/models/script_inspection.h"

#include <torch/csrc/jit/ir/constants.h>
#include <torch/version.h>

#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "services/common/status_macros.h"
#include "services/worker/models/script_method.h"

namespace sluice {
namespace {

using torch::jit::Node;
using torch::jit::Value;

constexpr int kLinked = 100 * TORCH_VERSION_MAJOR + TORCH_VERSION_MINOR;

// Operators with another gradient in PyTorch 2.15 than in older LibTorchs.
struct Difference {
  absl::string_view op;  // without "aten::" and without the "_" of its form in place
  int same_since;        // the release, like kLinked
  absl::string_view text;
};

constexpr absl::string_view kAtBound =
    "where an element equals a bound, its gradient is 1, and 0 in PyTorch 2.15";
constexpr absl::string_view kWhereEqual =
    "where both elements are equal, the first has the gradient 1, and each 1/2 in PyTorch 2.15";

constexpr Difference kDifferences[] = {
    {"clamp", 214, kAtBound},
    {"clip", 214, kAtBound},
    {"clamp_max", 214, kAtBound},
    {"clamp_min", 214, kAtBound},
    {"fmax", 215, kWhereEqual},
    {"fmin", 215, kWhereEqual},
    {"hardswish", 212, "the gradient at -3 and 3 is -0.5 and 1.5, and 0 and 1 in PyTorch 2.15"},
    {"atan2", 215, "the gradient where both arguments are 0 is NaN, and 0 in PyTorch 2.15"},
    {"arctan2", 215, "the gradient where both arguments are 0 is NaN, and 0 in PyTorch 2.15"},
    {"trace", 215, "the gradient of a matrix with more rows than columns is wrong"},
};

absl::string_view DifferenceOf(absl::string_view op) {
  if (!absl::ConsumePrefix(&op, "aten::")) return "";
  absl::ConsumeSuffix(&op, "_");
  for (const Difference& known : kDifferences) {
    if (known.op == op && kLinked < known.same_since) return known.text;
  }
  return "";
}

// "'norm1' and 3 others".
std::string Several(const std::set<std::string>& names) {
  const size_t others = names.size() - 1;
  const std::string first = absl::StrCat("'", *names.begin(), "'");
  if (others == 0) return first;
  return absl::StrCat(first, " and ", others, others == 1 ? " other" : " others");
}

std::string Linked() { return absl::StrCat("LibTorch ", TORCH_VERSION); }

class Inspector {
 public:
  Inspector(const torch::jit::Module& module, const std::vector<ModelTensor>& tensors)
      : module_(module), tensors_(tensors) {
    methods_.emplace_back(module, "forward");
    if (module.find_method("loss").has_value()) methods_.emplace_back(module, "loss");
  }

  absl::StatusOr<ScriptInspection> Run();

 private:
  // The parameter that the attribute is; null: none that is trained.
  const ModelTensor* ParameterOf(const ScriptMethod::Attribute* attribute) const;
  // A flag such as `training`, if it is a constant or follows from the modules' modes.
  std::optional<bool> FlagOf(const ScriptMethod& method, const Value* value) const;

  absl::Status CheckMaxNorm() const;
  absl::Status CheckWrites(const ScriptMethod& method) const;
  absl::Status CheckKernels(const ScriptMethod& method, const Node* node) const;
  bool IsBfloat16(const ScriptMethod& method, const Node* node) const;
  std::set<const Value*> TrainedValues(const ScriptMethod& method) const;
  void NoteModes(const ScriptMethod& method, const Node* node);
  void NoteDifference(const Node* node);
  void NoteKeptState(const ScriptMethod& method, const Node* node);
  at::ScalarType InputType() const;

  const torch::jit::Module& module_;
  const std::vector<ModelTensor>& tensors_;
  std::vector<ScriptMethod> methods_;
  std::set<std::string> noted_;
  bool off_in_training_ = false;
  std::set<std::string> always_of_batch_;  // batch norms
  std::set<std::string> kept_;             // attributes
  ScriptInspection found_;
};

const ModelTensor* Inspector::ParameterOf(const ScriptMethod::Attribute* attribute) const {
  if (attribute == nullptr || !attribute->value.isTensor()) return nullptr;
  for (const ModelTensor& tensor : tensors_) {
    if (tensor.kind == v1::PARAMETER && tensor.value.is_same(attribute->value.toTensor())) {
      return &tensor;
    }
  }
  return nullptr;
}

std::optional<bool> Inspector::FlagOf(const ScriptMethod& method, const Value* value) const {
  if (value == nullptr) return std::nullopt;
  if (const auto constant = torch::jit::toIValue(value)) {
    return constant->isBool() ? std::optional<bool>(constant->toBool()) : std::nullopt;
  }

  if (const ScriptMethod::Attribute* attribute = method.AttributeOf(value)) {
    return attribute->value.isBool() ? std::optional<bool>(attribute->value.toBool())
                                     : std::nullopt;
  }

  const Node* node = value->node();
  if (node->kind() == c10::aten::Bool) return FlagOf(method, node->input());
  if (node->kind() != c10::prim::If) return std::nullopt;

  const std::optional<bool> condition = FlagOf(method, node->input());
  if (!condition.has_value()) return std::nullopt;
  return FlagOf(method, node->blocks()[*condition ? 0 : 1]->outputs()[value->offset()]);
}

// A scripted lookup has lost its max_norm: the compiler drops the call that applies it.
absl::Status Inspector::CheckMaxNorm() const {
  for (const auto& [path, part] : module_.named_modules()) {
    for (const torch::jit::Method& method : part.get_methods()) {
      for (const Node* node : method.graph()->nodes()) {
        if (node->kind() != c10::prim::CallFunction) continue;

        const auto type = node->inputs()[0]->type()->cast<c10::FunctionType>();
        if (type == nullptr || !absl::StartsWith(type->function()->name(), "embedding")) continue;

        const auto index = type->function()->getSchema().argumentIndexWithName("max_norm");
        if (!index.has_value()) continue;

        const auto given = torch::jit::toIValue(node->inputs()[static_cast<size_t>(*index) + 1]);
        if (given.has_value() && given->isNone()) continue;

        return absl::UnimplementedError(absl::StrCat(
            path.empty() ? "a lookup" : absl::StrCat("embedding '", path, "'"),
            " has max_norm, which changes the table in each forward pass, and torch.jit.script "
            "leaves it out of the file: leave max_norm out, and limit the rows after the lookup, "
            "for example by torch.renorm(rows, 2, 0, max_norm)"));
      }
    }
  }
  return absl::OkStatus();
}

// The operator that writes to the value or to a view of it; null: none.
const Node* WriterOf(const Value* value, std::set<const Value*>* seen) {
  if (!seen->insert(value).second) return nullptr;
  for (const torch::jit::Use& use : value->uses()) {
    const Node* node = use.user;

    std::vector<const Value*> views;
    if (node->kind() == c10::prim::Return && node->owningBlock()->owningNode() != nullptr) {
      const Node* owner = node->owningBlock()->owningNode();
      if (owner->kind() == c10::prim::If) views.push_back(owner->outputs()[use.offset]);
    }

    const c10::FunctionSchema* schema = node->maybeSchema();
    if (schema != nullptr && use.offset < schema->arguments().size()) {
      const c10::AliasInfo* given = schema->arguments()[use.offset].alias_info();
      if (given == nullptr) continue;
      if (given->isWrite()) return node;
      for (size_t i = 0; i < schema->returns().size() && i < node->outputs().size(); ++i) {
        const c10::AliasInfo* result = schema->returns()[i].alias_info();
        if (result != nullptr && result->beforeSets() == given->beforeSets()) {
          views.push_back(node->outputs()[i]);
        }
      }
    }

    for (const Value* view : views) {
      if (const Node* writer = WriterOf(view, seen)) return writer;
    }
  }
  return nullptr;
}

absl::Status Inspector::CheckWrites(const ScriptMethod& method) const {
  for (const Node* node : method.nodes()) {
    if (const ModelTensor* assigned = ParameterOf(method.AssignedBy(node))) {
      return ChangedParameter(assigned->name, "an assignment");
    }

    if (node->kind() != c10::prim::GetAttr) continue;
    const ModelTensor* parameter = ParameterOf(method.AttributeOf(node->output()));
    if (parameter == nullptr) continue;

    std::set<const Value*> seen;
    const Node* writer = WriterOf(node->output(), &seen);
    if (writer == nullptr) continue;
    return ChangedParameter(parameter->name,
                            absl::StrCat("the operator ", writer->kind().toQualString()));
  }
  return absl::OkStatus();
}

// Whether the layer computes in bfloat16: by its weight or, if that is not an attribute, by any
// tensor of the module.
bool Inspector::IsBfloat16(const ScriptMethod& method, const Node* node) const {
  const ScriptMethod::Attribute* weight =
      method.AttributeOf(ScriptMethod::Argument(node, "weight"));
  if (weight != nullptr && weight->value.isTensor() && weight->value.toTensor().defined()) {
    return weight->value.toTensor().scalar_type() == at::kBFloat16;
  }
  return absl::c_any_of(tensors_, [](const ModelTensor& tensor) {
    return tensor.value.scalar_type() == at::kBFloat16;
  });
}

bool IsTransposedConvolution(const Node* node) {
  const std::string op = node->kind().toQualString();
  if (absl::StartsWith(op, "aten::conv_transpose")) return true;
  if (op != "aten::_convolution" && op != "aten::convolution") return false;
  const auto transposed = torch::jit::constant_as<bool>(ScriptMethod::Argument(node, "transposed"));
  return transposed.value_or(false);
}

// A layer norm over one or two numbers.
bool IsSmallLayerNorm(const Node* node) {
  const std::string op = node->kind().toQualString();
  if (op != "aten::layer_norm" && op != "aten::native_layer_norm") return false;
  const Value* shape = ScriptMethod::Argument(node, "normalized_shape");
  const auto sizes = shape == nullptr ? c10::nullopt : torch::jit::toIValue(shape);
  if (!sizes.has_value() || !sizes->isIntList()) return false;
  int64_t numbers = 1;
  for (int64_t size : sizes->toIntVector()) numbers *= size;
  return numbers <= 2;
}

absl::Status Inspector::CheckKernels(const ScriptMethod& method, const Node* node) const {
  if (kLinked >= 200) return absl::OkStatus();

  const bool transposed = IsTransposedConvolution(node);
  if (!transposed && !IsSmallLayerNorm(node)) return absl::OkStatus();
  if (!IsBfloat16(method, node)) return absl::OkStatus();

  const ScriptMethod::Attribute* weight =
      method.AttributeOf(ScriptMethod::Argument(node, "weight"));
  const std::string layer = weight == nullptr || weight->owner.empty()
                                ? std::string(node->kind().toQualString())
                                : absl::StrCat("layer '", weight->owner, "'");

  return absl::UnimplementedError(absl::StrCat(
      layer,
      transposed ? " is a transposed convolution in bfloat16, in whose place "
                 : " normalizes one "
                   "or two numbers in bfloat16, of which ",
      Linked(), transposed ? " computes an ordinary convolution" : " computes other numbers",
      ": use float32 for it, or a build with LibTorch 2 or later"));
}

void Inspector::NoteModes(const ScriptMethod& method, const Node* node) {
  const std::string op = node->kind().toQualString();
  const bool norm = op == "aten::batch_norm" || op == "aten::native_batch_norm";
  const bool dropout = absl::StrContains(op, "dropout");
  const bool recurrent =
      op == "aten::lstm" || op == "aten::gru" || absl::StartsWith(op, "aten::rnn_");
  if (!norm && !dropout && !recurrent) return;
  if (!norm) {
    const Value* rate = ScriptMethod::Argument(node, dropout ? "p" : "dropout");
    const auto constant = rate == nullptr ? c10::nullopt : torch::jit::toIValue(rate);
    if (constant.has_value() && constant->isDouble() && constant->toDouble() == 0) return;
  }

  const Value* flag = ScriptMethod::Argument(node, norm ? "training" : "train");
  const std::optional<bool> training = FlagOf(method, flag);
  if (training == false) off_in_training_ = true;
  if (training != true) return;
  const bool constant = torch::jit::toIValue(flag).has_value();
  if (!norm) {
    if (constant) {
      noted_.insert(
          "Dropout stays on in evaluations: the file has its mode as a constant, as a module has "
          "that was traced in training mode (torch.jit.script keeps both modes).");
    }
    return;
  }

  const Value* statistics = ScriptMethod::Argument(node, "running_mean");
  const ScriptMethod::Attribute* mean = method.AttributeOf(statistics);

  if (found_.batch_norm.empty()) {
    const ScriptMethod::Attribute* named =
        mean != nullptr ? mean : method.AttributeOf(ScriptMethod::Argument(node, "weight"));
    found_.batch_norm = named == nullptr || named->owner.empty() ? "batch_norm" : named->owner;
  }
  if (constant && mean != nullptr) {
    always_of_batch_.insert(mean->owner);
  }
}

// Notes state that a pass leaves to the next one outside of the state_dict.
void Inspector::NoteKeptState(const ScriptMethod& method, const Node* node) {
  const ScriptMethod::Attribute* attribute = method.AssignedBy(node);
  if (attribute == nullptr && node->kind() == c10::prim::GetAttr) {
    std::set<const Value*> seen;
    attribute = method.AttributeOf(node->output());
    if (WriterOf(node->output(), &seen) == nullptr) return;
  }
  if (attribute != nullptr && !attribute->saved) kept_.insert(attribute->path());
}

void Inspector::NoteDifference(const Node* node) {
  const std::string op = node->kind().toQualString();
  const absl::string_view difference = DifferenceOf(op);
  if (difference.empty()) return;
  noted_.insert(absl::StrCat("The model uses ", op, ", whose results differ in ", Linked(), ": ",
                             difference, "."));
}

bool NoneTrains(const torch::jit::Module& module) {
  for (const torch::jit::Module& part : module.modules()) {
    if (part.is_training()) return false;
  }
  return true;
}

// The values that depend on a trained parameter, as far as the operators show it. Those of a branch
// or loop count together.
std::set<const Value*> Inspector::TrainedValues(const ScriptMethod& method) const {
  std::set<const Value*> trained;
  const auto is_trained = [&](const Value* value) { return trained.count(value) > 0; };
  // A loop gives values back to its beginning.
  size_t before = 0;
  do {
    before = trained.size();
    for (const Node* node : method.nodes()) {
      const ScriptMethod::Attribute* attribute =
          node->kind() == c10::prim::GetAttr ? method.AttributeOf(node->output()) : nullptr;
      bool any = ParameterOf(attribute) != nullptr ||
                 (attribute != nullptr && attribute->value.isTensorList());
      if (node->kind() != c10::aten::detach) any |= absl::c_any_of(node->inputs(), is_trained);

      for (const torch::jit::Block* block : node->blocks()) {
        any |= absl::c_any_of(block->outputs(), is_trained);
        if (any) trained.insert(block->inputs().begin(), block->inputs().end());
      }
      if (any) trained.insert(node->outputs().begin(), node->outputs().end());
    }
  } while (trained.size() != before);
  return trained;
}

absl::Status CheckGradient(const Node* node) {
  const std::string op = node->kind().toQualString();
  if (kLinked >= 215 || !absl::StrContains(op, "bessel_")) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(
      "uses the operator ", op, " on what depends on parameters, and ", Linked(),
      " has no gradient of it: write it as a series, or use a build with LibTorch 2.15 or later"));
}

// The weight with which an operator multiplies its argument `offset`; null: it does something else.
const Value* FactorOf(const Node* node, size_t offset) {
  static const auto* const kWeights =
      new std::map<std::string, const char*>{{"aten::linear", "weight"},
                                             {"aten::conv1d", "weight"},
                                             {"aten::conv2d", "weight"},
                                             {"aten::conv3d", "weight"},
                                             {"aten::conv_transpose1d", "weight"},
                                             {"aten::conv_transpose2d", "weight"},
                                             {"aten::conv_transpose3d", "weight"},
                                             {"aten::_convolution", "weight"},
                                             {"aten::mm", "mat2"},
                                             {"aten::matmul", "other"},
                                             {"aten::lstm", "params"},
                                             {"aten::gru", "params"},
                                             {"aten::rnn_tanh", "params"},
                                             {"aten::rnn_relu", "params"}};
  const auto known = kWeights->find(node->kind().toQualString());
  return known == kWeights->end() || offset != 0 ? nullptr
                                                 : ScriptMethod::Argument(node, known->second);
}

// Collects the types of the weights by which the value, in any shape, is multiplied. False if it is
// used in another way.
bool CollectFactors(const ScriptMethod& method, const Value* value,
                    std::set<at::ScalarType>* types) {
  static const auto* const kSameNumbers = new std::set<std::string>{
      "aten::view",    "aten::reshape", "aten::flatten",   "aten::transpose",  "aten::permute",
      "aten::squeeze", "aten::t",       "aten::unsqueeze", "aten::contiguous", "aten::unflatten"};
  static const auto* const kReadsShape = new std::set<std::string>{
      "aten::size", "aten::dim", "aten::len", "aten::numel", "prim::device", "prim::dtype"};

  for (const torch::jit::Use& use : value->uses()) {
    const Node* node = use.user;
    const std::string op = node->kind().toQualString();
    if (kReadsShape->count(op) > 0) continue;

    const Value* next = nullptr;
    if (node->kind() == c10::prim::Return && node->owningBlock()->owningNode() != nullptr) {
      const Node* owner = node->owningBlock()->owningNode();
      if (owner->kind() == c10::prim::If) next = owner->outputs()[use.offset];
    } else if (use.offset == 0 && kSameNumbers->count(op) > 0) {
      next = node->output();
    }

    if (next != nullptr) {
      if (!CollectFactors(method, next, types)) return false;
      continue;
    }

    const Value* factor = FactorOf(node, use.offset);
    while (factor != nullptr && factor->node()->kind() == c10::aten::t) {
      factor = factor->node()->input();
    }
    const ScriptMethod::Attribute* weight =
        factor == nullptr ? nullptr : method.AttributeOf(factor);
    if (factor != nullptr && weight == nullptr &&
        factor->node()->kind() == c10::prim::ListConstruct && !factor->node()->inputs().empty()) {
      weight = method.AttributeOf(factor->node()->inputs()[0]);
    }
    if (weight == nullptr) return false;

    const c10::IValue& given = weight->value;
    if (given.isTensor()) {
      types->insert(given.toTensor().scalar_type());
    } else if (given.isTensorList() && !given.toTensorList().empty()) {
      types->insert(given.toTensorVector()[0].scalar_type());
    } else {
      return false;
    }
  }
  return true;
}

at::ScalarType Inspector::InputType() const {
  std::set<at::ScalarType> types;
  const Value* input = methods_[0].input();
  if (input == nullptr || !CollectFactors(methods_[0], input, &types)) return at::kFloat;
  const bool one = types.size() == 1 && c10::isFloatingType(*types.begin());
  return one ? *types.begin() : at::kFloat;
}

absl::StatusOr<ScriptInspection> Inspector::Run() {
  RETURN_IF_ERROR(CheckMaxNorm());
  for (const ScriptMethod& method : methods_) {
    RETURN_IF_ERROR(CheckWrites(method));
    const std::set<const Value*> trained = TrainedValues(method);
    for (const Node* node : method.nodes()) {
      RETURN_IF_ERROR(CheckKernels(method, node));
      NoteModes(method, node);
      NoteKeptState(method, node);
      if (node->inputs().empty() || trained.count(node->inputs()[0]) == 0) continue;
      RETURN_IF_ERROR(CheckGradient(node));
      NoteDifference(node);
    }
  }

  if (!kept_.empty()) {
    noted_.insert(absl::StrCat("forward keeps ", Several(kept_),
                               " from one pass to the next, which is neither a parameter nor a "
                               "buffer: each worker has its "
                               "own, and checkpoints do not have it."));
  }

  if (off_in_training_ && NoneTrains(module_)) {
    noted_.insert(
        "The module was saved in evaluation mode and is trained in it, without dropout and with "
        "the file's statistics of batch norm: call train() before torch.jit.script or "
        "torch.jit.trace if that is not meant.");
  }

  if (!always_of_batch_.empty()) {
    noted_.insert(absl::StrCat(
        "Batch norm ", Several(always_of_batch_),
        " uses the statistics of the batch in evaluations too: the file has its mode as a "
        "constant, "
        "as a module has that was traced in training mode (torch.jit.script keeps both modes)."));
  }

  found_.notes.assign(noted_.begin(), noted_.end());
  found_.input_type = InputType();
  return std::move(found_);
}

}  // namespace

WrittenTensors FindWrites(const torch::jit::Module& module) {
  const ScriptMethod method(module, "forward");
  WrittenTensors written;
  for (const Node* node : method.nodes()) {
    written.all |= node->kind() == c10::prim::CallMethod || node->kind() == c10::prim::CallFunction;

    const ScriptMethod::Attribute* attribute = method.AssignedBy(node);
    if (attribute == nullptr && node->kind() == c10::prim::GetAttr) {
      attribute = method.AttributeOf(node->output());
      std::set<const Value*> seen;
      if (WriterOf(node->output(), &seen) == nullptr) continue;
    }

    if (attribute == nullptr || !attribute->value.isTensor()) continue;
    written.some.insert(attribute->value.toTensor().unsafeGetTensorImpl());
  }
  return written;
}

absl::Status ChangedParameter(const std::string& parameter, const std::string& by) {
  return absl::FailedPreconditionError(
      absl::StrCat("parameter '", parameter, "' is changed by ", by,
                   ", and only the optimizer's changes of a parameter are kept: compute with a "
                   "changed copy of it instead, for example self.w.clamp(-1, 1) in place of "
                   "self.w.clamp_(-1, 1), and without max_norm"));
}

absl::StatusOr<ScriptInspection> InspectScript(const torch::jit::Module& module,
                                               const std::vector<ModelTensor>& tensors) {
  return Inspector(module, tensors).Run();
}

}  // namespace sluice
