// Figures for people: loss, speeds, time by activity, and events.

#ifndef SLUICE_SERVICES_COORDINATOR_CORE_FACTS_PROGRESS_H_
#define SLUICE_SERVICES_COORDINATOR_CORE_FACTS_PROGRESS_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "proto/control.pb.h"
#include "proto/jobcontrol.pb.h"

namespace sluice::coordinator {

// The newest 1,000 events, numbered from 1.
class EventLog {
 public:
  void Add(v1::Event::Kind kind, std::string message, absl::Time now);
  void AddEvaluation(const v1::Evaluation& evaluation, std::string message, absl::Time now);
  // Copies those with a sequence above `after`, ascending.
  void CopyTo(uint64_t after, v1::JobProgress* progress) const;

 private:
  static constexpr size_t kMaxEvents = 1000;
  v1::Event& Append(v1::Event::Kind kind, std::string message, absl::Time now);

  uint64_t next_ = 1;
  std::deque<v1::Event> events_;
};

// The newest 1,000 losses of single batches, numbered from 1: those of batches whose number is a
// multiple of 5.
class BatchLosses {
 public:
  void OnWorkerProgress(uint32_t index, bool synchronous, const v1::WorkerProgress& progress);
  // Copies those with a sequence above `after`, ascending.
  void CopyTo(uint64_t after, v1::JobProgress* progress) const;

 private:
  static constexpr size_t kMaxLosses = 1000;
  static constexpr uint64_t kEvery = 5;

  uint64_t next_ = 1;
  std::deque<v1::BatchLoss> losses_;
  absl::flat_hash_map<uint32_t, uint64_t> batches_;  // asynchronous: batches of each worker so far
};

// Counts how often each staleness occurred; computes quantiles.
class StalenessCounts {
 public:
  void Add(uint64_t staleness);
  uint64_t count() const { return count_; }
  uint64_t largest() const { return largest_; }
  // The mean of all that were added; 0 before the first.
  double mean() const {
    return count_ > 0 ? static_cast<double>(sum_) / static_cast<double>(count_) : 0;
  }
  // The lowest staleness that this fraction of all updates does not exceed. `fraction` is in (0,
  // 1].
  uint64_t Quantile(double fraction) const;

 private:
  static constexpr uint64_t kMost = 10000;  // this and all above are counted together

  std::vector<uint64_t> counts_;
  uint64_t count_ = 0;
  uint64_t sum_ = 0;
  uint64_t largest_ = 0;
};

// Sums of the workers' reports.
class TrainingMeter {
 public:
  // `loss_samples`: the loss is the mean over about this many of the last samples, each report with
  // its weight (WorkerProgress.Step.weight).
  explicit TrainingMeter(uint64_t loss_samples) : loss_samples_(loss_samples) {}

  void OnWorkerProgress(uint64_t incarnation, const v1::WorkerProgress& progress);
  void Forget(uint64_t incarnation) { workers_.erase(incarnation); }

  // Samples of the whole job: called when training begins, then after each step. A lower number
  // than before restarts the measurement (a restoration).
  void OnSamples(uint64_t samples, absl::Time now);

  bool has_loss() const { return loss_count_ > 0; }
  double loss() const;
  // Samples per second of one worker while it computes; 0: unknown.
  double SpeedOf(uint64_t incarnation) const;
  // The job's rate over the last seconds.
  double SamplesPerSecond(absl::Time now) const;
  // From the first OnSamples to the last one that reported a new number.
  absl::Duration TrainingTime() const { return newest_ - began_.value_or(newest_); }
  void CopyTo(v1::JobProgress* progress) const;

 private:
  // Long enough that the pause of training for an evaluation does not look like the end of
  // training.
  static constexpr absl::Duration kWindow = absl::Seconds(30);
  static constexpr double kMaxSpeed = 1e9;  // samples a second, whatever a worker reports

  struct Worker {
    double samples = 0;  // decayed sums
    double seconds = 0;
  };
  struct Losses {
    double sum = 0;     // the mean loss times its weight
    double weight = 0;  // of the samples in the mean loss
    uint64_t samples = 0;
  };

  const uint64_t loss_samples_;
  StalenessCounts stalenesses_;
  std::deque<Losses> losses_;
  uint64_t loss_count_ = 0;
  absl::flat_hash_map<uint64_t, Worker> workers_;
  std::deque<std::pair<absl::Time, uint64_t>> samples_;
  std::optional<absl::Time> began_;
  absl::Time newest_;
  v1::WorkerProgress sums_;
};

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_CORE_FACTS_PROGRESS_H_
