#include "services/coordinator/core/evaluation/evaluation.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/common/check.h"
#include "services/common/status_macros.h"
#include "services/common/text/utf8.h"
#include "services/coordinator/core/decisions/assignment.h"
#include "services/coordinator/core/decisions/member_checks.h"
#include "services/protocol/worker_limits.h"

namespace sluice::coordinator {

Evaluation::Evaluation(const Options& options) : options_(options) {
  SLUICE_DCHECK(options.samples > 0, "there is something to evaluate");
  if (options_.first >= options_.samples) options_.first = 0;
  // No range spans the border of the first samples.
  if (options_.first > 0) AddFree(0, options_.first);
  AddFree(options_.first, options_.samples);
  if (options_.exact) max_errors_ *= static_cast<int>(free_.size());

  if (options_.metrics.empty()) return;
  if (options_.first > 0)
    computations_.push_back({options_.first_id, options_.first, 0, {}, {}, {}});
  computations_.push_back({options_.id, options_.samples, 0, {}, {}, {}});
}

void Evaluation::AddFree(uint64_t begin, uint64_t end) {
  uint64_t size = end - begin;
  if (options_.exact) {
    size = std::max(kMinFixedRange, (size + kMaxFixedRanges - 1) / kMaxFixedRanges);
  }
  for (; begin < end; begin += size) free_.push_back({begin, std::min(begin + size, end)});
}

v1::Evaluate Evaluation::Message(const Interval& range) const {
  v1::Evaluate message;
  message.set_evaluation(options_.id);
  message.set_snapshot_id(options_.snapshot);
  message.set_version(options_.version);
  *message.mutable_samples() = ToProto(range);
  return message;
}

v1::ComputeMetrics Evaluation::Message(const Computation& computation) const {
  v1::ComputeMetrics message;
  message.set_evaluation(computation.id);
  message.mutable_name()->set_attempt(options_.attempt);
  message.mutable_name()->set_step(options_.version);
  for (const auto& [begin, part] : parts_) {
    if (begin >= computation.samples) break;
    v1::ComputeMetrics::Part& to = *message.add_parts();
    *to.mutable_samples() = ToProto({begin, part.end});
    *to.mutable_metrics() = {part.metrics.begin(), part.metrics.end()};
  }
  return message;
}

// ---- assignment

void Evaluation::NoteLate(uint64_t incarnation) {
  slow_.insert(incarnation);
  ++errors_;
  last_error_ = absl::StrCat("no answer within ", absl::FormatDuration(options_.patience));
}

std::vector<Evaluator> Evaluation::TakeBack(const std::vector<Evaluator>& living, absl::Time now) {
  const auto lives = [&](uint64_t incarnation) {
    return std::any_of(living.begin(), living.end(), [incarnation](const Evaluator& evaluator) {
      return evaluator.incarnation == incarnation;
    });
  };
  for (auto& [incarnation, leases] : leased_) {
    const bool alive = lives(incarnation);
    const auto kept = std::stable_partition(leases.begin(), leases.end(),
                                            [&](const Lease& l) { return alive && now < l.until; });
    if (kept == leases.end()) continue;
    for (auto lost = kept; lost != leases.end(); ++lost) free_.push_back(lost->range);
    leases.erase(kept, leases.end());
    if (alive) NoteLate(incarnation);
  }
  for (Computation& computation : computations_) {
    if (computation.worker == 0) continue;
    const bool alive = lives(computation.worker);
    if (alive && now < computation.until) continue;
    const uint64_t worker = std::exchange(computation.worker, 0);
    if (alive) NoteLate(worker);
  }

  std::vector<Evaluator> evaluators;
  for (const Evaluator& evaluator : living) {
    if (slow_.count(evaluator.incarnation) == 0) evaluators.push_back(evaluator);
  }
  return evaluators.empty() ? living : evaluators;
}

std::vector<std::pair<uint64_t, v1::Evaluate>> Evaluation::Assign(
    const std::vector<Evaluator>& living, absl::Time now) {
  const std::vector<Evaluator> evaluators = TakeBack(living, now);
  std::vector<std::pair<uint64_t, v1::Evaluate>> messages;
  if (evaluators.empty()) return messages;
  std::vector<double> speeds;
  for (const Evaluator& evaluator : evaluators) speeds.push_back(evaluator.speed);
  const auto lease = [&](size_t evaluator, const Interval& range) {
    const uint64_t incarnation = evaluators[evaluator].incarnation;
    leased_[incarnation].push_back({range, now + options_.patience});
    messages.emplace_back(incarnation, Message(range));
  };

  const std::vector<Interval> ranges = std::exchange(free_, {});
  if (options_.exact) {
    const std::vector<Interval> shares = Apportion(ranges.size(), speeds, /*aligned=*/false);
    for (size_t i = 0; i < shares.size(); ++i) {
      for (uint64_t place = shares[i].begin; place < shares[i].end; ++place)
        lease(i, ranges[place]);
    }
  } else {
    for (const Interval& range : ranges) {
      const std::vector<Interval> parts = Apportion(range.size(), speeds, /*aligned=*/false);
      for (size_t i = 0; i < parts.size(); ++i) {
        if (parts[i].empty()) continue;
        lease(i, {range.begin + parts[i].begin, range.begin + parts[i].end});
      }
    }
  }
  CheckInvariants();
  return messages;
}

std::vector<std::pair<uint64_t, v1::ComputeMetrics>> Evaluation::AssignMetrics(
    const std::vector<Evaluator>& living, absl::Time now) {
  std::vector<std::pair<uint64_t, v1::ComputeMetrics>> messages;
  if (!AllRangesDone()) return messages;
  const std::vector<Evaluator> evaluators = TakeBack(living, now);
  if (evaluators.empty()) return messages;
  const auto fastest =
      std::max_element(evaluators.begin(), evaluators.end(),
                       [](const Evaluator& a, const Evaluator& b) { return a.speed < b.speed; });
  for (Computation& computation : computations_) {
    if (computation.done || computation.worker != 0) continue;
    computation.worker = fastest->incarnation;
    computation.until = now + options_.patience;
    messages.emplace_back(computation.worker, Message(computation));
  }
  return messages;
}

void Evaluation::CheckInvariants() const {
  if (!DebugChecksAreOn()) return;
  uint64_t samples = done_.Count();
  for (const Interval& range : free_) {
    SLUICE_DCHECK(!done_.Intersects(range), "a sample that is evaluated is not free");
    samples += range.size();
  }
  for (const auto& [incarnation, leases] : leased_) {
    for (const Lease& lease : leases) {
      SLUICE_DCHECK(!done_.Intersects(lease.range), "a sample that is evaluated is not leased");
      samples += lease.range.size();
    }
  }
  SLUICE_DCHECK(samples == options_.samples, "each sample is evaluated, leased or free");
  uint64_t counted = 0;
  for (const auto& [begin, part] : parts_) counted += part.end - begin;
  SLUICE_DCHECK(counted == done_.Count(), "each sample is counted once");
  SLUICE_DCHECK(state_bytes_ <= kMaxMetricStateBytes, "a message can carry the states");
}

absl::Time Evaluation::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [incarnation, leases] : leased_) {
    for (const Lease& lease : leases) next = std::min(next, lease.until);
  }
  for (const Computation& computation : computations_) {
    if (computation.worker != 0) next = std::min(next, computation.until);
  }
  return next;
}

std::vector<v1::Evaluate> Evaluation::OwedBy(uint64_t incarnation) const {
  std::vector<v1::Evaluate> messages;
  const auto found = leased_.find(incarnation);
  if (found == leased_.end()) return messages;
  for (const Lease& lease : found->second) messages.push_back(Message(lease.range));
  return messages;
}

std::vector<v1::ComputeMetrics> Evaluation::MetricsOwedBy(uint64_t incarnation) const {
  std::vector<v1::ComputeMetrics> messages;
  for (const Computation& computation : computations_) {
    if (computation.worker == incarnation) messages.push_back(Message(computation));
  }
  return messages;
}

// ---- answers

bool Evaluation::IsOf(const v1::CheckpointRef& name) const {
  return name.attempt() == options_.attempt && name.step() == options_.version;
}

bool Evaluation::TakeLease(uint64_t incarnation, const Interval& range) {
  const auto found = leased_.find(incarnation);
  if (found == leased_.end()) return false;
  const auto lease = std::find_if(found->second.begin(), found->second.end(),
                                  [&](const Lease& held) { return held.range == range; });
  if (lease == found->second.end()) return false;
  found->second.erase(lease);
  return true;
}

absl::Status Evaluation::CheckStates(const v1::EvaluationResult& result) const {
  RETURN_IF_ERROR(CheckMetricStates(result, options_.metrics));
  size_t bytes = state_bytes_;
  const v1::MetricState* largest = nullptr;
  for (const v1::MetricState& state : result.metrics()) {
    bytes += state.state().size();
    if (largest == nullptr || state.state().size() > largest->state().size()) largest = &state;
  }
  if (bytes <= kMaxMetricStateBytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "the states of the program's metrics over ", done_.Count(), " of ", options_.samples,
      " samples have more than ", kMaxMetricStateBytes, " bytes; the largest is that of '",
      largest->name(), "' with ", largest->state().size(), " bytes for ", result.count(),
      " samples: evaluate fewer samples (data.evaluation.maxSamples, and a smaller "
      "held-out data set), or let the metric keep sums or counts"));
}

void Evaluation::OnResult(uint64_t incarnation, const v1::EvaluationResult& result) {
  if (result.evaluation() != options_.id || !IsOf(result.name())) return;
  const Interval range = FromProto(result.samples());
  if (!TakeLease(incarnation, range)) return;

  absl::Status valid = result.error().empty()
                           ? CheckEvaluationResult(result, result.samples())
                           : absl::UnknownError(CleanUtf8(result.error(), kMaxReasonBytes));
  if (valid.ok()) valid = CheckStates(result);
  if (!valid.ok()) {
    ++errors_;
    // The next worker computes the same if the model's loss is not finite, or the states are large.
    diverged_ = diverged_ || !std::isfinite(result.loss_sum());
    if (diverged_ || absl::IsResourceExhausted(valid)) errors_ = max_errors_ + 1;
    last_error_ = std::string(valid.message());
    free_.push_back(range);
    return;
  }

  done_.Add(range);
  for (const v1::MetricState& state : result.metrics()) state_bytes_ += state.state().size();
  const auto samples = static_cast<double>(result.count());
  const bool weighed = result.has_weight() && options_.weighs;
  const double weight = weighed ? result.weight() : samples;
  parts_[range.begin] = {
      range.end,        weighed ? result.loss_sum() / samples * weight : result.loss_sum(),
      weight,           result.correct(),
      result.counted(), {result.metrics().begin(), result.metrics().end()}};
  CheckInvariants();
}

void Evaluation::OnMetricValues(uint64_t incarnation, const v1::MetricValues& values) {
  if (!IsOf(values.name())) return;
  const auto found =
      std::find_if(computations_.begin(), computations_.end(), [&](const Computation& computation) {
        return computation.id == values.evaluation() && computation.worker == incarnation;
      });
  if (found == computations_.end() || incarnation == 0) return;
  found->worker = 0;
  const std::string error = CleanUtf8(values.error(), kMaxReasonBytes);
  if (absl::Status valid = CheckMetricValues(values, options_.metrics); !valid.ok()) {
    ++errors_;
    last_error_ = error.empty() ? std::string(valid.message()) : error;
    return;
  }
  found->done = true;
  found->values = {values.metrics().begin(), values.metrics().end()};
  if (!error.empty()) note_ = error;
}

bool Evaluation::done() const {
  return AllRangesDone() && std::all_of(computations_.begin(), computations_.end(),
                                        [](const Computation& c) { return c.done; });
}

v1::Evaluation Evaluation::ResultOf(uint64_t samples, absl::Time now) const {
  SLUICE_DCHECK(done(), "a result is of all samples");
  double loss = 0;
  double weight = 0;
  double correct = 0;
  bool counted = true;  // in every part
  for (const auto& [begin, part] : parts_) {
    if (begin >= samples) break;
    loss += part.loss;
    weight += part.weight;
    correct += part.correct;
    counted = counted && part.counted;
  }

  v1::Evaluation result;
  const double count = static_cast<double>(std::max<uint64_t>(samples, 1));
  result.set_step(options_.version);
  result.set_loss(weight < kMinWeight ? 0 : loss / weight);
  result.set_has_accuracy(counted);
  if (result.has_accuracy()) result.set_accuracy(100 * correct / count);
  result.set_samples(samples);
  result.set_seconds(absl::ToDoubleSeconds(now - options_.started));
  for (const Computation& computation : computations_) {
    if (computation.samples != samples) continue;
    *result.mutable_metrics() = {computation.values.begin(), computation.values.end()};
  }
  return result;
}

std::optional<double> MetricOf(const v1::Evaluation& result, absl::string_view name) {
  for (const v1::Metric& metric : result.metrics()) {
    if (metric.name() == name) return metric.value();
  }
  if (name == "loss") return result.loss();
  if (name == "accuracy" && result.has_accuracy()) return result.accuracy();
  if (name == "perplexity" && result.has_perplexity()) return result.perplexity();
  return std::nullopt;
}

}  // namespace sluice::coordinator
