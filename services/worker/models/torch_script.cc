#include "services/worker/models/torch_script.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <sys/stat.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>

#include <cerrno>
#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "services/checkpoint/state_dict_extras.h"
#include "services/common/status_macros.h"
#include "services/worker/models/model.h"
#include "services/worker/models/row_lookups.h"
#include "services/worker/models/script_inspection.h"

namespace sluice {
namespace {

// The attribute of a (sub)module that holds a tensor.
struct TensorAttribute {
  torch::jit::Module owner;
  std::string attribute;
};

// A tensor that the model never changes.
struct Constant {
  TensorAttribute place;
  at::Tensor value;
  uint32_t version = 0;  // LibTorch's count of changes in place
  // Whether the code passes it to an operator that may change it. Some operators (the observers of
  // quantization) do not raise the version.
  bool written = false;
};

struct Discovered {
  explicit Discovered(const torch::jit::Module& module) : written(FindWrites(module)) {}

  const WrittenTensors written;
  std::vector<ModelTensor> tensors;
  std::vector<TensorAttribute> places;  // of the tensors
  StateDictExtras extras;
  std::vector<Constant> constants;  // of the extras
};

bool SameMemory(const at::Tensor& a, const at::Tensor& b) {
  return a.is_alias_of(b) && a.data_ptr() == b.data_ptr() && a.sizes() == b.sizes() &&
         a.strides() == b.strides() && a.scalar_type() == b.scalar_type();
}

// The first byte of the tensor in its storage, and the one after its last.
std::pair<int64_t, int64_t> Extent(const at::Tensor& tensor) {
  const int64_t first = tensor.storage_offset();
  int64_t last = first;
  for (int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
  const auto bytes = static_cast<int64_t>(tensor.element_size());
  return {first * bytes, (last + 1) * bytes};
}

// Whether an element of one is an element of the other.
bool Overlap(const at::Tensor& a, const at::Tensor& b) {
  if (!a.is_alias_of(b)) return false;
  const auto [a_begin, a_end] = Extent(a);
  const auto [b_begin, b_end] = Extent(b);
  if (a_end <= b_begin || b_end <= a_begin) return false;
  if (a.element_size() != b.element_size()) return true;
  const auto elements = static_cast<int64_t>(a.storage().nbytes() / a.element_size());
  const at::Tensor marks = at::zeros({elements}, at::kByte);
  marks.as_strided(a.sizes(), a.strides(), a.storage_offset()).fill_(1);
  return marks.as_strided(b.sizes(), b.strides(), b.storage_offset()).any().item<bool>();
}

// The type's name in Python.
std::string TypeName(at::ScalarType type) {
  switch (type) {
    case at::kComplexHalf:
      return "complex32";
    case at::kComplexFloat:
      return "complex64";
    case at::kComplexDouble:
      return "complex128";
    case at::kLong:
      return "int64";
    case at::kInt:
      return "int32";
    case at::kFloat:
      return "float32";
    default:
      return absl::AsciiStrToLower(c10::toString(type));
  }
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

absl::Cord Bytes(const at::Tensor& value) {
  const at::Tensor host = value.detach().cpu().contiguous();
  return absl::Cord(absl::string_view(static_cast<const char*>(host.data_ptr()), host.nbytes()));
}

// Adds a buffer that the model never changes; a strict load_state_dict needs it.
absl::Status AddConstant(const std::string& name, const TensorAttribute& place,
                         const at::Tensor& value, Discovered& found) {
  SafetensorsArray constant;
  constant.name = name;
  constant.dtype = DataTypeOfTensor(value);
  if (constant.dtype == v1::DATA_TYPE_UNSPECIFIED) {
    constant.other_type = std::string(ConstantType(value.scalar_type()));
    if (constant.other_type.empty()) {
      return absl::UnimplementedError(
          absl::StrCat("tensor '", name, "' is ", TypeName(value.scalar_type()),
                       ", which checkpoints cannot keep; ",
                       value.is_complex()
                           ? "use complex64, or torch.view_as_real of it, or compute it in forward"
                           : "use another type, or compute it in forward"));
    }
  }

  constant.shape.assign(value.sizes().begin(), value.sizes().end());
  constant.bytes = Bytes(value);
  found.extras.constants.push_back(std::move(constant));
  found.constants.push_back(
      {place, value, static_cast<uint32_t>(value._version()), found.written.contains(value)});
  return absl::OkStatus();
}

// Whether a tensor with another name is this one, and must not be found twice. Unimplemented if
// it is a part or another view of this one: training would tear them apart.
absl::StatusOr<bool> IsTied(const ModelTensor& known, const std::string& name,
                            const at::Tensor& value) {
  if (SameMemory(known.value, value)) return true;
  if (!Overlap(known.value, value)) return false;
  return absl::UnimplementedError(
      absl::StrCat("tensors '", known.name, "' and '", name,
                   "' share memory and are not the same view of it, so they would be trained as "
                   "two; keep '",
                   known.name,
                   "' only and compute the other in forward, such as "
                   "self.weight.t()"));
}

// The tensor kind of an attribute; nullopt: a constant.
absl::StatusOr<absl::optional<v1::TensorKind>> KindOf(const TensorAttribute& place,
                                                      const std::string& name,
                                                      const at::Tensor& value, bool parameter,
                                                      const WrittenTensors& written) {
  if (value.layout() != at::kStrided || value.is_quantized()) {
    return absl::UnimplementedError(
        absl::StrCat("tensor '", name, "' is ", value.is_quantized() ? "quantized" : "sparse",
                     ", which checkpoints cannot keep; use a dense tensor of numbers"));
  }
  if (value.numel() == 0) return absl::optional<v1::TensorKind>();

  const bool trained = parameter && value.requires_grad();
  if (value.is_floating_point()) {
    if (DataTypeOfTensor(value) == v1::DATA_TYPE_UNSPECIFIED) {
      return absl::UnimplementedError(
          absl::StrCat("tensor '", name, "' has dtype ", c10::toString(value.scalar_type()),
                       ": should be float32, float64, bfloat16 or float16"));
    }
    return absl::make_optional(trained ? v1::PARAMETER : v1::BUFFER);
  }
  if (trained) {
    return absl::UnimplementedError(
        absl::StrCat("tensor '", name, "' is ", TypeName(value.scalar_type()),
                     ", which cannot be trained; use float32, float64, bfloat16 or float16",
                     value.is_complex() ? ": keep torch.view_as_real of it as the parameter, and "
                                          "take torch.view_as_complex in forward"
                                        : ""));
  }

  // A batch norm in evaluation mode does not count, and an instance norm never does.
  const bool counts = place.attribute == "num_batches_tracked" &&
                      value.scalar_type() == at::kLong && place.owner.is_training() &&
                      written.contains(value);
  return counts ? absl::make_optional(v1::COUNTER) : absl::optional<v1::TensorKind>();
}

absl::Status AddTensor(const torch::jit::Module& owner, const std::string& prefix,
                       const std::string& attribute, const at::Tensor& value, bool parameter,
                       Discovered& found) {
  if (!value.defined()) return absl::OkStatus();
  const std::string name = absl::StrCat(prefix, attribute);
  const TensorAttribute place{owner, attribute};
  ASSIGN_OR_RETURN(const absl::optional<v1::TensorKind> kind,
                   KindOf(place, name, value, parameter, found.written));
  if (!kind.has_value()) return AddConstant(name, place, value, found);

  for (const ModelTensor& known : found.tensors) {
    ASSIGN_OR_RETURN(const bool tied, IsTied(known, name, value));
    if (!tied) continue;
    // A tensor with two names: the second must refer to the same tensor as the first.
    torch::jit::Module(owner).setattr(attribute, known.value);
    found.extras.aliases[name] = known.name;
    return absl::OkStatus();
  }

  found.tensors.push_back({name, *kind, value});
  found.places.push_back(place);
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

// The attributes `training` of the modules that are in training mode.
struct ModeAttribute {
  c10::intrusive_ptr<c10::ivalue::Object> owner;
  size_t slot = 0;
};

std::vector<ModeAttribute> ModesOf(const torch::jit::Module& module) {
  std::vector<ModeAttribute> modes;
  for (const torch::jit::Module& part : module.modules()) {
    const auto slot = part.type()->findAttributeSlot("training");
    if (slot.has_value() && part.is_training()) modes.push_back({part._ivalue(), *slot});
  }
  return modes;
}

// A file keeps buffers that are not persistent like all others. Batch norm's are persistent.
void NotePersistence(const Discovered& found, std::vector<std::string>& notes) {
  std::vector<std::string> names;
  const auto add = [&](const std::string& name, const std::string& attribute) {
    const bool of_norm = attribute == "running_mean" || attribute == "running_var" ||
                         attribute == "num_batches_tracked";
    if (!of_norm) names.push_back(absl::StrCat("'", name, "'"));
  };

  for (size_t i = 0; i < found.tensors.size(); ++i) {
    const ModelTensor& tensor = found.tensors[i];
    if (tensor.kind != v1::BUFFER) continue;
    const TensorAttribute& place = found.places[i];
    const auto slot = place.owner.type()->findAttributeSlot(place.attribute);
    if (slot.has_value() && !place.owner.type()->is_parameter(*slot)) {
      add(tensor.name, place.attribute);
    }
  }

  for (size_t i = 0; i < found.constants.size(); ++i) {
    add(found.extras.constants[i].name, found.constants[i].place.attribute);
  }

  if (names.empty()) return;
  const size_t others = names.size() - 1;
  notes.push_back(absl::StrCat(
      "A TorchScript file does not tell which buffers are persistent, so results contain ",
      names[0],
      others == 0 ? "" : absl::StrCat(" and ", others, others == 1 ? " other" : " others"),
      ": if the module registers buffers with persistent=False, call load_state_dict(..., "
      "strict=False)."));
}

class TorchScriptModel final : public Model {
 public:
  TorchScriptModel(const torch::jit::Module& module, Discovered found, ScriptInspection inspection)
      : module_(module),
        found_(std::move(found)),
        inspection_(std::move(inspection)),
        modes_(ModesOf(module_)),
        lookups_(RowLookups::Find(module_, found_.tensors)) {
    for (const ModelTensor& tensor : found_.tensors) {
      initial_.push_back(tensor.value.detach().cpu().clone(at::MemoryFormat::Contiguous));
      versions_.push_back(static_cast<uint32_t>(tensor.value._version()));
    }
    NotePersistence(found_, inspection_.notes);
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

  at::ScalarType InputType() const override { return inspection_.input_type; }

  std::vector<std::string> Notes() const override { return inspection_.notes; }

  std::string NeedsTwoSamples(const at::Tensor& sample) const override;

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

  void SetTraining(bool training) override {
    for (const ModeAttribute& mode : modes_) mode.owner->setSlot(mode.slot, training);
  }

  absl::Status CheckUnchanged() override;

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
  ScriptInspection inspection_;
  const std::vector<ModeAttribute> modes_;
  const RowLookups lookups_;
  std::vector<at::Tensor> initial_;
  std::vector<uint32_t> versions_;  // of the tensors, as the file has them
};

// Batch norm needs two numbers of each channel, which one image may have. So a copy of the module,
// with its code, tries. Of one number, a scripted layer fails, and a traced one stores a variance
// of NaN.
std::string TorchScriptModel::NeedsTwoSamples(const at::Tensor& sample) const {
  if (inspection_.batch_norm.empty() || NeededArguments(module_) != 1) {
    return inspection_.batch_norm;
  }

  try {
    const at::NoGradGuard no_grad;
    torch::jit::Module copy = module_.clone();
    copy.forward({sample});

    for (const auto& buffer : copy.named_buffers()) {
      const bool variance = absl::EndsWith(buffer.name, "running_var");
      if (variance && buffer.value.isnan().any().item<bool>()) return inspection_.batch_norm;
    }
    return "";
  } catch (const std::exception&) {
    return inspection_.batch_norm;
  }
}

absl::Status TorchScriptModel::CheckUnchanged() {
  for (size_t i = 0; i < found_.tensors.size(); ++i) {
    const ModelTensor& tensor = found_.tensors[i];
    if (tensor.kind != v1::PARAMETER) continue;
    const bool replaced =
        !found_.places[i].owner.attr(found_.places[i].attribute).toTensor().is_same(tensor.value);
    if (replaced || tensor.value._version() != versions_[i]) {
      return ChangedParameter(tensor.name, "forward");
    }
  }

  for (size_t i = 0; i < found_.constants.size(); ++i) {
    Constant& constant = found_.constants[i];
    const at::Tensor now = constant.place.owner.attr(constant.place.attribute).toTensor();
    const bool touched =
        constant.written || !now.is_same(constant.value) || now._version() != constant.version;
    if (!touched) continue;

    const SafetensorsArray& saved = found_.extras.constants[i];
    if (now.sizes() != constant.value.sizes() || Bytes(now) != saved.bytes) {
      const std::string type = TypeName(constant.value.scalar_type());
      return absl::FailedPreconditionError(absl::StrCat(
          "buffer '", saved.name, "' is changed by forward, and it is ",
          constant.value.numel() == 0 ? "empty" : type, ": only changes of ",
          "float32, float64, bfloat16 and float16 buffers that keep their shape are kept; use such "
          "a buffer (a counter too), or leave the change out"));
    }

    constant.place.owner.setattr(constant.place.attribute, constant.value);
    constant.version = static_cast<uint32_t>(constant.value._version());
  }
  return absl::OkStatus();
}

absl::Status WithPath(const std::string& path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> LoadTorchScriptModel(const std::string& path,
                                                            at::Device device) {
  ASSIGN_OR_RETURN(torch::jit::Module module, Load(path, device));
  Discovered found(module);
  RETURN_IF_ERROR(Discover(module, "", found), WithPath(path, _));

  bool trains = false;
  for (const ModelTensor& tensor : found.tensors) trains |= tensor.kind == v1::PARAMETER;
  if (!trains) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": the module has no parameter that requires a gradient"));
  }

  ASSIGN_OR_RETURN(ScriptInspection inspection, InspectScript(module, found.tensors),
                   WithPath(path, _));
  return std::make_unique<TorchScriptModel>(module, std::move(found), std::move(inspection));
}

absl::Status RewriteTorchScript(
    const std::string& source, const std::string& target,
    const std::function<absl::Status(const std::vector<TensorMemory>& tensors)>& fill) {
  ASSIGN_OR_RETURN(torch::jit::Module module, Load(source, at::kCPU));
  Discovered found(module);
  RETURN_IF_ERROR(Discover(module, "", found), WithPath(source, _));

  std::vector<TensorMemory> memory;
  for (ModelTensor& tensor : found.tensors) {
    tensor.value.set_data(tensor.value.detach().clone(at::MemoryFormat::Contiguous));
    memory.push_back({tensor.name, DataTypeOfTensor(tensor.value), tensor.value.sizes().vec(),
                      static_cast<char*>(tensor.value.data_ptr())});
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
