#include "services/coordinator/core/facts/training_mode.h"

#include <algorithm>
#include <limits>
#include <map>

#include "absl/strings/str_cat.h"
#include "services/common/check.h"
#include "services/coordinator/core/decisions/batch_size.h"
#include "services/protocol/interval_set.h"

namespace sluice::coordinator {
namespace {

class Synchronous final : public TrainingMode {
 public:
  explicit Synchronous(const Facts& facts) : TrainingMode(facts, /*synchronous=*/true) {}

  bool InStep() const override { return true; }

  uint64_t Samples() const override {
    if (attempt().facts().shards.empty() || !attempt().model.length.has_value()) return 0;
    const uint64_t committed = training().committed();
    return length().SamplesAt(training().has_view() ? std::max(training().LowestClosed(), committed)
                                                    : committed);
  }
  uint64_t ShownStep() const override { return training().committed(); }
  uint64_t ShownSamples() const override { return length().SamplesAt(ShownStep()); }
  uint64_t ScheduleStep() const override { return training().LowestClosed(); }
  // All shards must have closed the last step; one shard's `committed` is not enough.
  bool Complete() const override {
    return std::min(training().committed(), training().LowestClosed()) >= length().total_steps();
  }
  // In a view without workers no step closes, whatever a shard reports.
  uint64_t FinalVersion() const override {
    return training().view().workers().empty() ? training().view().first_step()
                                               : training().LowestClosed();
  }

  Decision Decide(const absl::flat_hash_set<uint64_t>& /*staying*/) const override {
    const ViewChange& change = training().change();
    return DecideSynchronous(attempt().facts(), change.replies(), change.installs(), facts_.rules);
  }
  // A member has at least one microbatch; further workers are standbys.
  size_t MaxMembers() const override { return MostRanges(DivisionOf(facts_)); }
  void DivideWork(const std::vector<double>& speeds, v1::View* view) const override {
    SLUICE_DCHECK(
        speeds.size() == static_cast<size_t>(view->workers_size()) && speeds.size() <= MaxMembers(),
        "each member has a speed, and gets a microbatch");
    const std::vector<Interval> ranges = Divide(DivisionOf(facts_), speeds);
    for (size_t i = 0; i < ranges.size(); ++i) {
      if (ranges[i].empty()) continue;
      *view->mutable_workers(static_cast<int>(i))->add_microbatches() = ToProto(ranges[i]);
    }
  }
  uint64_t BatchSizeOf(const Process& /*worker*/) const override { return 0; }
  std::string WhyOverdue(const std::string& shard, uint64_t closed,
                         absl::Duration limit) const override {
    return absl::StrCat("has sent ", shard, " no gradients of step ", closed, " in ",
                        absl::FormatDuration(limit));
  }
  std::vector<uint64_t> IdleLeaseholders() const override { return {}; }
  uint64_t InstalledBarrier(uint64_t step) const override { return step; }

  uint64_t ScheduleStepOf(const Snapshot& snapshot) const override { return snapshot.step; }
  uint64_t SamplesOf(const Snapshot& snapshot) const override {
    return length().SamplesAt(snapshot.step);
  }
  uint64_t DoneStepOf(const Snapshot& snapshot) const override { return snapshot.step; }
};

class Asynchronous : public TrainingMode {
 public:
  explicit Asynchronous(const Facts& facts) : TrainingMode(facts, /*synchronous=*/false) {}

  bool InStep() const override { return false; }

  uint64_t Samples() const override {
    if (attempt().facts().shards.empty() || !attempt().model.length.has_value()) return 0;
    return training().arbiter().samples;
  }
  uint64_t ShownStep() const override { return training().HighestClosed(); }
  uint64_t ShownSamples() const override { return Samples(); }
  uint64_t ScheduleStep() const override { return length().BatchesIn(Samples()); }
  bool Complete() const override { return Samples() >= length().total_samples(); }
  // Where no update can follow, the view determines it, whatever a shard reports.
  uint64_t FinalVersion() const override {
    const bool over = training().view().workers().empty() || BeganComplete();
    return over ? training().view().first_step() : training().HighestClosed();
  }

  Decision Decide(const absl::flat_hash_set<uint64_t>& staying) const override {
    const ViewChange& change = training().change();
    return DecideAsynchronous(attempt().facts(), change.replies(), staying, change.installs(),
                              facts_.rules);
  }
  size_t MaxMembers() const override { return std::numeric_limits<size_t>::max(); }
  void DivideWork(const std::vector<double>& /*speeds*/, v1::View* /*view*/) const override {}
  uint64_t BatchSizeOf(const Process& worker) const override {
    const v1::TrainingSpec& spec = facts_.job().training();
    if (spec.max_batch_size() == 0 || !training().IsMember(worker.incarnation())) return 0;
    std::vector<double> speeds;
    for (const auto& member : training().view().workers()) {
      speeds.push_back(facts_.meter.SpeedOf(member.process().incarnation()));
    }
    return BatchSize(facts_.meter.SpeedOf(worker.incarnation()), speeds,
                     {spec.global_batch_size(), spec.min_batch_size(), spec.max_batch_size()});
  }
  std::string WhyOverdue(const std::string& /*shard*/, uint64_t /*closed*/,
                         absl::Duration limit) const override {
    return IdleLeaseholderReason(limit);
  }
  std::vector<uint64_t> IdleLeaseholders() const override {
    std::vector<uint64_t> workers;
    for (const auto& [worker, clock] : LeaseholderClocks()) workers.push_back(worker);
    return workers;
  }
  uint64_t InstalledBarrier(uint64_t step) const override {
    return length().SamplesOfBatches(step);
  }

  uint64_t ScheduleStepOf(const Snapshot& snapshot) const override {
    return length().BatchesIn(SamplesOf(snapshot));
  }
  uint64_t SamplesOf(const Snapshot& snapshot) const override { return SamplesIn(snapshot.ledger); }
  uint64_t DoneStepOf(const Snapshot& /*snapshot*/) const override { return ScheduleStep(); }

 protected:
  // Whether all samples of the attempt were applied when the view began.
  bool BeganComplete() const {
    if (!training().has_view()) return false;
    const uint64_t end = attempt().last_position;
    return SamplesIn(training().change().install().ledger()) >=
           (end != 0 ? end : length().total_samples());
  }
  // By incarnation.
  std::map<uint64_t, uint64_t> LeaseholderClocks() const {
    std::map<uint64_t, uint64_t> clocks;
    const auto arbiter = training().change().replies().find(attempt().arbiter());
    if (arbiter == training().change().replies().end()) return clocks;  // it is gone
    for (const v1::LeaseRecord& lease : arbiter->second.leases()) clocks[lease.worker()] = 0;
    for (const v1::ClockRecord& record : arbiter->second.clocks()) {
      const auto holder = clocks.find(record.worker());
      if (holder != clocks.end()) holder->second = record.clock();
    }
    return clocks;
  }
};

class BoundedStaleness final : public Asynchronous {
 public:
  using Asynchronous::Asynchronous;

  bool InStep() const override { return facts_.job().training().max_staleness() == 0; }

  // Faster workers may be waiting for the slowest: only the slowest are idle.
  std::vector<uint64_t> IdleLeaseholders() const override {
    const std::map<uint64_t, uint64_t> clocks = LeaseholderClocks();
    uint64_t lowest = std::numeric_limits<uint64_t>::max();
    for (const auto& [worker, clock] : clocks) lowest = std::min(lowest, clock);

    std::vector<uint64_t> slowest;
    for (const auto& [worker, clock] : clocks) {
      if (clock == lowest) slowest.push_back(worker);
    }
    return slowest;
  }
};

}  // namespace

std::unique_ptr<TrainingMode> MakeSynchronousMode(const Facts& facts) {
  return std::make_unique<Synchronous>(facts);
}
std::unique_ptr<TrainingMode> MakeAsynchronousMode(const Facts& facts) {
  return std::make_unique<Asynchronous>(facts);
}
std::unique_ptr<TrainingMode> MakeBoundedStalenessMode(const Facts& facts) {
  return std::make_unique<BoundedStaleness>(facts);
}

Division DivisionOf(const Facts& facts) {
  const StepSchedule& plan = facts.attempt.model.length->plan();
  return {.microbatches = plan.MicrobatchesPerStep(),
          .aligned = facts.job().training().bit_exact(),
          .smallest = facts.attempt.model.ready->smallest_batch(),
          .microbatch_size = plan.microbatch_size(),
          .steps = {plan.PositionsOf(0).size(), plan.PositionsOf(plan.StepsPerEpoch() - 1).size()}};
}

uint64_t SamplesIn(const v1::Ledger& ledger) {
  uint64_t samples = 0;
  for (const v1::Range& range : ledger.applied()) samples += range.end() - range.begin();
  return samples;
}

std::string IdleLeaseholderReason(absl::Duration limit) {
  return absl::StrCat("holds samples and has applied nothing in ", absl::FormatDuration(limit));
}

}  // namespace sluice::coordinator
