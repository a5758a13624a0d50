#include <algorithm>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "services/worker/compute/torch_engine.h"
#include "services/worker/compute/torch_support.h"
#include "services/worker/models/torch_script.h"

namespace sluice {
namespace {

absl::string_view TypeName(const SafetensorsArray& array) {
  return array.other_type.empty() ? SafetensorsTypeName(array.dtype) : array.other_type;
}

}  // namespace

absl::Status ExportTorchScript(const std::string& source,
                               absl::Span<const SafetensorsArray> tensors,
                               const std::string& target) {
  absl::flat_hash_map<std::string, const SafetensorsArray*> left;
  for (const SafetensorsArray& tensor : tensors) {
    if (left.emplace(tensor.name, &tensor).second) continue;
    return absl::InvalidArgumentError(absl::StrCat("tensor '", tensor.name, "' is given twice"));
  }

  return RewriteTorchScript(source, target, [&](const std::vector<TensorMemory>& memory) {
    for (const TensorMemory& wanted : memory) {
      const auto found = left.find(wanted.name);
      if (found == left.end()) {
        return absl::InvalidArgumentError(absl::StrCat(source, ": has a tensor '", wanted.name,
                                                       "', which is not among the given ones"));
      }

      const SafetensorsArray& given = *found->second;
      if (given.dtype != wanted.dtype || given.shape != wanted.shape) {
        return absl::InvalidArgumentError(absl::StrCat(
            "tensor '", wanted.name, "' is ", TypeName(given), ShapeText(given.shape), ": ", source,
            " has ", SafetensorsTypeName(wanted.dtype), ShapeText(wanted.shape)));
      }

      char* out = wanted.memory;
      for (absl::string_view chunk : given.bytes.Chunks()) {
        out = std::copy(chunk.begin(), chunk.end(), out);
      }
      left.erase(found);
    }

    if (left.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("tensor '", left.begin()->first, "' is not in ", source));
  });
}

}  // namespace sluice
