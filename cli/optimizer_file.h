// The state of an optimizer as a file that Python reads (docs/checkpoints.md, "There and back"): a
// safetensors file of arrays "fc1.weight/exp_avg", whose metadata has the groups with the names and
// options that torch.optim gives them. Pure.
#ifndef SLUICE_CLI_OPTIMIZER_FILE_H_
#define SLUICE_CLI_OPTIMIZER_FILE_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/checkpoint.pb.h"
#include "proto/job.pb.h"
#include "proto/model.pb.h"
#include "services/checkpoint/optimizer_state.h"
#include "services/checkpoint/safetensors.h"

namespace sluice::cli {

// In the metadata; a file without it is not one of these.
inline constexpr char kOptimizerFormat[] = "sluice-optimizer-1";

// The slots that a job's optimizer keeps beside each tensor. INVALID_ARGUMENT: the optimizer is
// invalid, or is not one of torch.optim.
absl::StatusOr<SlotsOf> SlotsOfOptimizer(const v1::OptimizerSpec& optimizer);

// The content of such a file, and remarks for the user.
struct OptimizerFile {
  std::vector<SafetensorsArray> arrays;
  std::map<std::string, std::string> metadata;
  std::vector<std::string> notes;  // one sentence each
};

// The state that ReadOptimizerState has read from a checkpoint of a job with this optimizer.
// INVALID_ARGUMENT as above.
absl::StatusOr<OptimizerFile> MakeOptimizerFile(const v1::OptimizerSpec& optimizer,
                                                const v1::CheckpointIndex& checkpoint_index,
                                                std::vector<TensorState> states);

// The state that a job can begin with, from such a file.
struct ImportedState {
  uint64_t step = 0;                // of the job that the state is of
  std::vector<TensorState> states;  // in the table's order
  std::vector<std::string> notes;   // one sentence for each option that differs
};

// The state in an optimizer's file, for a job with these tensors and this optimizer, whose options
// win. `source` names the file in errors and notes. INVALID_ARGUMENT names what is wrong: another
// optimizer, parameters that are missing or unexpected, other shapes, values that are not finite.
absl::StatusOr<ImportedState> ReadOptimizerFile(const std::string& source,
                                                const v1::OptimizerSpec& optimizer,
                                                const v1::TensorTable& table,
                                                const std::vector<SafetensorsArray>& arrays,
                                                const std::map<std::string, std::string>& metadata);

// The lines of `sluice inspect` for an optimizer's file; empty for any other file.
std::vector<std::string> OptimizerLines(const std::vector<SafetensorsArray>& arrays,
                                        const std::map<std::string, std::string>& metadata);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_OPTIMIZER_FILE_H_
