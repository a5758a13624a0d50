#include "services/worker/models/script_method.h"

#include <torch/csrc/jit/passes/constant_propagation.h>
#include <torch/csrc/jit/passes/inliner.h>

namespace sluice {

using torch::jit::Block;
using torch::jit::Node;
using torch::jit::Value;

ScriptMethod::ScriptMethod(const torch::jit::Module& module, const std::string& name)
    : graph_(module.get_method(name).graph()->copy()) {
  torch::jit::Inline(*graph_);
  torch::jit::ConstantPropagation(graph_);
  objects_.emplace(graph_->inputs()[0], Object{"", module._ivalue()});
  Walk(graph_->block());
}

void ScriptMethod::Walk(Block* block) {
  for (Node* node : block->nodes()) {
    nodes_.push_back(node);
    const bool reads = node->kind() == c10::prim::GetAttr;
    if (reads || node->kind() == c10::prim::SetAttr) {
      const auto owner = objects_.find(node->inputs()[0]);
      if (owner == objects_.end()) continue;

      const std::string& name = node->s(c10::attr::name);
      const c10::ClassTypePtr type = owner->second.object->type();
      const size_t slot = type->getAttributeSlot(name);
      Attribute attribute{owner->second.path, name, owner->second.object->getSlot(slot),
                          type->is_parameter(slot) || type->is_buffer(slot)};

      if (!reads) {
        assigned_.emplace(node, std::move(attribute));
      } else if (attribute.value.isObject()) {
        objects_.emplace(node->output(), Object{attribute.path(), attribute.value.toObject()});
      } else {
        attributes_.emplace(node->output(), std::move(attribute));
      }
    }

    for (Block* nested : node->blocks()) Walk(nested);
  }
}

const Value* ScriptMethod::input() const {
  return graph_->inputs().size() < 2 ? nullptr : graph_->inputs()[1];
}

const ScriptMethod::Attribute* ScriptMethod::AttributeOf(const Value* value) const {
  const auto found = attributes_.find(value);
  return found == attributes_.end() ? nullptr : &found->second;
}

const ScriptMethod::Attribute* ScriptMethod::AssignedBy(const Node* node) const {
  const auto found = assigned_.find(node);
  return found == assigned_.end() ? nullptr : &found->second;
}

const Value* ScriptMethod::Argument(const Node* node, const std::string& name) {
  const c10::FunctionSchema* schema = node->maybeSchema();
  if (schema == nullptr) return nullptr;
  const auto index = schema->argumentIndexWithName(name);
  if (!index.has_value() || static_cast<size_t>(*index) >= node->inputs().size()) return nullptr;
  return node->inputs()[static_cast<size_t>(*index)];
}

}  // namespace sluice
