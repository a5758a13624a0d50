// What a job will take, before anything is started: memory, bytes on the wire, time on the wire.
#ifndef SLUICE_SERVICES_CLI_PLAN_H_
#define SLUICE_SERVICES_CLI_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/describe.pb.h"
#include "proto/job.pb.h"
#include "proto/model.pb.h"

namespace sluice::cli {

// What goes to and from a stage of a model whose layers the shards compute, for one sample.
struct StageTraffic {
  uint64_t input_bytes = 0;
  uint64_t output_bytes = 0;
};

// A table of which only the rows that samples name travel.
struct RowTraffic {
  uint32_t tensor = 0;
  bool pulled = false;  // by rows, too; else whole
  // Rows that a worker's samples of a step (an update) name: expected, in equal ranges of the
  // table's rows.
  std::vector<double> rows;
  uint32_t steps = 0;  // of the data that were read to know; 0: computed for random tokens
};

// How many of `rows` are named by so many tokens, each of which is any of them with equal chance.
double ExpectedRows(double rows, double tokens);

// A step is a synchronous step, or where the mode is another one worker's update. Bytes are those
// of tensors as they are encoded; headers add less than a thousandth to all but the smallest
// models. Where the shards compute the layers, what a worker sends and gets are inputs, outputs and
// their gradients; a shard holds a version for each worker. Memory is that of tensors too: a
// program itself, what its libraries and the network hold, and what computing takes between forward
// and backward come on top.
struct Plan {
  struct Shard {
    uint64_t parameter_bytes = 0;
    uint64_t memory_bytes = 0;
    uint64_t received_bytes = 0;  // a step
    uint64_t sent_bytes = 0;
  };
  struct Worker {
    uint64_t memory_bytes = 0;
    uint64_t received_bytes = 0;  // a step of its own
    uint64_t sent_bytes = 0;
  };
  uint64_t parameters = 0;  // elements, buffers and counters included
  uint64_t parameter_bytes = 0;
  bool synchronous = true;
  uint32_t workers = 0;
  struct Table {
    std::string tensor;
    uint64_t rows = 0;
    double touched_rows = 0;  // expected, by a worker's step
    uint32_t steps = 0;       // as RowTraffic
  };
  std::vector<Table> row_tables;  // that travel by rows
  std::vector<Shard> shards;
  Worker worker;

  // How long the network is busy with a step, where each process has a link of so many bytes a
  // second in each direction: as long as its busiest link. Computing comes on top, as far as it
  // does not overlap.
  absl::Duration NetworkTime(double bytes_per_second) const;
};

// The tables that a worker's program describes, for each worker's step (update). INVALID_ARGUMENT
// names the table whose tensor is none, is no matrix, or has fewer rows than a step is said to
// name.
absl::StatusOr<std::vector<RowTraffic>> RowTrafficOf(const v1::JobSpec& job,
                                                     const v1::Description& description);

// `job` must be valid, with its defaults; the table that of its model; the stages those of its
// model where the shards compute them, else none; `rows` the tables that travel by rows.
// INVALID_ARGUMENT if they do not go together (a
// codec that cannot carry the model's type).
absl::StatusOr<Plan> MakePlan(const v1::JobSpec& job, const v1::TensorTable& table,
                              const std::vector<StageTraffic>& stages,
                              const std::vector<RowTraffic>& rows);

// "10Gbit", "1.25GB", "400 Mbit": bytes a second. Units are decimal; bit, b, byte or B.
absl::StatusOr<double> ParseBandwidth(absl::string_view text);

// "7000000", "12k", "1.5M", "7G" or "7B" (both 1e9): how many numbers; at least 1.
absl::StatusOr<uint64_t> ParseCount(absl::string_view text);

// For people, a line each; for programs, one object of JSON. Both with the time at this bandwidth.
std::vector<std::string> PlanLines(const Plan& plan, double bytes_per_second);
std::string PlanJson(const Plan& plan, double bytes_per_second);

}  // namespace sluice::cli

#endif  // SLUICE_SERVICES_CLI_PLAN_H_
