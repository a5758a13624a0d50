// The entries of a model's state_dict beside the tensors that a job trains: aliases of these
// tensors (tied weights), and constant buffers such as masks.
//
// Intuition. Shards keep each trained tensor once, and nothing that training does not change. A
// strict load_state_dict requires all names. So a worker writes the missing names to a file beside
// the checkpoints, and `sluice export` and `sluice.load` add them to what they read.
#ifndef SLUICE_SERVICES_CHECKPOINT_STATE_DICT_EXTRAS_H_
#define SLUICE_SERVICES_CHECKPOINT_STATE_DICT_EXTRAS_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "services/checkpoint/safetensors.h"

namespace sluice {

// The name of the file in a job's checkpoint directory (docs/checkpoints.md).
inline constexpr char kStateDictExtrasFile[] = "state_dict.extras";

// The entries of a state_dict besides the trained tensors.
struct StateDictExtras {
  std::map<std::string, std::string> aliases;  // alias -> name of the trained tensor
  std::vector<SafetensorsArray> constants;

  bool empty() const { return aliases.empty() && constants.empty(); }
};

// The file's content. Its last line is the checksum of everything before it.
absl::Cord WriteStateDictExtras(const StateDictExtras& extras);

// INVALID_ARGUMENT says what is wrong: the checksum does not match, or the file has another format.
absl::StatusOr<StateDictExtras> ReadStateDictExtras(const absl::Cord& file);

// Adds the constants, and a copy of the tensor under each alias. INVALID_ARGUMENT, with `tensors`
// unchanged: the extras are of another model (they name a tensor that is missing, or that exists
// already).
absl::Status AddExtras(const StateDictExtras& extras, std::vector<SafetensorsArray>* tensors);

}  // namespace sluice

#endif  // SLUICE_SERVICES_CHECKPOINT_STATE_DICT_EXTRAS_H_
