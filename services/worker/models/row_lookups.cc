#include "services/worker/models/row_lookups.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <torch/csrc/jit/ir/alias_analysis.h>
#include <torch/csrc/jit/passes/constant_propagation.h>
#include <torch/csrc/jit/passes/inliner.h>

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "absl/algorithm/container.h"

namespace sluice {
namespace {

using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;

// Whether the node reads only properties of a tensor, not its content.
bool ReadsShapeOnly(const Node& node) {
  static const auto* const kKinds = new std::unordered_set<c10::Symbol>{
      c10::aten::size, c10::aten::dim, c10::aten::len, c10::prim::dtype, c10::prim::device};
  return kKinds->count(node.kind()) > 0;
}

// A method of a module with all its calls, and its uses of the module's tensors.
class Method {
 public:
  // `tensors` are the module's, and must outlive it.
  Method(const torch::jit::Module& module, const std::string& name,
         const std::vector<ModelTensor>& tensors)
      : tensors_(tensors), graph_(module.get_method(name).graph()->copy()) {
    torch::jit::Inline(*graph_);
    torch::jit::ConstantPropagation(graph_);
    objects_.emplace(graph_->inputs()[0], module._ivalue());
    Walk(graph_->block(), /*nested=*/false);
    aliases_ = std::make_unique<torch::jit::AliasDb>(graph_);
  }

  // Whether the module, or a part of it, is passed to code outside the graph.
  bool opaque() const { return opaque_; }

  // Whether more of the tensor at this place is read than looked-up rows.
  bool ReadsWhole(size_t tensor) const { return read_whole_.count(tensor) > 0; }

  // Whether the tensor is read at all.
  bool Reads(size_t tensor) const { return ReadsWhole(tensor) || lookups_.count(tensor) > 0; }

  // The values by which a tensor's rows are looked up.
  std::vector<Value*> IndicesOf(size_t tensor) const {
    const auto found = lookups_.find(tensor);
    return found == lookups_.end() ? std::vector<Value*>() : found->second;
  }

  // Whether the value is a function of the method's only argument. Follows it to the argument.
  bool IsOfArgument(Value* value) { return graph_->inputs().size() == 2 && Follow(value); }

  // A graph that computes these values from the argument; for each IsOfArgument() must hold.
  std::shared_ptr<Graph> Cut(const std::vector<Value*>& values) const;

 private:
  struct Attribute {
    std::string name;
    c10::IValue value;
  };

  void Walk(Block* block, bool nested);
  void Visit(Node* node, bool nested);
  // True if the node reads an attribute of the module.
  bool TakeAttribute(Node* node);
  bool Follow(Value* value);

  const std::vector<ModelTensor>& tensors_;
  std::shared_ptr<Graph> graph_;
  std::unique_ptr<torch::jit::AliasDb> aliases_;
  std::unordered_map<const Value*, c10::intrusive_ptr<c10::ivalue::Object>> objects_;
  std::unordered_map<const Value*, size_t> own_tensors_;
  std::unordered_map<const Value*, Attribute> attributes_;  // all others
  std::set<std::string> assigned_;                          // names of attributes
  std::set<size_t> read_whole_;
  std::map<size_t, std::vector<Value*>> lookups_;
  bool opaque_ = false;
  std::unordered_set<const Node*> followed_;
};

bool Method::TakeAttribute(Node* node) {
  if (node->kind() != c10::prim::GetAttr) return false;
  const auto owner = objects_.find(node->input());
  if (owner == objects_.end()) return false;

  const std::string& name = node->s(c10::attr::name);
  const c10::IValue value = owner->second->getAttr(name);
  if (value.isObject()) {
    objects_.emplace(node->output(), value.toObject());
    return true;
  }

  for (size_t i = 0; value.isTensor() && i < tensors_.size(); ++i) {
    if (!tensors_[i].value.is_same(value.toTensor())) continue;
    own_tensors_.emplace(node->output(), i);
    return true;
  }
  attributes_.emplace(node->output(), Attribute{name, value});
  return true;
}

void Method::Visit(Node* node, bool nested) {
  if (TakeAttribute(node)) return;
  const bool assigns = node->kind() == c10::prim::SetAttr;
  if (assigns) assigned_.insert(node->s(c10::attr::name));

  for (size_t i = 0; i < node->inputs().size(); ++i) {
    Value* const input = node->inputs()[i];
    if (objects_.count(input) > 0 && !(assigns && i == 0)) opaque_ = true;

    const auto own = own_tensors_.find(input);
    if (own == own_tensors_.end() || ReadsShapeOnly(*node)) continue;
    if (!nested && node->kind() == c10::aten::embedding && i == 0) {
      lookups_[own->second].push_back(node->inputs()[1]);
    } else {
      read_whole_.insert(own->second);
    }
  }

  for (Block* block : node->blocks()) Walk(block, /*nested=*/true);
}

void Method::Walk(Block* block, bool nested) {
  for (Node* node : block->nodes()) Visit(node, nested);
  Visit(block->return_node(), nested);
}

bool Method::Follow(Value* value) {
  if (aliases_->hasWriters(value)) return false;
  if (value == graph_->inputs()[1]) return true;

  const auto attribute = attributes_.find(value);
  if (attribute != attributes_.end()) {
    // Dropout and the like are off while the model is evaluated.
    const std::string& name = attribute->second.name;
    return name != "training" && assigned_.count(name) == 0;
  }

  Node* const node = value->node();
  if (followed_.count(node) > 0) return true;
  const c10::Symbol kind = node->kind();
  const bool elsewhere = kind == c10::prim::Param || kind == c10::prim::CallMethod ||
                         kind == c10::prim::CallFunction || kind == c10::prim::GetAttr;
  if (elsewhere || !node->blocks().empty() || node->isNondeterministic()) return false;
  if (!absl::c_all_of(node->inputs(), [this](Value* input) { return Follow(input); })) return false;
  followed_.insert(node);
  return true;
}

std::shared_ptr<Graph> Method::Cut(const std::vector<Value*>& values) const {
  auto cut = std::make_shared<Graph>();
  std::unordered_map<const Value*, Value*> made;
  made[graph_->inputs()[1]] = cut->addInput();

  const auto find = [&](Value* value) {
    const auto known = made.find(value);
    if (known != made.end()) return known->second;
    return made[value] = cut->insertConstant(attributes_.at(value).value);
  };

  for (Node* node : graph_->nodes()) {
    if (followed_.count(node) == 0) continue;
    Node* const clone = cut->appendNode(cut->createClone(node, find));
    for (size_t i = 0; i < node->outputs().size(); ++i) {
      made[node->outputs()[i]] = clone->outputs()[i];
    }
  }
  for (Value* value : values) cut->registerOutput(find(value));
  return cut;
}

bool IsTable(const ModelTensor& tensor) {
  return tensor.kind == v1::PARAMETER && tensor.value.dim() == 2;
}

}  // namespace

RowLookups RowLookups::Find(const torch::jit::Module& module,
                            const std::vector<ModelTensor>& tensors) {
  RowLookups found;
  Method forward(module, "forward", tensors);
  if (forward.opaque()) return found;

  std::optional<Method> loss;
  if (module.find_method("loss").has_value()) loss.emplace(module, "loss", tensors);
  if (loss && loss->opaque()) return found;

  std::vector<Value*> indices;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!IsTable(tensors[i]) || forward.ReadsWhole(i) || (loss && loss->Reads(i))) continue;

    const std::vector<Value*> by = forward.IndicesOf(i);
    const bool of_argument =
        absl::c_all_of(by, [&](Value* value) { return forward.IsOfArgument(value); });
    if (by.empty() || !of_argument) continue;

    found.table_of_output_.insert(found.table_of_output_.end(), by.size(), found.tables_.size());
    found.tables_.push_back(i);
    indices.insert(indices.end(), by.begin(), by.end());
  }

  if (!indices.empty()) found.code_ = torch::jit::Code(forward.Cut(indices), "rows");
  return found;
}

std::vector<at::Tensor> RowLookups::Rows(const at::Tensor& input) const {
  if (tables_.empty()) return {};

  const at::NoGradGuard no_grad;
  torch::jit::Stack stack = {input};
  torch::jit::InterpreterState(code_).run(stack);

  std::vector<std::vector<at::Tensor>> parts(tables_.size());
  for (size_t i = 0; i < stack.size(); ++i) {
    parts[table_of_output_[i]].push_back(stack[i].toTensor().to(at::kLong).reshape({-1}));
  }

  std::vector<at::Tensor> rows;
  rows.reserve(parts.size());
  for (const std::vector<at::Tensor>& part : parts) rows.push_back(at::cat(part));
  return rows;
}

}  // namespace sluice
