// The calls of a Caller with what the program has computed, up to the end of the work.
#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "services/protocol/worker_limits.h"
#include "services/worker/core/gradients/gradient.h"
#include "services/worker/library/caller.h"

namespace sluice::worker {
namespace {

// As in ComputeThread: while more gradients are coming, fewer bytes than this wait for them.
constexpr size_t kWorthAMessage = 64 << 10;
// From this size on another thread sends a gradient, which takes longer than to wake that thread:
// the program computes meanwhile.
constexpr size_t kWorthAThread = 256 << 10;

}  // namespace

CallResult Caller::CheckComputing() const {
  if (work_ && std::holds_alternative<Compute>(work_->request)) return {};
  return WrongState(
      "there is no work SLUICE_GRADIENTS that this belongs to: ask for work with "
      "sluice_worker_next");
}

CallResult Caller::CheckTensor(uint32_t tensor, v1::TensorKind kind) const {
  if (CallResult wrong = CheckComputing(); !wrong.ok()) return wrong;

  if (tensor >= static_cast<uint32_t>(table_.tensors_size())) {
    return Invalid("there is no tensor ", tensor, ": the model has ", table_.tensors_size());
  }

  const v1::TensorSpec& spec = table_.tensors(static_cast<int>(tensor));
  if (spec.kind() != kind) {
    return Invalid("'", spec.name(), "' is not a ", kind == v1::PARAMETER ? "parameter" : "buffer");
  }

  if (work_->given[tensor]) {
    return WrongState("'", spec.name(), "' was given already: it is given once for each work");
  }
  return {};
}

absl::Cord Caller::Refer(absl::string_view data, uint64_t token) const {
  if (token == 0) return absl::Cord(std::string(data));
  return absl::MakeCordFromExternal(data, [tokens = tokens_, token] {
    MutexLock lock(&tokens->mutex);
    tokens->released.push_back(token);
  });
}

CallResult Caller::GiveTensor(uint32_t tensor, v1::TensorKind kind, absl::string_view data,
                              const std::vector<uint64_t>* rows, uint64_t token) {
  CoreShell<WorkerCore>* shell;
  ComputeId id;
  std::optional<Use> use;
  {
    MutexLock lock(&mutex_);
    if (CallResult wrong = CheckTensor(tensor, kind); !wrong.ok()) return wrong;

    const v1::TensorSpec& spec = table_.tensors(static_cast<int>(tensor));
    Gradient probe(absl::MakeCordFromExternal(data, [] {}));
    if (rows != nullptr) probe = Gradient(*rows, std::move(probe.values));
    if (absl::Status status = CheckGradient(spec, probe); !status.ok()) {
      return Invalid(status.message());
    }

    work_->given[tensor] = true;
    shell = work_->dropped ? nullptr : shell_;
    id = std::get<Compute>(work_->request).id;
    use.emplace(this);
  }

  absl::Cord content = Refer(data, token);
  if (shell == nullptr) return {};

  const CoreShell<WorkerCore>::EventOptions more{.worth = kWorthAMessage,
                                                 .post = data.size() >= kWorthAThread};
  if (rows != nullptr) {
    shell->Event(Call(&WorkerCore::OnRowGradient, id, tensor, *rows, std::move(content)), more);
  } else if (kind == v1::PARAMETER) {
    shell->Event(Call(&WorkerCore::OnGradient, id, tensor, std::move(content)), more);
  } else {
    shell->Event(Call(&WorkerCore::OnBufferChange, id, tensor, std::move(content)), more);
  }
  return {};
}

CallResult Caller::GiveWeight(double weight) {
  CoreShell<WorkerCore>* shell;
  ComputeId id;
  std::optional<Use> use;
  {
    MutexLock lock(&mutex_);
    if (!IsWeight(weight)) {
      return Invalid("the weight is ", weight, ": it must be from 0 to ", kMaxWeight);
    }

    if (work_ && std::holds_alternative<EvaluateSamples>(work_->request)) {
      if (work_->weighted) return WrongState("the weight is given once for each work");
      work_->weighted = true;
      work_->weight = weight;
      return {};
    }

    if (CallResult wrong = CheckComputing(); !wrong.ok()) return wrong;
    const std::vector<bool>& given = work_->given;
    if (work_->weighted || std::find(given.begin(), given.end(), true) != given.end()) {
      return WrongState("the weight is given once for each work, before its first gradient");
    }

    work_->weighted = true;
    shell = work_->dropped ? nullptr : shell_;
    id = std::get<Compute>(work_->request).id;
    use.emplace(this);
  }

  if (shell != nullptr) {
    shell->Event(Call(&WorkerCore::OnWeight, id, weight), {.worth = kWorthAMessage});
  }
  return {};
}

// The part is given once; calls that repeat it wait on.
CallResult Caller::Sum(const std::string& name, double* values, size_t count,
                       absl::Duration timeout, bool* abandoned) {
  const absl::Time deadline = absl::Now() + timeout;
  CoreShell<WorkerCore>* shell = nullptr;
  ComputeId id;
  std::optional<Use> use;
  {
    MutexLock lock(&mutex_);
    if (in_sum_) return {SLUICE_BUSY, "another thread waits for a sum of this work"};
    if (CallResult wrong = CheckSum(name, count); !wrong.ok()) return wrong;

    *abandoned = work_->dropped;
    if (work_->dropped) return {};

    in_sum_ = true;
    id = std::get<Compute>(work_->request).id;
    if (!work_->summing) shell = shell_;
    work_->summing = count;
    use.emplace(this);
  }

  if (shell != nullptr) {
    shell->Event(Call(&WorkerCore::OnSum, id, name,
                      absl::Cord(absl::string_view(reinterpret_cast<const char*>(values),
                                                   count * sizeof(double)))));
  }
  use.reset();

  MutexLock lock(&mutex_);
  while (!work_->sum && !work_->dropped && absl::Now() < deadline) {
    changed_.WaitWithDeadline(&mutex_, deadline);
  }

  in_sum_ = false;
  *abandoned = work_->dropped;
  if (work_->dropped) return {};
  if (!work_->sum) return {SLUICE_TIMEOUT, "some workers have not given their part of the sum"};

  // The sum is complete: the next one may begin.
  const std::string sum(*work_->sum);
  std::memcpy(values, sum.data(), sum.size());
  work_->sum.reset();
  work_->summing.reset();
  return {};
}

CallResult Caller::CheckSum(const std::string& name, size_t count) const {
  if (CallResult wrong = CheckComputing(); !wrong.ok()) return wrong;

  if (job_->training().sync() != v1::TrainingSpec::BATCH_NORM) {
    return WrongState("the job has no `sync: BatchNorm`");
  }

  if (name.empty() || name.size() > kMaxSumNameBytes) {
    return Invalid("the name of a sum has ", name.size(), " bytes; it should have 1 to ",
                   kMaxSumNameBytes);
  }

  if (count == 0 || count > kMaxSumBytes / sizeof(double)) {
    return Invalid("a sum of ", count, " numbers; there should be 1 to ",
                   kMaxSumBytes / sizeof(double));
  }
  // The sum of work that was dropped meanwhile is not finished, and no longer needed.
  if (work_->summing && *work_->summing != count && !work_->dropped) {
    return WrongState("a sum of ", *work_->summing,
                      " numbers is not finished: call sluice_worker_sum again with its arguments");
  }
  return {};
}

CallResult Caller::GiveGradient(uint32_t tensor, absl::string_view data, uint64_t token) {
  return GiveTensor(tensor, v1::PARAMETER, data, nullptr, token);
}

CallResult Caller::GiveRowGradient(uint32_t tensor, const std::vector<uint64_t>& rows,
                                   absl::string_view values, uint64_t token) {
  return GiveTensor(tensor, v1::PARAMETER, values, &rows, token);
}

CallResult Caller::GiveBufferChange(uint32_t tensor, absl::string_view data) {
  return GiveTensor(tensor, v1::BUFFER, data, nullptr, 0);
}

CallResult Caller::GiveNoGradient(uint32_t tensor) {
  CoreShell<WorkerCore>* shell;
  ComputeId id;
  std::optional<Use> use;
  {
    MutexLock lock(&mutex_);
    if (CallResult wrong = CheckTensor(tensor, v1::PARAMETER); !wrong.ok()) return wrong;

    work_->given[tensor] = true;
    shell = work_->dropped ? nullptr : shell_;
    id = std::get<Compute>(work_->request).id;
    use.emplace(this);
  }
  if (shell != nullptr) {
    shell->Event(Call(&WorkerCore::OnNoGradient, id, tensor), {.worth = kWorthAMessage});
  }
  return {};
}

CallResult Caller::GiveRows(uint32_t tensor, const uint64_t* rows, size_t count) {
  MutexLock lock(&mutex_);
  if (!work_ || !std::holds_alternative<FindRows>(work_->request)) {
    return WrongState("there is no work SLUICE_ROWS that this belongs to");
  }

  const auto selected = work_->rows.find(tensor);
  if (selected == work_->rows.end()) {
    return Invalid("tensor ", tensor, " was not added with `rows`");
  }

  const v1::TensorSpec& spec = table_.tensors(static_cast<int>(tensor));
  for (size_t i = 0; i < count; ++i) {
    if (rows[i] >= static_cast<uint64_t>(spec.shape(0))) {
      return Invalid("a sample names row ", rows[i], " of '", spec.name(), "', which has ",
                     spec.shape(0));
    }
  }

  selected->second.insert(selected->second.end(), rows, rows + count);
  return {};
}

CallResult Caller::CheckAllGiven() const {
  if (work_->dropped) return {};
  if (work_->summing) return WrongState("a sum is not finished: call sluice_worker_sum again");

  const auto missing = std::find(work_->given.begin(), work_->given.end(), false);
  if (std::holds_alternative<Compute>(work_->request)) {
    for (int i = 0; i < table_.tensors_size(); ++i) {
      if (table_.tensors(i).kind() == v1::PARAMETER && !work_->given[static_cast<size_t>(i)]) {
        return WrongState("the gradient of '", table_.tensors(i).name(),
                          "' was not given: call sluice_worker_gradient, or "
                          "sluice_worker_no_gradient if the loss does not depend on it");
      }
    }
  } else if (missing != work_->given.end()) {
    const std::string& name = metrics_[static_cast<size_t>(missing - work_->given.begin())];
    const bool evaluates = std::holds_alternative<EvaluateSamples>(work_->request);
    return WrongState("the ", evaluates ? "state" : "value", " of metric '", name,
                      "' was not given: call sluice_worker_metric_", evaluates ? "state" : "value");
  }
  return {};
}

CallResult Caller::Done(const sluice_result& given) {
  CoreShell<WorkerCore>* shell;
  std::optional<Work> work;
  std::optional<Use> use;
  {
    MutexLock lock(&mutex_);
    if (!work_) {
      return WrongState("there is no work to end: ask for work with sluice_worker_next");
    }
    if (in_sum_) return {SLUICE_BUSY, "another thread waits for a sum of this work"};
    if (CallResult wrong = CheckAllGiven(); !wrong.ok()) return wrong;

    work = std::exchange(work_, std::nullopt);
    // A cancelled computation is answered all the same; one of an older instance is not.
    shell = work->instance == instance_ ? shell_ : nullptr;
    use.emplace(this);
    changed_.SignalAll();
  }
  if (shell == nullptr) return {};

  ComputeResult result;
  result.loss_sum = given.loss_sum;
  result.correct = given.correct;
  result.counted = given.counted != 0;
  result.data_time = absl::Seconds(given.data_seconds);
  result.compute_time = absl::Seconds(given.compute_seconds);
  result.samples = work->indices.size();

  if (const auto* compute = std::get_if<Compute>(&work->request)) {
    if (work->dropped) result = ComputeResult();
    shell->Event(Call(&WorkerCore::OnComputed, compute->id, result));
  } else if (const auto* evaluate = std::get_if<EvaluateSamples>(&work->request)) {
    if (!work->dropped) result.metrics = std::move(work->states);
    if (work->weighted) result.weight = work->weight;
    shell->Event(Call(&WorkerCore::OnEvaluated, evaluate->id, result));
  } else if (const auto* compute = std::get_if<ComputeMetrics>(&work->request)) {
    shell->Event(Call(&WorkerCore::OnMetricValues, compute->id, std::move(work->values)));
  } else {
    for (auto& [tensor, rows] : work->rows) SortRows(&rows);
    shell->Event(Call(&WorkerCore::OnRows, std::get<FindRows>(work->request).id,
                      absl::StatusOr<RowSelections>(std::move(work->rows))));
  }
  return {};
}

}  // namespace sluice::worker
