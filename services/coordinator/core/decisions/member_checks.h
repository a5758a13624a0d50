// Checks of members' messages, made before a message changes anything: one function per message
// compares every number with the coordinator's own knowledge (docs/protocol.md 14).
//
// Intuition. The coordinator acts on a shard's report, so an impossible value is a breach: the
// message changes nothing and its stream is closed. A worker runs user code, and its figures are
// for people: impossible figures are dropped, and the rest counts.

#ifndef SLUICE_SERVICES_COORDINATOR_CORE_DECISIONS_MEMBER_CHECKS_H_
#define SLUICE_SERVICES_COORDINATOR_CORE_DECISIONS_MEMBER_CHECKS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/control.pb.h"
#include "proto/jobcontrol.pb.h"

namespace sluice::coordinator {

// Bounds of the values that members and the operator may send.
inline constexpr size_t kMaxReasonBytes = 4096;  // of a failure; longer reasons are truncated
inline constexpr size_t kMaxAddressBytes = 512;  // Register's address, host, metrics_address
inline constexpr size_t kMaxTensorNameBytes = 4096;
inline constexpr int kMaxTensorDimensions = 64;  // as many as PyTorch's
inline constexpr uint64_t kMaxDataSamples = uint64_t{1} << 48;
inline constexpr uint64_t kMaxTerm = uint64_t{1} << 62;  // of a term's counter, and of an attempt
inline constexpr uint32_t kMaxWantedProcesses = 65536;   // of one role
inline constexpr int kMaxDeaths = 65536;                 // in one SetDesired

// The coordinator's facts about an attempt, to check the reports of one of its shards.
struct ShardFacts {
  bool synchronous = true;
  uint64_t total_steps = 0;
  uint64_t total_samples = 0;
  uint64_t first_version = 0;   // with which the attempt began
  std::vector<uint32_t> owned;  // ascending; partitions of this shard that are not empty
  uint64_t shard = 0;           // incarnation
  const std::vector<bool>* empty = nullptr;  // of each partition: it has no blocks
  const v1::View* view = nullptr;            // the newest one
  // Installs of the views of this attempt that a shard may have, by view number.
  const std::map<uint64_t, v1::Install>* installs = nullptr;
  uint64_t attempt = 0;
  v1::Term term;
};

// INVALID_ARGUMENT names the impossible value, and what would be right.
absl::Status CheckRegister(const v1::Register& request);
absl::Status CheckReady(const v1::Ready& ready);
// The view names each of its shards once, and for each partition its shards alone.
absl::Status CheckPositions(const v1::View& view);
// `progress` is of the current view.
absl::Status CheckShardProgress(const v1::ShardProgress& progress, const ShardFacts& facts);
// `reply` is to the current Pause.
absl::Status CheckPauseReply(const v1::PauseReply& reply, const ShardFacts& facts);
// `version`: that of the open snapshot.
absl::Status CheckSnapshotPinned(const v1::SnapshotPinned& pinned, uint64_t version);
// Does not check that the files are the shard's: if they are not, the checkpoint fails.
absl::Status CheckSnapshotWritten(const v1::SnapshotWritten& written);
absl::Status CheckSnapshotFailed(const v1::SnapshotFailed& failed, const ShardFacts& facts);
// `asked`: the samples that the worker was asked to evaluate.
absl::Status CheckEvaluationResult(const v1::EvaluationResult& result, const v1::Range& asked);
// The result has a state for each of the program's metrics, in this order.
absl::Status CheckMetricStates(const v1::EvaluationResult& result,
                               const std::vector<std::string>& metrics);
absl::Status CheckMetricValues(const v1::MetricValues& values,
                               const std::vector<std::string>& metrics);
absl::Status CheckSetDesired(const v1::SetDesiredRequest& desired);

// The coordinator's facts about a worker's training.
struct WorkerFacts {
  uint64_t total_steps = 0;
  uint64_t total_samples = 0;
  bool synchronous = true;
  uint64_t largest_step = 0;  // samples of a worker's step or update
  absl::Duration elapsed;     // since its last report, or its registration
};

// Removes impossible figures from the report: steps past the job's end or with more samples than a
// worker has in one step, losses that are no sum of float32 values, times longer than the elapsed
// time, and counts that no message can reach. Returns how many figures were removed or reduced.
int KeepPossibleFigures(v1::WorkerProgress* progress, const WorkerFacts& facts);

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_CORE_DECISIONS_MEMBER_CHECKS_H_
