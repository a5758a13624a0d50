// One evaluation: held-out samples, leased in ranges to members, all at one pinned version.
//
// Intuition: each evaluator gets one range proportional to its speed. A range whose evaluator died,
// failed or was too slow is given to another evaluator. The results are summed, by position, when
// every range is done.
//
// Metrics of the program's own have states that only workers understand. Each result has the states
// of its range; when every range is done, one evaluator gets all states, by position, and computes
// the values.
//
// With `exact`, the held-out data is cut into ranges that do not depend on the evaluators,
// and each gets several of them. Then every sum has the same bits, whichever workers evaluate.

#ifndef SLUICE_SERVICES_COORDINATOR_CORE_EVALUATION_EVALUATION_H_
#define SLUICE_SERVICES_COORDINATOR_CORE_EVALUATION_EVALUATION_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/control.pb.h"
#include "proto/jobcontrol.pb.h"
#include "services/protocol/interval_set.h"

namespace sluice::coordinator {

struct Evaluator {
  uint64_t incarnation = 0;
  double speed = 0;  // samples a second; 0: unknown
};

class Evaluation {
 public:
  struct Options {
    uint64_t id = 0;
    uint64_t snapshot = 0;
    uint64_t attempt = 0;  // results carry it, and the version
    uint64_t version = 0;
    uint64_t samples = 0;              // positions [0, samples) of the held-out data; not 0
    uint64_t first = 0;                // also report the result of positions [0, first); 0: do not
    std::vector<std::string> metrics;  // names of the program's own
    uint64_t first_id = 0;             // as `id`, for the metrics of [0, first)
    // The ranges do not depend on the workers, so that the sums have the same bits.
    bool exact = false;
    bool weighs = true;  // CoordinatorRules::WeighEvaluations
    absl::Time started;
    // A worker that has not answered for this long loses its samples, even if it is alive.
    absl::Duration patience = absl::InfiniteDuration();
  };

  explicit Evaluation(const Options& options);

  uint64_t id() const { return options_.id; }
  uint64_t snapshot_id() const { return options_.snapshot; }
  uint64_t version() const { return options_.version; }

  // Gives the unassigned samples to evaluators; returns messages by incarnation. A worker that is
  // not among the evaluators, or has not answered in time, loses its samples. A worker that was
  // late gets no more samples of this evaluation, unless there is no other worker.
  std::vector<std::pair<uint64_t, v1::Evaluate>> Assign(const std::vector<Evaluator>& evaluators,
                                                        absl::Time now);
  // Once every range is done: gives the states of the metrics to an evaluator, which computes their
  // values. Workers are chosen as by Assign.
  std::vector<std::pair<uint64_t, v1::ComputeMetrics>> AssignMetrics(
      const std::vector<Evaluator>& evaluators, absl::Time now);
  // When the next answer becomes overdue.
  absl::Time NextDeadline() const;
  // The ranges that an evaluator has not answered, to be sent again on a new stream.
  std::vector<v1::Evaluate> OwedBy(uint64_t incarnation) const;
  std::vector<v1::ComputeMetrics> MetricsOwedBy(uint64_t incarnation) const;

  // A result or an error. A repeated or late result, and one of another attempt or version, has no
  // effect. A range with an error becomes free again.
  void OnResult(uint64_t incarnation, const v1::EvaluationResult& result);

  // The values of the metrics, or an error, under the same conditions.
  void OnMetricValues(uint64_t incarnation, const v1::MetricValues& values);

  bool done() const;
  // True after too many errors; last_error() says why.
  bool failed() const { return errors_ > max_errors_; }
  const std::string& last_error() const { return last_error_; }
  // It has failed because the model's loss is NaN or infinite.
  bool diverged() const { return diverged_; }
  // A note to the user on the values of the metrics; empty: none.
  const std::string& note() const { return note_; }

  // Without epoch. Requires done().
  v1::Evaluation Result(absl::Time now) const { return ResultOf(options_.samples, now); }
  // The result of positions [0, first). Requires done() and has_first().
  v1::Evaluation FirstResult(absl::Time now) const { return ResultOf(options_.first, now); }
  bool has_first() const { return options_.first > 0; }

 private:
  // With fixed ranges, there are at most so many, of at least so many samples but the last one.
  static constexpr uint64_t kMaxFixedRanges = 64;
  static constexpr uint64_t kMinFixedRange = 32;

  struct Lease {
    Interval range;
    absl::Time until;
  };

  // A worker's result for a range.
  struct Part {
    uint64_t end = 0;
    double loss = 0;    // the mean loss times its weight
    double weight = 0;  // of the samples in the mean loss
    double correct = 0;
    bool counted = false;
    std::vector<v1::MetricState> metrics;
  };

  // Computes the metrics over the positions [0, samples).
  struct Computation {
    uint64_t id = 0;
    uint64_t samples = 0;
    uint64_t worker = 0;  // 0: none
    absl::Time until;
    bool done = false;
    std::vector<v1::Metric> values;
  };

  bool AllRangesDone() const { return done_.Count() == options_.samples; }
  bool IsOf(const v1::CheckpointRef& name) const;
  void AddFree(uint64_t begin, uint64_t end);
  v1::Evaluation ResultOf(uint64_t samples, absl::Time now) const;
  // Takes what is overdue or owed by dead workers, and returns the workers that may get it.
  std::vector<Evaluator> TakeBack(const std::vector<Evaluator>& living, absl::Time now);
  void NoteLate(uint64_t incarnation);
  // Removes the lease; false: there is none.
  bool TakeLease(uint64_t incarnation, const Interval& range);
  absl::Status CheckStates(const v1::EvaluationResult& result) const;
  v1::Evaluate Message(const Interval& range) const;
  v1::ComputeMetrics Message(const Computation& computation) const;
  void CheckInvariants() const;

  Options options_;
  std::vector<Interval> free_;
  std::map<uint64_t, std::vector<Lease>> leased_;  // by incarnation
  std::set<uint64_t> slow_;                        // have not answered in time
  IntervalSet done_;
  std::map<uint64_t, Part> parts_;  // by their first position
  size_t state_bytes_ = 0;          // of all parts
  std::vector<Computation> computations_;
  bool diverged_ = false;
  int max_errors_ = 16;
  int errors_ = 0;
  std::string last_error_;
  std::string note_;
};

// The value of a metric by its name in a manifest: loss, accuracy, perplexity, or one of the
// program's own. None if the evaluation has no such value, and for an empty name.
std::optional<double> MetricOf(const v1::Evaluation& result, absl::string_view name);

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_CORE_EVALUATION_EVALUATION_H_
