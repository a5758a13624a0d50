#include "cli/plan/plan.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/common/progress_text.h"
#include "services/common/status_macros.h"
#include "services/protocol/codec/codec.h"
#include "services/protocol/codec/rows.h"
#include "services/protocol/elements.h"
#include "services/protocol/layout.h"
#include "services/protocol/samples/job_length.h"
#include "services/protocol/stages.h"
#include "services/ps/optimizer/groups.h"
#include "services/ps/optimizer/optimizer.h"

namespace sluice::cli {
namespace {

// The shard's bound on staged updates of asynchronous modes.
constexpr uint64_t kMaxStagedBytes = uint64_t{1} << 30;

// The memory of a process without tensors, measured as its resident memory with a model of 500
// parameters: with Debian's LibTorch (two thirds of it are the libraries), and without.
constexpr uint64_t kTorchProgramBytes = uint64_t{180} << 20;
constexpr uint64_t kProgramBytes = uint64_t{20} << 20;

uint64_t ShardProgramBytes(const Plan& plan) {
  return plan.shards_compute ? kTorchProgramBytes : kProgramBytes;
}

// The bytes of one block in each place.
struct BlockSizes {
  uint64_t raw = 0;
  uint64_t pushed = 0;
  uint64_t pulled = 0;
  uint64_t state = 0;     // parameters and optimizer state, one version
  uint64_t gradient = 0;  // of the gradient's sum
  uint64_t copied = 0;    // of what the owner sends to the second copy
};

absl::StatusOr<uint64_t> Encoded(const Codec& codec, uint64_t count, const v1::TensorSpec& tensor,
                                 uint64_t raw) {
  if (codec.id() == v1::CODEC_RAW || tensor.kind() != v1::PARAMETER) return raw;
  ASSIGN_OR_RETURN(size_t bytes, codec.EncodedBytes(count, tensor.dtype()),
                   absl::InvalidArgumentError(absl::StrCat(tensor.name(), ": ", _.message())));
  return bytes;
}

class Planner {
 public:
  Planner(const v1::JobSpec& job, const v1::TensorTable& table) : job_(job), table_(table) {}

  absl::Status Open(const OptimizerLibraries& libraries) {
    const v1::TrainingSpec& training = job_.training();

    CodecOptions options;
    options.fraction = training.compression().fraction();
    if (options.fraction <= 0) options.fraction = CodecOptions().fraction;
    if (training.compression().threshold() > 0)
      options.threshold = training.compression().threshold();

    ASSIGN_OR_RETURN(push_, MakeCodec(training.push_codec(), options));
    ASSIGN_OR_RETURN(pull_, MakeCodec(training.pull_codec(), options));

    ASSIGN_OR_RETURN(const ParameterGroups groups,
                     ParameterGroups::Create(job_.optimizer(), libraries));
    for (const v1::TensorSpec& tensor : table_.tensors()) {
      slots_.push_back(groups.For(tensor.name()).optimizer->slots().size());
    }
    return absl::OkStatus();
  }

  absl::StatusOr<BlockSizes> SizesOf(const v1::Block& block) const {
    const v1::TensorSpec& tensor = table_.tensors(static_cast<int>(block.tensor()));
    BlockSizes sizes;
    sizes.raw = BlockBytes(table_, block);
    ASSIGN_OR_RETURN(uint64_t pushed, Encoded(*push_, block.count(), tensor, sizes.raw));
    ASSIGN_OR_RETURN(uint64_t pulled, Encoded(*pull_, block.count(), tensor, sizes.raw));

    const bool counter = tensor.kind() == v1::COUNTER;
    const uint64_t wide = tensor.dtype() == v1::FLOAT64 ? 8 : 4;
    sizes.pushed = counter ? 0 : pushed;
    sizes.pulled = pulled;
    sizes.gradient = counter ? 0 : block.count() * wide;
    sizes.copied = sizes.gradient;
    sizes.state = sizes.raw;
    if (tensor.kind() == v1::PARAMETER)
      sizes.state += slots_[block.tensor()] * block.count() * wide;
    return sizes;
  }

 private:
  const v1::JobSpec& job_;
  const v1::TensorTable& table_;
  std::unique_ptr<const Codec> push_, pull_;
  std::vector<uint64_t> slots_;  // of optimizer state, by tensor
};

// How many of the rows that a step names have elements in the block.
double RowsIn(const RowTraffic& rows, uint64_t table_rows, const RowCut& cut) {
  const auto range = static_cast<double>(table_rows) / static_cast<double>(rows.rows.size());
  const auto elements = static_cast<double>(cut.row_elements);
  const double begin = static_cast<double>(cut.offset) / elements;
  const double end = static_cast<double>(cut.offset + cut.count) / elements;

  double sum = 0;
  for (size_t i = 0; i < rows.rows.size(); ++i) {
    const double from = std::max(begin, range * static_cast<double>(i));
    const double to = std::min(end, range * static_cast<double>(i + 1));
    if (to > from) sum += rows.rows[i] * (to - from) / range;
  }
  return sum;
}

// A block of a table, encoded by its rows, or whole if that is not larger.
uint64_t RowBytes(const RowTraffic& rows, const v1::TensorSpec& tensor, const v1::Block& block) {
  const auto table_rows = static_cast<uint64_t>(std::max<int64_t>(1, tensor.shape(0)));
  const RowCut cut{std::max<uint64_t>(1, ElementCount(tensor) / table_rows), block.offset(),
                   block.count()};
  const double element = static_cast<double>(ElementBytes(tensor.dtype()));
  // The row's number, and its elements in the block.
  const double row = sizeof(uint32_t) + element * static_cast<double>(cut.row_elements);
  const double bytes =
      static_cast<double>(RowsBytes(cut, {}, tensor.dtype())) + row * RowsIn(rows, table_rows, cut);
  const double whole = element * static_cast<double>(block.count());
  return static_cast<uint64_t>(std::min(bytes, whole));
}

// The rows that several gradients name together, if they overlap as random rows do.
RowTraffic Combine(RowTraffic one, const v1::TensorSpec& tensor, uint64_t gradients) {
  const double range = static_cast<double>(std::max<int64_t>(1, tensor.shape(0))) /
                       static_cast<double>(one.rows.size());
  for (double& named : one.rows) {
    named = range * (1 - std::pow(1 - std::min(1.0, named / range), gradients));
  }
  return one;
}

// Replaces whole blocks by rows. `gradients`: that are summed in a step.
class RowSizes {
 public:
  RowSizes(const v1::TensorTable& table, const std::vector<RowTraffic>& rows, uint64_t gradients)
      : table_(table), gradients_(gradients) {
    for (const RowTraffic& one : rows) {
      if (!one.rows.empty()) rows_[one.tensor] = &one;
    }
  }

  // Whether the tensor's gradients are sent by rows.
  bool Has(uint32_t tensor) const { return rows_.count(tensor) != 0; }

  void Apply(const v1::Block& block, BlockSizes* sizes) const {
    const auto found = rows_.find(block.tensor());
    if (found == rows_.end()) return;
    const v1::TensorSpec& tensor = table_.tensors(static_cast<int>(block.tensor()));
    const uint64_t bytes = RowBytes(*found->second, tensor, block);
    sizes->pushed = bytes;
    // A shard stores a sum whole once it has over half of the block's rows.
    const uint64_t together = RowBytes(Combine(*found->second, tensor, gradients_), tensor, block);
    if (2 * together <= sizes->gradient) sizes->copied = together;
    if (found->second->pulled) sizes->pulled = bytes;
  }

  // A pull sends the numbers of the wanted rows to every shard.
  uint64_t RequestBytes() const {
    double rows = 0;
    for (const auto& [tensor, one] : rows_) {
      if (one->pulled) rows += std::accumulate(one->rows.begin(), one->rows.end(), 0.0);
    }
    return static_cast<uint64_t>(rows * sizeof(uint64_t));
  }

  std::vector<Plan::Table> Tables() const {
    std::vector<Plan::Table> tables;
    for (const auto& [tensor, one] : rows_) {
      const v1::TensorSpec& spec = table_.tensors(static_cast<int>(tensor));
      tables.push_back({spec.name(), static_cast<uint64_t>(spec.shape(0)),
                        std::accumulate(one->rows.begin(), one->rows.end(), 0.0), one->steps});
    }
    return tables;
  }

 private:
  const v1::TensorTable& table_;
  const uint64_t gradients_;
  std::map<uint32_t, const RowTraffic*> rows_;  // by tensor
};

// The shard of each partition's second copy; empty if there are none. The largest partition first,
// each goes to the shard that holds the least.
std::vector<uint32_t> PlaceCopies(const v1::JobSpec& job, const v1::TensorTable& table,
                                  const v1::Layout& layout, const std::vector<uint32_t>& owner) {
  std::vector<uint64_t> held(job.parameter_server().replicas());
  if (job.parameter_server().copies() < 2 || held.size() < 2) return {};

  std::vector<uint64_t> bytes(owner.size());
  for (const v1::Block& block : layout.blocks()) {
    bytes[block.partition()] += BlockBytes(table, block);
    held[owner[block.partition()]] += BlockBytes(table, block);
  }

  std::vector<uint32_t> order(owner.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return bytes[a] > bytes[b]; });

  std::vector<uint32_t> place(owner.size());
  for (const uint32_t partition : order) {
    uint32_t least = owner[partition] == 0 ? 1 : 0;
    for (uint32_t shard = 0; shard < held.size(); ++shard) {
      if (shard != owner[partition] && held[shard] < held[least]) least = shard;
    }
    place[partition] = least;
    held[least] += bytes[partition];
  }
  return place;
}

// How many gradients a shard stores at a time.
uint64_t GradientsHeld(const v1::JobSpec& job, uint64_t gradient_bytes) {
  const uint64_t workers = job.worker().replicas();
  const v1::TrainingSpec& training = job.training();
  if (IsSynchronous(training.mode())) {
    return training.stragglers().policy() == v1::TrainingSpec::Stragglers::DROP ? workers : 1;
  }
  const uint64_t permits =
      std::max<uint64_t>(1, kMaxStagedBytes / std::max<uint64_t>(1, gradient_bytes));
  return std::min(workers, permits);
}

// Adds the traffic of a step if the shards compute the layers. Each stage receives inputs and
// gradients with respect to outputs; it returns its output and, except for the first stage, the
// gradient with respect to its input.
void AddStageTraffic(const v1::JobSpec& job, const std::vector<StageTraffic>& stages,
                     const std::vector<uint32_t>& owner, Plan* plan) {
  const uint64_t samples = job.training().global_batch_size();
  Plan::Worker all;  // all workers together
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    const uint64_t to = samples * (stages[stage].input_bytes + stages[stage].output_bytes);
    const uint64_t from =
        samples * (stages[stage].output_bytes + (stage > 0 ? stages[stage].input_bytes : 0));

    Plan::Shard& shard = plan->shards[owner[stage]];
    shard.received_bytes += to;
    shard.sent_bytes += from;
    all.sent_bytes += to;
    all.received_bytes += from;
  }
  // In a synchronous step each worker has a share of the batch.
  const uint64_t shares = plan->synchronous ? std::max<uint32_t>(1, plan->workers) : 1;
  plan->worker.sent_bytes += all.sent_bytes / shares;
  plan->worker.received_bytes += all.received_bytes / shares;
  // A worker stores all that it sends and receives for its share of a batch.
  plan->worker.memory_bytes += (all.sent_bytes + all.received_bytes) / shares;
}

std::string Row(absl::string_view name, uint64_t memory, uint64_t received, uint64_t sent) {
  return absl::StrFormat("  %-12s %12s %14s %14s", name, BytesText(memory), BytesText(received),
                         BytesText(sent));
}

}  // namespace

absl::StatusOr<std::vector<RowTraffic>> RowTrafficOf(const v1::JobSpec& job,
                                                     const v1::Description& description) {
  std::vector<RowTraffic> traffic;
  const bool shared = IsSynchronous(job.training().mode());
  const double samples = static_cast<double>(job.training().global_batch_size()) /
                         (shared ? std::max<uint32_t>(1, job.worker().replicas()) : 1);

  const v1::TensorTable& tensors = description.ready().table();
  for (const v1::Description::RowTable& table : description.row_tables()) {
    if (table.tensor() >= static_cast<uint32_t>(tensors.tensors_size())) {
      return absl::InvalidArgumentError(
          absl::StrCat("a table of rows is tensor ", table.tensor(), " of ", tensors.tensors_size(),
                       ": the worker's program describes the model incorrectly"));
    }

    const v1::TensorSpec& tensor = tensors.tensors(static_cast<int>(table.tensor()));
    if (tensor.shape_size() == 0 || tensor.shape(0) <= 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor ", tensor.name(), " has no rows: the worker's program describes it incorrectly"));
    }

    const auto rows = static_cast<double>(tensor.shape(0));
    RowTraffic& one = traffic.emplace_back();
    one.tensor = table.tensor();
    one.pulled = table.pulled();
    one.steps = table.steps();
    one.rows = {table.rows().begin(), table.rows().end()};
    if (table.random_tokens() > 0) {
      one.rows = {ExpectedRows(rows, samples * static_cast<double>(table.random_tokens()))};
    }

    for (double named : one.rows) {
      if (named >= 0 && named <= rows) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("a step names ", named, " of the ", rows, " rows of tensor ", tensor.name(),
                       ": the worker's program describes it incorrectly"));
    }
  }
  return traffic;
}

namespace {

// The part of a job's plan that does not depend on the sizes of blocks.
Plan BeginPlan(const v1::JobSpec& job, const v1::TensorTable& table) {
  Plan plan;
  plan.synchronous = IsSynchronous(job.training().mode());
  plan.shards_compute = job.training().execution() == v1::TrainingSpec::SERVER;
  plan.workers = job.worker().replicas();
  plan.shards.resize(job.parameter_server().replicas());
  for (const v1::TensorSpec& tensor : table.tensors()) plan.parameters += ElementCount(tensor);
  return plan;
}

// Whether workers sum their gradients among each other and push one together. Each sends as many
// bytes as without: its part of the sum to the shards, and the rest of its own gradient to the
// other workers.
bool WorkersReduce(const v1::JobSpec& job) {
  return job.training().dense().aggregation() == v1::TrainingSpec::Dense::ALL_REDUCE &&
         job.worker().replicas() > 1;
}

// Adds a block's second copy, which its owner keeps up to date. `versions`: of the state, stored.
void AddCopy(const BlockSizes& sizes, uint64_t versions, Plan::Shard* owner, Plan::Shard* second) {
  second->memory_bytes += versions * sizes.state + sizes.gradient;
  second->received_bytes += sizes.copied;
  owner->sent_bytes += sizes.copied;
}

// The memory of a worker that computes. `state`: bytes of all gradients; `exchanged`: bytes of sums
// that one worker receives from the others.
void AddWorkerMemory(const v1::JobSpec& job, uint64_t state, uint64_t exchanged, Plan* plan) {
  // The version in use, the one being received, the one being evaluated; and gradients.
  const uint64_t buffers = job.data().has_evaluation() ? 3 : 2;
  plan->worker.memory_bytes = buffers * plan->parameter_bytes + state;
  if (job.training().compression().error_feedback()) plan->worker.memory_bytes += 2 * state;
  plan->worker.received_bytes += exchanged;
  plan->worker.memory_bytes += 2 * exchanged;  // outgoing and incoming
}

}  // namespace

absl::StatusOr<Plan> MakePlan(const v1::JobSpec& job, const v1::TensorTable& table,
                              const std::vector<StageTraffic>& stages,
                              const std::vector<RowTraffic>& rows,
                              const OptimizerLibraries& libraries) {
  const bool by_shards = job.training().execution() == v1::TrainingSpec::SERVER;
  const uint32_t partitions = job.parameter_server().partitions();
  ASSIGN_OR_RETURN(v1::Layout layout, by_shards ? MakeStagedLayout(table, job.model(), partitions)
                                                : MakeLayout(table, partitions));
  Planner planner(job, table);
  RETURN_IF_ERROR(planner.Open(libraries));
  const std::vector<uint32_t> owner =
      PlacePartitions(LayoutIndex(table, layout), job.parameter_server().replicas());

  Plan plan = BeginPlan(job, table);
  const uint64_t contributions = plan.synchronous ? plan.workers : 1;
  const RowSizes row_sizes(table, rows, contributions);
  const std::vector<uint32_t> copy = PlaceCopies(job, table, layout, owner);
  plan.row_tables = row_sizes.Tables();

  std::vector<uint64_t> gradients(plan.shards.size());
  uint64_t state = 0;
  uint64_t exchanged = 0;  // of one worker, received from the others
  // Synchronous: the previous version is kept until no rollback can need it.
  const uint64_t versions = plan.synchronous ? 2 : 1;
  // Gradients of contexts, and older versions that contexts still use; workers that verify
  // gradients fetch them.
  const uint64_t kept = by_shards ? plan.workers : 0;

  const bool reduces = WorkersReduce(job);
  const uint64_t fetched = by_shards && job.debug().verify_gradients() ? contributions : 0;
  for (const v1::Block& block : layout.blocks()) {
    ASSIGN_OR_RETURN(BlockSizes sizes, planner.SizesOf(block));
    row_sizes.Apply(block, &sizes);

    const uint32_t place = owner[block.partition()];
    Plan::Shard& shard = plan.shards[place];
    shard.parameter_bytes += sizes.raw;
    shard.memory_bytes += versions * sizes.state;
    shard.memory_bytes += kept * ((plan.synchronous ? 0 : sizes.raw) + sizes.pushed);

    if (!by_shards) {
      const bool reduced = reduces && !row_sizes.Has(block.tensor()) &&
                           table.tensors(static_cast<int>(block.tensor())).kind() == v1::PARAMETER;
      shard.received_bytes += (reduced ? 1 : contributions) * sizes.pushed;
      shard.sent_bytes += contributions * sizes.pulled;
      plan.worker.received_bytes += sizes.pulled;
      if (reduced) exchanged += sizes.pushed - sizes.pushed / plan.workers;
      plan.worker.sent_bytes += sizes.pushed;
    } else if (fetched > 0) {
      shard.sent_bytes += fetched * sizes.pushed;
      plan.worker.received_bytes += sizes.pushed;
    }

    if (!copy.empty()) AddCopy(sizes, versions, &shard, &plan.shards[copy[block.partition()]]);
    gradients[place] += sizes.gradient;
    plan.parameter_bytes += sizes.raw;
    state += sizes.gradient;
  }

  for (size_t i = 0; i < plan.shards.size(); ++i) {
    plan.shards[i].memory_bytes += GradientsHeld(job, state) * gradients[i];
    plan.shards[i].received_bytes += contributions * row_sizes.RequestBytes();
    plan.worker.sent_bytes += row_sizes.RequestBytes();
  }

  if (by_shards) {
    AddStageTraffic(job, stages, owner, &plan);
    return plan;
  }
  AddWorkerMemory(job, state, exchanged, &plan);
  return plan;
}

double ExpectedRows(double rows, double tokens) {
  if (rows <= 1) return tokens > 0 ? rows : 0;
  return -rows * std::expm1(tokens * std::log1p(-1 / rows));
}

absl::Duration Plan::NetworkTime(double bytes_per_second) const {
  uint64_t busiest = std::max(worker.received_bytes, worker.sent_bytes);
  for (const Shard& shard : shards) {
    busiest = std::max({busiest, shard.received_bytes, shard.sent_bytes});
  }
  return absl::Seconds(static_cast<double>(busiest) / bytes_per_second);
}

// The bound of the number before the unit, so that the result is finite with any unit.
constexpr double kMaxBandwidth = 1e200;

absl::StatusOr<double> ParseBandwidth(absl::string_view text) {
  size_t end = 0;
  while (end < text.size() && (absl::ascii_isdigit(text[end]) || text[end] == '.')) ++end;

  double value = 0;
  absl::string_view unit = absl::StripAsciiWhitespace(text.substr(end));
  const auto wrong = absl::InvalidArgumentError(
      absl::StrCat("the bandwidth \"", text, "\" is invalid; write for example 10Gbit or 1.25GB"));

  if (!absl::SimpleAtod(text.substr(0, end), &value) || value <= 0 || value > kMaxBandwidth ||
      unit.empty()) {
    return wrong;
  }

  double factor = 1;
  constexpr absl::string_view kPrefixes = "kKMGT";
  if (const size_t place = kPrefixes.find(unit[0]); place != absl::string_view::npos) {
    factor = place < 2 ? 1e3 : place == 2 ? 1e6 : place == 3 ? 1e9 : 1e12;
    unit.remove_prefix(1);
  }

  for (absl::string_view suffix : {"/s", "ps"}) {
    if (absl::EndsWith(unit, suffix)) unit.remove_suffix(suffix.size());
  }

  if (unit == "bit" || unit == "b") return value * factor / 8;
  if (unit == "byte" || unit == "B") return value * factor;
  return wrong;
}

absl::StatusOr<uint64_t> ParseCount(absl::string_view text) {
  constexpr std::pair<char, double> kSuffixes[] = {{'k', 1e3}, {'K', 1e3}, {'M', 1e6},
                                                   {'G', 1e9}, {'B', 1e9}, {'T', 1e12}};

  absl::string_view digits = text;
  double factor = 1;
  for (const auto& [suffix, of] : kSuffixes) {
    if (!digits.empty() && digits.back() == suffix && factor == 1) {
      factor = of;
      digits.remove_suffix(1);
    }
  }

  double value = 0;
  const bool plain = digits.find_first_not_of("0123456789.") == absl::string_view::npos;
  if (!plain || !absl::SimpleAtod(digits, &value) || value * factor < 1 || value * factor > 1e15) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", text, "\" is not a number of parameters; write for example 12000000, 12k or 1.5M"));
  }
  return static_cast<uint64_t>(value * factor);
}

std::vector<std::string> PlanLines(const Plan& plan, double bytes_per_second) {
  std::vector<std::string> lines;
  lines.push_back(
      absl::StrCat(CountText(plan.parameters), " parameters, ", BytesText(plan.parameter_bytes)));

  const std::string unit = plan.synchronous ? "a step" : "an update";
  lines.push_back(
      absl::StrFormat("  %-12s %12s %14s %14s", "", "memory", "in " + unit, "out " + unit));

  for (size_t i = 0; i < plan.shards.size(); ++i) {
    const Plan::Shard& shard = plan.shards[i];
    lines.push_back(Row(absl::StrCat("ps-", i), shard.memory_bytes + ShardProgramBytes(plan),
                        shard.received_bytes, shard.sent_bytes));
  }

  lines.push_back(Row(plan.workers == 1 ? "the worker" : "each worker",
                      plan.worker.memory_bytes + kTorchProgramBytes, plan.worker.received_bytes,
                      plan.worker.sent_bytes));
  lines.push_back(absl::StrCat(
      "memory is that of tensors plus, in each process, the program and its libraries (shard ",
      BytesText(ShardProgramBytes(plan)), ", worker ", BytesText(kTorchProgramBytes),
      "); computing a batch needs more: set limits to twice as much"));

  for (const Plan::Table& table : plan.row_tables) {
    lines.push_back(absl::StrFormat(
        "%s is sent by rows: about %s of %s per worker %s, %s", table.tensor,
        CountText(static_cast<uint64_t>(std::llround(table.touched_rows))), CountText(table.rows),
        unit,
        table.steps == 0 ? std::string("as computed for random tokens")
                         : absl::StrCat("the mean of ", table.steps, " read from the data")));
  }

  const double seconds = absl::ToDoubleSeconds(plan.NetworkTime(bytes_per_second));
  const std::string busy = seconds >= 1      ? absl::StrFormat("%.3g s", seconds)
                           : seconds >= 1e-3 ? absl::StrFormat("%.3g ms", seconds * 1e3)
                           : seconds >= 1e-6 ? absl::StrFormat("%.3g µs", seconds * 1e6)
                                             : std::string("less than 1 µs");
  lines.push_back(absl::StrFormat("at %.3g Gbit/s the network is busy for %s %s",
                                  bytes_per_second * 8 / 1e9, busy, unit));
  return lines;
}

std::string PlanJson(const Plan& plan, double bytes_per_second) {
  nlohmann::ordered_json shards = nlohmann::ordered_json::array();
  for (const Plan::Shard& shard : plan.shards) {
    shards.push_back({{"parameterBytes", shard.parameter_bytes},
                      {"memoryBytes", shard.memory_bytes + ShardProgramBytes(plan)},
                      {"receivedBytes", shard.received_bytes},
                      {"sentBytes", shard.sent_bytes}});
  }

  nlohmann::ordered_json tables = nlohmann::ordered_json::array();
  for (const Plan::Table& table : plan.row_tables) {
    tables.push_back({{"tensor", table.tensor},
                      {"rows", table.rows},
                      {"touchedRows", table.touched_rows},
                      {"basis", table.steps == 0 ? "RandomTokens" : "Data"}});
  }

  const nlohmann::ordered_json json = {
      {"parameters", plan.parameters},
      {"parameterBytes", plan.parameter_bytes},
      {"per", plan.synchronous ? "step" : "update"},
      {"shards", std::move(shards)},
      {"workers", plan.workers},
      {"worker",
       {{"memoryBytes", plan.worker.memory_bytes + kTorchProgramBytes},
        {"receivedBytes", plan.worker.received_bytes},
        {"sentBytes", plan.worker.sent_bytes}}},
      {"rowTables", std::move(tables)},
      {"networkSeconds", absl::ToDoubleSeconds(plan.NetworkTime(bytes_per_second))},
  };
  return json.dump();
}

}  // namespace sluice::cli
