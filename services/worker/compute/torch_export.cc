#include <algorithm>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "services/worker/compute/torch_engine.h"
#include "services/worker/models/torch_script.h"

namespace sluice {

absl::Status ExportTorchScript(const std::string& source, absl::Span<const NamedBytes> tensors,
                               const std::string& target) {
  absl::flat_hash_map<std::string, const absl::Cord*> left;
  for (const NamedBytes& tensor : tensors) {
    if (left.emplace(tensor.name, &tensor.bytes).second) continue;
    return absl::InvalidArgumentError(absl::StrCat("tensor '", tensor.name, "' is given twice"));
  }
  return RewriteTorchScript(source, target, [&](const std::vector<TensorMemory>& memory) {
    for (const TensorMemory& wanted : memory) {
      const auto found = left.find(wanted.name);
      if (found == left.end()) {
        return absl::InvalidArgumentError(absl::StrCat(source, ": has a tensor '", wanted.name,
                                                       "', which is not among the given ones"));
      }
      if (found->second->size() != wanted.bytes) {
        return absl::InvalidArgumentError(absl::StrCat("tensor '", wanted.name, "' has ",
                                                       found->second->size(), " bytes: ", source,
                                                       " wants ", wanted.bytes));
      }
      char* out = wanted.memory;
      for (absl::string_view chunk : found->second->Chunks()) {
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
