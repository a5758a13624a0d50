#include "tests/testing/final_state.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "services/checkpoint/local_storage.h"
#include "services/common/io/file_util.h"
#include "services/common/status_macros.h"

namespace sluice::testing {
namespace {

// Copies the parts of the tensor that a partition's file has to their places in `to`.
absl::Status CopyPieces(const std::string& file, const std::string& tensor,
                        std::vector<double>* to) {
  uint64_t header_bytes = 0;
  if (file.size() < sizeof(header_bytes)) return absl::DataLossError("no header");
  std::memcpy(&header_bytes, file.data(), sizeof(header_bytes));
  const std::string data = file.substr(sizeof(header_bytes) + header_bytes);
  const auto header = nlohmann::json::parse(file.substr(sizeof(header_bytes), header_bytes));
  for (const auto& [name, array] : header.items()) {
    const std::string prefix = absl::StrCat(tensor, "[");
    if (!absl::StartsWith(name, prefix) || absl::StrContains(name, '/')) continue;
    uint64_t offset = 0;
    if (!absl::SimpleAtoi(name.substr(prefix.size(), name.find(':') - prefix.size()), &offset)) {
      return absl::DataLossError(absl::StrCat("odd name ", name));
    }
    const uint64_t begin = array["data_offsets"][0];
    const uint64_t end = array["data_offsets"][1];
    if (array["dtype"] == "F64") {
      std::memcpy(to->data() + offset, data.data() + begin, end - begin);
    } else if (array["dtype"] == "F32") {
      std::vector<float> values((end - begin) / sizeof(float));
      std::memcpy(values.data(), data.data() + begin, end - begin);
      std::copy(values.begin(), values.end(), to->begin() + static_cast<ptrdiff_t>(offset));
    } else {
      return absl::DataLossError(absl::StrCat(name, " is neither float32 nor float64"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<v1::CheckpointIndex> FinalCheckpointIndex(const std::string& checkpoints) {
  const std::unique_ptr<FileSystem> files = MakeRealFileSystem();
  const auto storage = MakeLocalStorage(files.get(), checkpoints, "test");
  ASSIGN_OR_RETURN(RestorePoint point, FindRestorePoint(*storage));
  if (!point.found) return absl::NotFoundError(absl::StrCat("no checkpoint in ", checkpoints));
  return point.checkpoint_index;
}

absl::StatusOr<std::vector<double>> FinalTensor(const std::string& checkpoints,
                                                const std::string& tensor) {
  ASSIGN_OR_RETURN(v1::CheckpointIndex checkpoint_index, FinalCheckpointIndex(checkpoints));
  uint64_t elements = 0;
  for (const v1::TensorSpec& spec : checkpoint_index.table().tensors()) {
    if (spec.name() != tensor) continue;
    elements = 1;
    for (const int64_t extent : spec.shape()) elements *= static_cast<uint64_t>(extent);
  }
  if (elements == 0) return absl::NotFoundError(absl::StrCat("no tensor ", tensor));
  std::vector<double> values(elements, -1);
  const std::unique_ptr<FileSystem> files = MakeRealFileSystem();
  const auto storage = MakeLocalStorage(files.get(), checkpoints, "test");
  for (const v1::PartitionFile& file : checkpoint_index.files()) {
    ASSIGN_OR_RETURN(absl::Cord content, storage->ReadFile(checkpoint_index.checkpoint(), file));
    RETURN_IF_ERROR(CopyPieces(std::string(content), tensor, &values));
  }
  return values;
}

absl::StatusOr<std::vector<uint64_t>> FinalStateHashes(const std::string& checkpoints) {
  ASSIGN_OR_RETURN(v1::CheckpointIndex checkpoint_index, FinalCheckpointIndex(checkpoints));
  std::vector<uint64_t> hashes(checkpoint_index.layout().partitions(), 0);
  for (const v1::PartitionFile& file : checkpoint_index.files()) {
    hashes[file.partition()] = file.state_hash();
  }
  return hashes;
}

}  // namespace sluice::testing
