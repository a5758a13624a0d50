// One evaluation: held-out samples, leased in ranges to members, all at one pinned version.
//
// Intuition: each evaluator gets one range proportional to its speed. A range whose evaluator died,
// failed or was too slow is given to another evaluator. The results are summed when every range is
// done.

#ifndef SLUICE_SERVICES_COORDINATOR_CORE_EVALUATION_H_
#define SLUICE_SERVICES_COORDINATOR_CORE_EVALUATION_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

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
    uint64_t samples = 0;  // positions [0, samples) of the held-out data; not 0
    uint64_t first = 0;    // also report the result of positions [0, first); 0: do not
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
  // When the next answer becomes overdue.
  absl::Time NextDeadline() const;
  // The ranges that an evaluator has not answered, to be sent again on a new stream.
  std::vector<v1::Evaluate> OwedBy(uint64_t incarnation) const;

  // A result or an error. A repeated or late result, and one of another attempt or version, has no
  // effect. A range with an error becomes free again.
  void OnResult(uint64_t incarnation, const v1::EvaluationResult& result);

  bool done() const { return done_.Count() == options_.samples; }
  // True after too many errors; last_error() says why.
  bool failed() const { return errors_ > kMaxErrors; }
  const std::string& last_error() const { return last_error_; }

  // Without epoch. Requires done().
  v1::Evaluation Result(absl::Time now) const { return ResultOf(all_, now); }
  // Of positions [0, first). Requires done(), and that it is wanted.
  v1::Evaluation FirstResult(absl::Time now) const { return ResultOf(first_, now); }
  bool has_first() const { return options_.first > 0; }

 private:
  static constexpr int kMaxErrors = 16;

  struct Lease {
    Interval range;
    absl::Time until;
  };

  struct Sums {
    double loss = 0;    // mean losses times their weights
    double weight = 0;  // of the samples in the mean loss
    double correct = 0;
    bool counted = true;  // in every result
    uint64_t count = 0;

    void Add(const v1::EvaluationResult& result);
  };

  v1::Evaluation ResultOf(const Sums& sums, absl::Time now) const;
  void TakeBack(const std::vector<Evaluator>& evaluators, absl::Time now);
  v1::Evaluate Message(const Interval& range) const;
  void CheckInvariants() const;

  Options options_;
  std::vector<Interval> free_;
  std::map<uint64_t, std::vector<Lease>> leased_;  // by incarnation
  std::set<uint64_t> slow_;                        // have not answered in time
  IntervalSet done_;
  Sums all_;
  Sums first_;
  int errors_ = 0;
  std::string last_error_;
};

// The value of a metric by its name in a manifest: loss, accuracy, perplexity, or one of the
// program's own. None if the evaluation has no such value, and for an empty name.
std::optional<double> MetricOf(const v1::Evaluation& result, absl::string_view name);

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_CORE_EVALUATION_H_
