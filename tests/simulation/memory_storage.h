// A checkpoint storage in memory, with everything that a real one promises.
#ifndef SLUICE_TESTS_SIMULATION_MEMORY_STORAGE_H_
#define SLUICE_TESTS_SIMULATION_MEMORY_STORAGE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "services/checkpoint/storage.h"
#include "tests/simulation/scheduler.h"

namespace sluice::simulation {

class MemoryStorage : public CheckpointStorage {
 public:
  absl::Status Probe() override { return absl::OkStatus(); }
  absl::Status Own(const std::string& job) override;
  absl::Status CreateClaim(const v1::Claim& claim) override;
  absl::StatusOr<std::vector<v1::Claim>> ReadClaims() override;
  absl::StatusOr<std::vector<v1::CheckpointRef>> ListCheckpoints() override;
  absl::StatusOr<v1::Manifest> ReadManifest(const v1::CheckpointRef& ref) override;
  absl::Status WriteManifest(const v1::Manifest& manifest) override;
  absl::Status WriteFile(const v1::CheckpointRef& ref, absl::string_view name,
                         const absl::Cord& content) override;
  absl::StatusOr<absl::Cord> ReadFile(const v1::CheckpointRef& ref,
                                      const v1::PartitionFile& file) override;
  absl::Status Remove(const v1::CheckpointRef& ref) override;
  absl::Status RemoveIncomplete(uint64_t attempt) override;

  // Flips a bit of a file of a checkpoint, cuts the file or removes it. There are always other
  // checkpoints that are whole. Says what was done; empty: nothing.
  std::string Damage(Random* random);

  // The best checkpoint as it was written, whatever happened to its files since.
  std::optional<v1::Manifest> NewestAsWritten();

  // Whether a file of that name lies there.
  bool HasFile(const std::string& folder, const std::string& name) const {
    auto it = files_.find(folder);
    return it != files_.end() && it->second.count(name) != 0;
  }

 private:
  using Key = std::pair<uint64_t, uint64_t>;  // attempt, step
  static Key KeyOf(const v1::CheckpointRef& ref) { return {ref.attempt(), ref.step()}; }

  std::string owner_;
  std::map<uint64_t, v1::Claim> claims_;
  std::map<Key, v1::Manifest> manifests_;
  std::map<Key, std::string> damaged_;                              // manifests, as text
  std::map<std::string, std::map<std::string, absl::Cord>> files_;  // by folder, name
};

}  // namespace sluice::simulation

#endif  // SLUICE_TESTS_SIMULATION_MEMORY_STORAGE_H_
