// The code of a method of a TorchScript module in one graph, and the attributes of the module that
// its values are.
#ifndef SLUICE_SERVICES_WORKER_MODELS_SCRIPT_METHOD_H_
#define SLUICE_SERVICES_WORKER_MODELS_SCRIPT_METHOD_H_

#include <ATen/core/ivalue.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/ir.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace sluice {

class ScriptMethod {
 public:
  struct Attribute {
    std::string owner;  // the submodule's path, "layers.0"; empty: the module itself
    std::string name;   // "weight"
    c10::IValue value;
    bool saved = false;  // a parameter or buffer: in the state_dict

    std::string path() const { return owner.empty() ? name : owner + "." + name; }
  };

  // A copy of the method with all its calls and with its constant branches resolved.
  ScriptMethod(const torch::jit::Module& module, const std::string& name);

  // All of them, nested blocks included.
  const std::vector<torch::jit::Node*>& nodes() const { return nodes_; }

  // The first argument after the module; null if there is none.
  const torch::jit::Value* input() const;

  // The attribute that the value is; null if it is something else, or cannot be followed.
  const Attribute* AttributeOf(const torch::jit::Value* value) const;

  // The attribute that a node of kind prim::SetAttr assigns, with its value before; likewise.
  const Attribute* AssignedBy(const torch::jit::Node* node) const;

  // The argument of the node's operator by this name; null if there is none.
  static const torch::jit::Value* Argument(const torch::jit::Node* node, const std::string& name);

 private:
  // An object that a value is known to be, and its place in the module.
  struct Object {
    std::string path;
    c10::intrusive_ptr<c10::ivalue::Object> object;
  };

  // Collects the nodes and attributes of the block and of those nested in it.
  void Walk(torch::jit::Block* block);

  std::shared_ptr<torch::jit::Graph> graph_;
  std::vector<torch::jit::Node*> nodes_;
  std::unordered_map<const torch::jit::Value*, Object> objects_;
  std::unordered_map<const torch::jit::Value*, Attribute> attributes_;
  std::unordered_map<const torch::jit::Node*, Attribute> assigned_;
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_WORKER_MODELS_SCRIPT_METHOD_H_
