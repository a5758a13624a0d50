// Jobs under random deaths, freezes, broken streams, joins and restarts of the coordinator, by
// seed. In every case the job succeeds once the faults stop, and the shell never spins. More seeds,
// and one seed alone:
//
//   bazel test //services/coordinator/core:random_test --test_arg=--seeds=10000
//       --test_timeout=3600
//   bazel run //services/coordinator/core:random_test -- --first=839 --seeds=1
//       --gtest_filter=*.SynchronousJobsEndWell

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "services/coordinator/core/coordinator_core.h"
#include "services/coordinator/core/testing/fake_job.h"

ABSL_FLAG(uint64_t, first, 0, "first seed");
ABSL_FLAG(uint64_t, seeds, 150, "number of seeds of each mode");

namespace sluice::coordinator {
namespace {

constexpr int kEvents = 40;

class RandomSchedule {
 public:
  // With copies, shards also join, leave and are drained.
  RandomSchedule(uint64_t seed, v1::Mode mode, bool copies = false)
      : random_(seed), job_(Spec(mode, copies)), copies_(copies) {
    if (copies) job_.elements = 10'000'000;  // all partitions have blocks
  }

  void Run() {
    job_.Start();
    for (int event = 0; event < kEvents && !HasEnded(); ++event) {
      Disturb();
      Replace();
      Work(static_cast<int>(random_() % 3));
      ASSERT_FALSE(::testing::Test::HasFailure());
    }
    for (FakeShard* shard : job_.Shards()) shard->frozen = false;
    for (FakeWorker* worker : job_.Workers()) worker->frozen = false;
    for (int round = 0; round < 200 && !job_.exit.has_value(); ++round) {
      Reconnect();
      Replace();
      Work(1);
      job_.Pass(absl::Milliseconds(100));
    }
    ASSERT_TRUE(job_.exit.has_value()) << job_.Progress().DebugString() << Describe();
    EXPECT_EQ(job_.exit->reason, ExitReason::kSucceeded) << job_.exit->message;
    EXPECT_TRUE(job_.claims.back().end());
    for (size_t i = 0; i < job_.claims.size(); ++i) EXPECT_EQ(job_.claims[i].attempt(), i + 1);
    const uint64_t attempt = job_.claims.back().attempt() - 1;
    const bool synchronous = job_.spec.training().mode() == v1::SYNCHRONOUS;
    const uint64_t last = synchronous ? job_.spec.training().steps() : job_.Version();
    EXPECT_EQ(job_.checkpoint_indexes.count({attempt, last}), 1u);
    EXPECT_EQ(job_.Progress().samples(), job_.Progress().total_samples());
  }

 private:
  static v1::JobSpec Spec(v1::Mode mode, bool copies) {
    v1::JobSpec spec = FakeJob::Spec();
    if (copies) {
      spec.mutable_parameter_server()->set_replicas(3);
      spec.mutable_parameter_server()->set_copies(2);
      spec.mutable_parameter_server()->set_partitions(7);
    }
    spec.mutable_training()->set_mode(mode);
    spec.mutable_training()->set_steps(30);
    spec.mutable_checkpoint()->set_interval_steps(4);
    spec.mutable_data()->mutable_evaluation()->set_interval_steps(7);
    spec.set_backoff_limit(1000);
    return spec;
  }

  std::string Describe() {
    std::string text;
    for (const FakeShard* shard : job_.Shards()) {
      absl::StrAppend(&text, "ps-", shard->id.index(), ": stream ", shard->stream, ", version ",
                      shard->version, ", committed ", shard->committed, ", barrier ",
                      shard->barrier, shard->paused ? ", paused" : "",
                      shard->after.has_value() ? ", to pause" : "",
                      shard->CanClose() ? "" : ", cannot close");
      if (shard->snapshot.has_value()) {
        absl::StrAppend(&text, ", snapshot of step ", shard->snapshot->step(),
                        shard->pinned ? ", pinned" : "", shard->reported ? ", reported" : "",
                        shard->written ? ", written" : "");
      }
      absl::StrAppend(&text, "\n");
    }
    return text;
  }

  // The coordinator may still wait for processes that must learn of the end.
  bool HasEnded() {
    return job_.exit.has_value() || job_.Progress().phase() == v1::JobProgress::SUCCEEDED;
  }

  template <typename T>
  T* Any(std::vector<T*> of) {
    return of.empty() ? nullptr : of[random_() % of.size()];
  }

  void Disturb() {
    FakeWorker* worker = Any(job_.Workers());
    FakeShard* shard = Any(job_.Shards());
    switch (random_() % 12) {
      case 0:
      case 1:
        if (worker != nullptr) job_.Kill(*worker, random_() % 2 == 0);
        break;
      case 2:
        if (worker != nullptr) worker->frozen = !worker->frozen;
        break;
      case 3:
        if (worker != nullptr && worker->stream != 0) job_.Break(*worker);
        break;
      case 4:
        if (shard != nullptr && shard->stream != 0) job_.Break(*shard);
        break;
      case 5:
        if (shard != nullptr && random_() % 3 == 0) job_.Kill(*shard, random_() % 2 == 0);
        break;
      case 6:
        if (random_() % 4 == 0) job_.RestartCoordinator();
        break;
      case 7:
        if (shard != nullptr) shard->frozen = !shard->frozen;
        break;
      case 8:
        if (worker == nullptr) break;
        worker->evaluates = !worker->evaluates;
        if (worker->evaluates) job_.Break(*worker);  // the coordinator repeats open requests
        break;
      case 9:
        if (shard != nullptr) Work(1, shard);
        break;
      case 10:
        if (random_() % 3 > 0) {
          job_.OpenSnapshot(++snapshots_);
        } else if (snapshots_ > 0) {
          job_.EndSnapshot(1 + random_() % snapshots_);
        }
        break;
      default:
        if (copies_ && random_() % 2 == 0) ChangeShards(shard);
        job_.Pass(absl::Milliseconds(random_() % 3000));
    }
    if (random_() % 2 == 0) Reconnect();
  }

  void ChangeShards(FakeShard* shard) {
    if (random_() % 3 > 0) {
      job_.ScaleShards(static_cast<uint32_t>(1 + random_() % 4));
    } else if (shard != nullptr) {
      v1::MemberMessage message;
      message.mutable_leave()->set_reason("asked to stop by a signal");
      shard->Say(message);
      job_.Pump();
    }
  }

  // Processes reconnect; refused processes end.
  void Reconnect() {
    for (FakeShard* shard : job_.Shards()) {
      if (shard->stream == 0 && !shard->frozen && !shard->refusal.has_value()) {
        job_.Connect(*shard);
      }
    }
    for (FakeWorker* worker : job_.Workers()) {
      if (!worker->evaluates && random_() % 2 == 0) {
        worker->evaluates = true;
        job_.Break(*worker);  // the coordinator repeats open requests
      }
      if (worker->stream == 0 && !worker->frozen && !worker->refusal.has_value()) {
        job_.Connect(*worker);
      }
    }
    for (FakeShard* shard : job_.Shards()) {
      const bool released = copies_ && shard->finished && !HasEnded();
      if (shard->refusal.has_value() || released) job_.Kill(*shard);
    }
    for (FakeWorker* worker : job_.Workers()) {
      if (worker->refusal.has_value()) job_.Kill(*worker);
    }
  }

  // Restarts dead processes, as the process manager does.
  void Replace() {
    for (uint32_t index = 0; index < std::max(2u, job_.wanted_shards); ++index) {
      const auto has = [&](const auto& processes) {
        return std::any_of(processes.begin(), processes.end(),
                           [&](const auto* p) { return p->id.index() == index; });
      };
      if (index < job_.wanted_shards && !has(job_.Shards())) job_.AddShard(index);
      if (index < 2 && !has(job_.Workers()) && random_() % 2 == 0) job_.AddWorker(index);
    }
  }

  void Work(int steps, FakeShard* only = nullptr) {
    if (job_.spec.training().mode() == v1::SYNCHRONOUS) {
      if (only != nullptr) {
        job_.CloseOn({only});
      } else {
        job_.Train(steps);
      }
      return;
    }
    for (int i = 0; i < steps; ++i) {
      job_.Pass(absl::Milliseconds(100));
      FakeWorker* worker = Any(job_.Workers());
      if (worker == nullptr) continue;
      job_.FinishUpdates(*worker);
      if (!Aligned(*worker)) continue;
      const uint64_t done = job_.Shards().front()->ledger.Count();
      if (done >= job_.Progress().total_samples()) continue;
      std::vector<FakeShard*> not_yet;
      if (only != nullptr) not_yet.push_back(only);
      job_.Update(*worker, 32, not_yet);
    }
  }

  // Whether the worker can update all shards. An update that is staged on a shard comes first.
  bool Aligned(const FakeWorker& worker) {
    const v1::View& view = job_.core->view();
    const bool member = std::any_of(
        view.workers().begin(), view.workers().end(),
        [&](const auto& m) { return m.process().incarnation() == worker.id.incarnation(); });
    if (!member || worker.frozen || job_.Shards().size() != 2) return false;
    for (FakeShard* shard : job_.Shards()) {
      if (!shard->has_view || shard->paused || !shard->staged.empty()) return false;
      if (shard->view.id().SerializeAsString() != view.id().SerializeAsString()) return false;
    }
    return true;
  }

  std::mt19937_64 random_;
  FakeJob job_;
  bool copies_;
  uint64_t snapshots_ = 0;
};

void RunSeeds(v1::Mode mode, bool copies = false) {
  const uint64_t first = absl::GetFlag(FLAGS_first);
  for (uint64_t seed = first; seed < first + absl::GetFlag(FLAGS_seeds); ++seed) {
    SCOPED_TRACE(seed);
    RandomSchedule(seed, mode, copies).Run();
    ASSERT_FALSE(::testing::Test::HasFailure()) << "--first=" << seed << " --seeds=1";
  }
}

TEST(CoordinatorRandom, SynchronousJobsEndWell) { RunSeeds(v1::SYNCHRONOUS); }

TEST(CoordinatorRandom, JobsWithCopiesEndWell) { RunSeeds(v1::SYNCHRONOUS, /*copies=*/true); }

TEST(CoordinatorRandom, AsynchronousJobsEndWell) { RunSeeds(v1::ASYNCHRONOUS); }

}  // namespace
}  // namespace sluice::coordinator

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  absl::ParseCommandLine(argc, argv);
  return RUN_ALL_TESTS();
}
