// TorchScript files for tests, made here. No LibTorch in this header.
#ifndef SLUICE_SERVICES_WORKER_MODELS_TESTING_SCRIPT_FILES_H_
#define SLUICE_SERVICES_WORKER_MODELS_TESTING_SCRIPT_FILES_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace sluice {

struct ScriptTensor {
  enum Kind { kParameter, kFrozenParameter, kBuffer, kIntegerBuffer, kBoolBuffer };
  std::string name;
  Kind kind = kParameter;
  std::vector<int64_t> shape;
  std::vector<double> values;
  std::string same_as;  // another tensor of the module, if this is its second name; or empty
  std::string type = "float32";  // of the float kinds; float64, bfloat16
};

struct ScriptModule {
  std::vector<ScriptTensor> tensors;
  std::vector<std::pair<std::string, ScriptModule>> children;
  std::string source;  // methods, in TorchScript; `self.training` exists
  bool training = true;
};

// Saves it as torch.jit.save does.
void WriteScript(const std::string& path, const ScriptModule& module);

// Replaces text in the code of a saved module, as if another version of PyTorch had written it.
void ReplaceInScript(const std::string& path, const std::string& from, const std::string& to);

// Saves a state_dict in place of a module, as users do by mistake.
void WriteTensorFile(const std::string& path);

// Loads the file, and returns the output of its forward in evaluation mode for a row of numbers.
std::vector<float> RunScript(const std::string& path, const std::vector<float>& row);

}  // namespace sluice

#endif  // SLUICE_SERVICES_WORKER_MODELS_TESTING_SCRIPT_FILES_H_
