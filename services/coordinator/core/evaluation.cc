#include "services/coordinator/core/evaluation.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "services/common/check.h"
#include "services/common/utf8.h"
#include "services/coordinator/core/assignment.h"
#include "services/coordinator/core/member_checks.h"
#include "services/protocol/worker_limits.h"

namespace sluice::coordinator {

Evaluation::Evaluation(const Options& options) : options_(options) {
  SLUICE_DCHECK(options.samples > 0, "there is something to evaluate");
  if (options_.first >= options_.samples) options_.first = 0;
  // No range spans the border of the first samples.
  if (options_.first > 0) free_.push_back({0, options_.first});
  free_.push_back({options_.first, options_.samples});
}

v1::Evaluate Evaluation::Message(const Interval& range) const {
  v1::Evaluate message;
  message.set_evaluation(options_.id);
  message.set_snapshot_id(options_.snapshot);
  message.set_version(options_.version);
  *message.mutable_samples() = ToProto(range);
  return message;
}

// Takes ranges back from dead workers and from late ones.
void Evaluation::TakeBack(const std::vector<Evaluator>& evaluators, absl::Time now) {
  for (auto& [incarnation, leases] : leased_) {
    const bool lives =
        std::any_of(evaluators.begin(), evaluators.end(),
                    [id = incarnation](const Evaluator& e) { return e.incarnation == id; });
    const auto kept = std::stable_partition(leases.begin(), leases.end(),
                                            [&](const Lease& l) { return lives && now < l.until; });
    for (auto lost = kept; lost != leases.end(); ++lost) {
      free_.push_back(lost->range);
      if (!lives) continue;
      slow_.insert(incarnation);
      ++errors_;
      last_error_ = absl::StrCat("no answer within ", absl::FormatDuration(options_.patience));
    }
    leases.erase(kept, leases.end());
  }
}

std::vector<std::pair<uint64_t, v1::Evaluate>> Evaluation::Assign(
    const std::vector<Evaluator>& living, absl::Time now) {
  TakeBack(living, now);

  std::vector<Evaluator> evaluators;
  for (const Evaluator& evaluator : living) {
    if (slow_.count(evaluator.incarnation) == 0) evaluators.push_back(evaluator);
  }
  if (evaluators.empty()) evaluators = living;

  std::vector<std::pair<uint64_t, v1::Evaluate>> messages;
  if (evaluators.empty()) return messages;
  std::vector<double> speeds;
  for (const Evaluator& evaluator : evaluators) speeds.push_back(evaluator.speed);

  for (const Interval& range : std::exchange(free_, {})) {
    const std::vector<Interval> parts = Apportion(range.size(), speeds, /*aligned=*/false);
    for (size_t i = 0; i < parts.size(); ++i) {
      if (parts[i].empty()) continue;
      const Interval part{range.begin + parts[i].begin, range.begin + parts[i].end};
      leased_[evaluators[i].incarnation].push_back({part, now + options_.patience});
      messages.emplace_back(evaluators[i].incarnation, Message(part));
    }
  }
  CheckInvariants();
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
  SLUICE_DCHECK(all_.count == done_.Count(), "each sample is counted once");
}

absl::Time Evaluation::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [incarnation, leases] : leased_) {
    for (const Lease& lease : leases) next = std::min(next, lease.until);
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

void Evaluation::OnResult(uint64_t incarnation, const v1::EvaluationResult& result) {
  if (result.evaluation() != options_.id || result.name().attempt() != options_.attempt ||
      result.name().step() != options_.version) {
    return;
  }

  const auto found = leased_.find(incarnation);
  if (found == leased_.end()) return;
  const Interval range = FromProto(result.samples());
  const auto lease = std::find_if(found->second.begin(), found->second.end(),
                                  [&](const Lease& held) { return held.range == range; });
  if (lease == found->second.end()) return;
  found->second.erase(lease);

  absl::Status valid = result.error().empty()
                           ? CheckEvaluationResult(result, result.samples())
                           : absl::UnknownError(CleanUtf8(result.error(), kMaxReasonBytes));
  if (!valid.ok()) {
    ++errors_;
    // If the model's loss is not finite, the next worker computes the same.
    if (!std::isfinite(result.loss_sum())) errors_ = kMaxErrors + 1;
    last_error_ = std::string(valid.message());
    free_.push_back(range);
    return;
  }

  done_.Add(range);
  all_.Add(result);
  if (range.end <= options_.first) first_.Add(result);
  CheckInvariants();
}

void Evaluation::Sums::Add(const v1::EvaluationResult& result) {
  const auto samples = static_cast<double>(result.count());
  weight += result.has_weight() ? result.weight() : samples;
  loss += result.has_weight() ? result.loss_sum() / samples * result.weight() : result.loss_sum();
  correct += result.correct();
  counted = counted && result.counted();
  count += result.count();
}

v1::Evaluation Evaluation::ResultOf(const Sums& sums, absl::Time now) const {
  SLUICE_DCHECK(done(), "a result is of all samples");
  v1::Evaluation result;
  const double count = static_cast<double>(std::max<uint64_t>(sums.count, 1));
  result.set_step(options_.version);
  result.set_loss(sums.weight < kMinWeight ? 0 : sums.loss / sums.weight);
  result.set_has_accuracy(sums.counted);
  if (result.has_accuracy()) result.set_accuracy(100 * sums.correct / count);
  result.set_samples(sums.count);
  result.set_seconds(absl::ToDoubleSeconds(now - options_.started));
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
