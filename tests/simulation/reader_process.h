// A reader: requests a snapshot, pulls it whole from the shards, and ends its call.
#ifndef SLUICE_TESTS_SIMULATION_READER_PROCESS_H_
#define SLUICE_TESTS_SIMULATION_READER_PROCESS_H_

#include <cstdint>
#include <set>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/common.pb.h"
#include "proto/frame.pb.h"
#include "proto/jobcontrol.pb.h"
#include "tests/simulation/coordinator_process.h"
#include "tests/simulation/member.h"

namespace sluice::simulation {

class ReaderProcess : public Member {
 public:
  ReaderProcess(Cluster* cluster, uint32_t index, uint64_t incarnation);

  void Start();

 private:
  void OnCoordinatorConnected() override {}
  void OnCoordinatorDisconnected() override {}
  void OnCoordinatorMessage(const v1::CoordinatorMessage&) override {}

  void OnSnapshot(absl::StatusOr<v1::Snapshot> snapshot);
  void Open(const v1::View::Shard& shard);
  void OnFrame(const StreamRef& stream, const v1::Header& header, const absl::Cord& payload);
  void Take(const v1::Data& data, const absl::Cord& payload);
  void Close();

  const uint32_t index_;
  const uint64_t incarnation_;
  std::shared_ptr<CoordinatorProcess> asked_;
  uint64_t call_ = 0;
  v1::Snapshot snapshot_;
  std::vector<Elements3> tensors_;
  std::set<uint32_t> missing_;  // partitions
  std::vector<StreamRef> streams_;
};

}  // namespace sluice::simulation

#endif  // SLUICE_TESTS_SIMULATION_READER_PROCESS_H_
