#include "services/worker/models/torch_script.h"

#include <ATen/core/Tensor.h>
#include <sys/stat.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torch/version.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "services/checkpoint/state_dict_extras.h"
#include "services/common/status_macros.h"
#include "services/worker/models/model.h"
#include "services/worker/models/operator_releases.h"
#include "services/worker/models/row_lookups.h"

namespace sluice {
namespace {

// The attribute of a (sub)module that holds a tensor.
struct TensorAttribute {
  torch::jit::Module owner;
  std::string attribute;
};

struct Discovered {
  std::vector<ModelTensor> tensors;
  std::vector<TensorAttribute> places;  // of the tensors
  StateDictExtras extras;
};

bool SameMemory(const at::Tensor& a, const at::Tensor& b) {
  return a.is_alias_of(b) && a.data_ptr() == b.data_ptr() && a.sizes() == b.sizes() &&
         a.strides() == b.strides();
}

// The type's name in safetensors; empty for a type that safetensors does not have.
absl::string_view ConstantType(at::ScalarType type) {
  switch (type) {
    case at::kBool:
      return "BOOL";
    case at::kByte:
      return "U8";
    case at::kChar:
      return "I8";
    case at::kShort:
      return "I16";
    case at::kInt:
      return "I32";
    case at::kComplexFloat:
      return "C64";
    default:
      return "";
  }
}

// Adds a buffer that the model never changes; a strict load_state_dict needs it.
void AddConstant(const std::string& name, const at::Tensor& value, StateDictExtras& extras) {
  SafetensorsArray constant;
  constant.name = name;
  constant.dtype = DataTypeOfTensor(value);
  if (constant.dtype == v1::DATA_TYPE_UNSPECIFIED) {
    constant.other_type = std::string(ConstantType(value.scalar_type()));
    if (constant.other_type.empty()) return;
  }
  constant.shape.assign(value.sizes().begin(), value.sizes().end());
  const at::Tensor host = value.detach().cpu().contiguous();
  constant.bytes =
      absl::Cord(absl::string_view(static_cast<const char*>(host.data_ptr()), host.nbytes()));
  extras.constants.push_back(std::move(constant));
}

absl::Status AddTensor(const torch::jit::Module& owner, const std::string& prefix,
                       const std::string& attribute, const at::Tensor& value, bool parameter,
                       Discovered& found) {
  const std::string name = absl::StrCat(prefix, attribute);
  if (!value.defined()) return absl::OkStatus();
  if (value.numel() == 0) {
    AddConstant(name, value, found.extras);
    return absl::OkStatus();
  }
  v1::TensorKind kind = v1::BUFFER;
  if (parameter && value.requires_grad()) kind = v1::PARAMETER;
  if (!value.is_floating_point()) {
    if (attribute != "num_batches_tracked" || value.scalar_type() != at::kLong) {
      AddConstant(name, value, found.extras);
      return absl::OkStatus();
    }
    kind = v1::COUNTER;
  }
  if (DataTypeOfTensor(value) == v1::DATA_TYPE_UNSPECIFIED) {
    return absl::UnimplementedError(
        absl::StrCat("tensor '", name, "' has dtype ", c10::toString(value.scalar_type()),
                     ": should be float32, float64, bfloat16 or float16"));
  }
  for (const ModelTensor& known : found.tensors) {
    if (!SameMemory(known.value, value)) continue;
    // A tensor with two names: the second must refer to the same tensor as the first.
    torch::jit::Module(owner).setattr(attribute, known.value);
    found.extras.aliases[name] = known.name;
    return absl::OkStatus();
  }
  found.tensors.push_back({name, kind, value});
  found.places.push_back({owner, attribute});
  return absl::OkStatus();
}

// Depth first, parameters before buffers before children: the order of state_dict.
absl::Status Discover(const torch::jit::Module& module, const std::string& prefix,
                      Discovered& found) {
  for (const auto& parameter : module.named_parameters(/*recurse=*/false)) {
    RETURN_IF_ERROR(
        AddTensor(module, prefix, parameter.name, parameter.value, /*parameter=*/true, found));
  }
  for (const auto& buffer : module.named_buffers(/*recurse=*/false)) {
    RETURN_IF_ERROR(
        AddTensor(module, prefix, buffer.name, buffer.value, /*parameter=*/false, found));
  }
  for (const auto& child : module.named_children()) {
    RETURN_IF_ERROR(Discover(child.value, absl::StrCat(prefix, child.name, "."), found));
  }
  return absl::OkStatus();
}

// The arguments of forward without a default. The first argument is the module, by any name.
size_t NeededArguments(const torch::jit::Module& module) {
  const std::vector<c10::Argument>& arguments =
      module.get_method("forward").function().getSchema().arguments();
  size_t needed = 0;
  for (size_t i = 1; i < arguments.size(); ++i) {
    if (!arguments[i].default_value().has_value()) ++needed;
  }
  return needed;
}

absl::StatusOr<torch::jit::Module> Load(const std::string& path, at::Device device) {
  if (path.empty()) return absl::InvalidArgumentError("model.path is not set");
  struct stat info;
  if (stat(path.c_str(), &info) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot be read"));
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is not a file"));
  }

  try {
    torch::jit::Module module = torch::jit::load(path, device);
    if (!module.find_method("forward").has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": the module has no method 'forward'"));
    }
    if (const size_t needed = NeededArguments(module); needed > 2) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": forward takes ", needed,
                       " arguments: should be forward(input), or forward(input, target) where it "
                       "returns the loss"));
    }
    return module;
  } catch (const c10::Error& error) {
    return TorchScriptLoadError(path, error.what_without_backtrace());
  } catch (const std::exception& error) {
    return TorchScriptLoadError(path, error.what());
  }
}

class TorchScriptModel final : public Model {
 public:
  TorchScriptModel(const torch::jit::Module& module, Discovered found)
      : module_(module),
        found_(std::move(found)),
        lookups_(RowLookups::Find(module_, found_.tensors)) {
    for (const ModelTensor& tensor : found_.tensors) {
      initial_.push_back(tensor.value.detach().cpu().clone(at::MemoryFormat::Contiguous));
    }
  }

  const std::vector<ModelTensor>& tensors() const override { return found_.tensors; }

  StateDictExtras Extras() const override { return found_.extras; }

  at::Tensor Initial(size_t tensor) const override { return initial_[tensor].clone(); }

  bool TakesData() const override { return true; }

  std::vector<size_t> RowTensors() const override { return lookups_.tables(); }

  std::vector<at::Tensor> Rows(const at::Tensor& input) const override {
    return lookups_.Rows(input);
  }

  std::vector<int64_t> InputShape() const override { return {}; }

  at::Tensor Forward(const at::Tensor& input) override {
    const c10::IValue output = module_.forward({input});
    TORCH_CHECK(output.isTensor(), "forward returns ", output.tagKind(), ": should be a Tensor");
    return output.toTensor();
  }

  absl::StatusOr<LossKind> OwnLoss() const override {
    if (NeededArguments(module_) == 2) return LossKind::kForward;
    if (module_.find_method("loss").has_value()) return LossKind::kModule;
    return absl::FailedPreconditionError(
        "loss is not set, and the module does not compute one: it has no method "
        "'loss(output, target)', and its forward takes the input alone, not forward(input, "
        "target)");
  }

  at::Tensor ForwardLoss(const at::Tensor& input, const at::Tensor& target) override {
    const c10::IValue loss = module_.forward({input, target});
    TORCH_CHECK(loss.isTensor() && loss.toTensor().numel() == 1,
                "forward(input, target) should return the mean loss as a Tensor of one number");
    return loss.toTensor().reshape({});
  }

  at::Tensor ModuleLoss(const at::Tensor& output, const at::Tensor& target) override {
    const c10::IValue loss = module_.get_method("loss")({output, target});
    TORCH_CHECK(loss.isTensor() && loss.toTensor().numel() == 1,
                "loss(output, target) should return the mean loss as a Tensor of one number");
    return loss.toTensor().reshape({});
  }

  void SetTraining(bool training) override { module_.train(training); }

  at::Tensor TakeBuffer(size_t tensor) override {
    TensorAttribute& place = found_.places[tensor];
    const at::Tensor& handle = found_.tensors[tensor].value;
    at::Tensor value = place.owner.attr(place.attribute).toTensor();
    if (!value.is_same(handle)) place.owner.setattr(place.attribute, handle);
    return value;
  }

 private:
  torch::jit::Module module_;
  Discovered found_;
  const RowLookups lookups_;
  std::vector<at::Tensor> initial_;
};

absl::Status WithPath(const std::string& path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

// The word that follows `before`, if it can be an operator's name.
std::string WordAfter(absl::string_view text, absl::string_view before) {
  const size_t found = text.find(before);
  if (found == absl::string_view::npos) return "";
  text.remove_prefix(found + before.size());
  const size_t end =
      text.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_:.");
  text = text.substr(0, end);
  while (!text.empty() && (text.back() == '.' || text.back() == ':')) text.remove_suffix(1);
  return std::string(text);
}

}  // namespace

std::string LinkedTorchVersion() { return TORCH_VERSION; }

std::string FirstLine(absl::string_view what) {
  what.remove_prefix(std::min(what.find_first_not_of('\n'), what.size()));
  return std::string(what.substr(0, what.find('\n')));
}

absl::Status TorchScriptLoadError(const std::string& path, absl::string_view what) {
  std::string unknown = WordAfter(what, "Unknown builtin op: ");
  if (unknown.empty()) unknown = WordAfter(what, "Unknown operator: ");
  if (!unknown.empty()) {
    const absl::string_view release = FirstReleaseWith(unknown);
    return absl::UnimplementedError(absl::StrCat(
        path, ": uses the operator ", unknown, ", which LibTorch ", LinkedTorchVersion(),
        " (this build's) does not have; use a build with ",
        release.empty() ? "the LibTorch that saved the file"
                        : absl::StrCat("LibTorch ", release, " or later, which has it"),
        ", or write the model without it"));
  }

  if (absl::StrContains(what, "Arguments for call are not valid")) {
    const std::string op = WordAfter(what, "The following variants are available:\n  \n  ");
    return absl::UnimplementedError(
        absl::StrCat(path, ": calls the operator ", op.empty() ? "named below" : op,
                     " with arguments that LibTorch ", LinkedTorchVersion(),
                     " (this build's) does not take: ", what.substr(0, 400)));
  }

  if (absl::StrContains(what, "version") && absl::StrContains(what, "support")) {
    return absl::UnimplementedError(absl::StrCat(path, ": was saved by a LibTorch too far from ",
                                                 LinkedTorchVersion(), ": ", FirstLine(what)));
  }

  // torch.jit.save writes this record and torch.save does not.
  const bool saved_by_torch = absl::StrContains(what, "constants.pkl");
  return absl::InvalidArgumentError(absl::StrCat(
      path, ": is not a TorchScript file, as torch.jit.script(model).save(path) writes it",
      saved_by_torch ? "; it looks like torch.save of a state_dict, which has values and no model "
                     : " ",
      "(", FirstLine(what), ")"));
}

absl::StatusOr<std::unique_ptr<Model>> LoadTorchScriptModel(const std::string& path,
                                                            at::Device device) {
  ASSIGN_OR_RETURN(torch::jit::Module module, Load(path, device));
  Discovered found;
  RETURN_IF_ERROR(Discover(module, "", found), WithPath(path, _));
  bool trains = false;
  for (const ModelTensor& tensor : found.tensors) trains |= tensor.kind == v1::PARAMETER;
  if (!trains) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": the module has no parameter that requires a gradient"));
  }
  return std::make_unique<TorchScriptModel>(module, std::move(found));
}

absl::Status RewriteTorchScript(
    const std::string& source, const std::string& target,
    const std::function<absl::Status(const std::vector<TensorMemory>& tensors)>& fill) {
  ASSIGN_OR_RETURN(torch::jit::Module module, Load(source, at::kCPU));
  Discovered found;
  RETURN_IF_ERROR(Discover(module, "", found), WithPath(source, _));
  std::vector<TensorMemory> memory;
  for (ModelTensor& tensor : found.tensors) {
    tensor.value.set_data(tensor.value.detach().clone(at::MemoryFormat::Contiguous));
    memory.push_back(
        {tensor.name, static_cast<char*>(tensor.value.data_ptr()), tensor.value.nbytes()});
  }
  RETURN_IF_ERROR(fill(memory));
  const std::string unfinished = target + ".tmp";
  try {
    module.save(unfinished);
  } catch (const std::exception& error) {
    std::remove(unfinished.c_str());
    return absl::InternalError(
        absl::StrCat(target, ": cannot be written (", FirstLine(error.what()), ")"));
  }
  if (std::rename(unfinished.c_str(), target.c_str()) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat(target, ": cannot be written"));
  }
  return absl::OkStatus();
}

}  // namespace sluice
