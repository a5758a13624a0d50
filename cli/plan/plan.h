// Estimates a job's memory, bytes on the wire and time on the wire before anything is started.
#ifndef SLUICE_CLI_PLAN_PLAN_H_
#define SLUICE_CLI_PLAN_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/describe.pb.h"
#include "proto/job.pb.h"
#include "proto/model.pb.h"
#include "services/ps/optimizer/optimizer.h"

namespace sluice::cli {

// The bytes to and from a stage, per sample, if the shards compute the layers.
struct StageTraffic {
  uint64_t input_bytes = 0;
  uint64_t output_bytes = 0;
};

// A table of which only the rows that samples name are sent.
struct RowTraffic {
  uint32_t tensor = 0;
  bool pulled = false;  // pulled by rows, too; else whole
  // The expected number of rows that a worker's samples of a step (an update) name, in equal ranges
  // of the table's rows.
  std::vector<double> rows;
  uint32_t steps = 0;  // steps of data that were read for this; 0: computed for random tokens
};

// The expected number of different rows, of `rows`, that `tokens` uniformly random tokens name.
double ExpectedRows(double rows, double tokens);

// A step is a synchronous step or, in the other modes, one worker's update. Bytes are those of
// encoded tensors; headers add less than a thousandth except in the smallest models. If the shards
// compute the layers, a worker sends and receives inputs, outputs and their gradients, and a shard
// stores a version for each worker. What shards send to second copies is included. Memory is that
// of tensors; printed memory includes the program with its libraries. The memory of activations is
// not included.
struct Plan {
  struct Shard {
    uint64_t parameter_bytes = 0;
    uint64_t memory_bytes = 0;    // of tensors
    uint64_t received_bytes = 0;  // per step
    uint64_t sent_bytes = 0;
  };
  struct Worker {
    uint64_t memory_bytes = 0;    // of tensors
    uint64_t received_bytes = 0;  // per step of this worker
    uint64_t sent_bytes = 0;
  };
  uint64_t parameters = 0;  // elements, including buffers and counters
  uint64_t parameter_bytes = 0;
  bool synchronous = true;
  bool shards_compute = false;  // shards compute the layers and link LibTorch
  uint32_t workers = 0;
  struct Table {
    std::string tensor;
    uint64_t rows = 0;
    double touched_rows = 0;  // expected per worker's step
    uint32_t steps = 0;       // as in RowTraffic
  };
  std::vector<Table> row_tables;  // the tables that are sent by rows
  std::vector<Shard> shards;
  Worker worker;

  // How long the network is busy with a step if each process has a link of `bytes_per_second` in
  // each direction: the time of the busiest link. Computing adds to it unless it overlaps.
  absl::Duration NetworkTime(double bytes_per_second) const;
};

// The tables that a worker's program describes, for each worker's step (update). INVALID_ARGUMENT
// names the table whose tensor does not exist, is not a matrix, or has fewer rows than a step
// names.
absl::StatusOr<std::vector<RowTraffic>> RowTrafficOf(const v1::JobSpec& job,
                                                     const v1::Description& description);

// `job` must be valid and have its defaults. `table` and `stages` are those of its model; `stages`
// is empty unless the shards compute them. `rows` are the tables that are sent by rows. `libraries`
// make an optimizer that is not built in.
// INVALID_ARGUMENT if they do not match (a codec that cannot encode the model's type).
absl::StatusOr<Plan> MakePlan(const v1::JobSpec& job, const v1::TensorTable& table,
                              const std::vector<StageTraffic>& stages,
                              const std::vector<RowTraffic>& rows,
                              const OptimizerLibraries& libraries = {});

// "10Gbit", "1.25GB", "400 Mbit": bytes per second. Units are decimal; bit, b, byte or B.
absl::StatusOr<double> ParseBandwidth(absl::string_view text);

// "7000000", "12k", "1.5M", "7G" or "7B" (both 1e9): a number of parameters; at least 1.
absl::StatusOr<uint64_t> ParseCount(absl::string_view text);

// The plan as lines of text, or as one JSON object. Both include the time at this bandwidth.
std::vector<std::string> PlanLines(const Plan& plan, double bytes_per_second);
std::string PlanJson(const Plan& plan, double bytes_per_second);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_PLAN_PLAN_H_
