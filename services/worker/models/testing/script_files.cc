#include "services/worker/models/testing/script_files.h"

#include <ATen/ops/tensor.h>
#include <caffe2/serialize/inline_container.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <cstdio>
#include <fstream>
#include <map>

#include "absl/strings/str_replace.h"

namespace sluice {
namespace {

at::Tensor MakeTensor(const ScriptTensor& tensor) {
  at::Tensor value = at::tensor(tensor.values, at::kDouble).reshape(tensor.shape);
  if (tensor.kind == ScriptTensor::kBoolBuffer) return value.to(at::kBool);
  if (tensor.kind == ScriptTensor::kIntegerBuffer) return value.to(at::kLong);
  if (tensor.type == "float64") return value;
  return value.to(tensor.type == "bfloat16" ? at::kBFloat16 : at::kFloat);
}

torch::jit::Module Build(const std::string& name, const ScriptModule& parts) {
  torch::jit::Module module(name);
  std::map<std::string, at::Tensor> values;
  for (const ScriptTensor& tensor : parts.tensors) {
    at::Tensor value = tensor.same_as.empty() ? MakeTensor(tensor) : values.at(tensor.same_as);
    values[tensor.name] = value;
    if (tensor.kind == ScriptTensor::kParameter || tensor.kind == ScriptTensor::kFrozenParameter) {
      value.requires_grad_(tensor.kind == ScriptTensor::kParameter);
      module.register_parameter(tensor.name, value, /*is_buffer=*/false);
    } else {
      module.register_buffer(tensor.name, value);
    }
  }
  for (const auto& [child, child_parts] : parts.children) {
    module.register_module(child, Build(name + "_" + child, child_parts));
  }
  module.register_attribute("training", c10::BoolType::get(), parts.training);
  module.define(parts.source);
  return module;
}

}  // namespace

void WriteScript(const std::string& path, const ScriptModule& module) {
  Build("m", module).save(path);
}

void ReplaceInScript(const std::string& path, const std::string& from, const std::string& to) {
  const std::string changed = path + ".changed";
  {
    caffe2::serialize::PyTorchStreamReader reader(path);
    caffe2::serialize::PyTorchStreamWriter writer(changed);
    for (const std::string& name : reader.getAllRecords()) {
      if (name == "version" || name == ".data/serialization_id") continue;
      const auto [data, size] = reader.getRecord(name);
      std::string record(static_cast<const char*>(data.get()), size);
      if (name.rfind("code/", 0) == 0) record = absl::StrReplaceAll(record, {{from, to}});
      writer.writeRecord(name, record.data(), record.size());
    }
    writer.writeEndOfFile();
  }
  std::rename(changed.c_str(), path.c_str());
}

void WriteTensorFile(const std::string& path) {
  const std::vector<char> bytes = torch::jit::pickle_save(at::tensor({1.0, 2.0}));
  std::ofstream(path, std::ios::binary).write(bytes.data(), bytes.size());
}

std::vector<float> RunScript(const std::string& path, const std::vector<float>& row) {
  torch::jit::Module module = torch::jit::load(path);
  module.eval();
  const at::Tensor output = module.forward({at::tensor(row).unsqueeze(0)}).toTensor().contiguous();
  return std::vector<float>(output.data_ptr<float>(), output.data_ptr<float>() + output.numel());
}

}  // namespace sluice
