#include "tests/simulation/worker_process.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "services/protocol/ids.h"
#include "services/protocol/member_exit.h"
#include "services/protocol/row_selection.h"
#include "tests/simulation/shard_process.h"

namespace sluice::simulation {
namespace {

// The program's own metric: the number of evaluated samples. Its state names the samples.
constexpr char kSampleCount[] = "sample_count";

// The loss of held-out samples whose weight is 0: it must not count.
constexpr double kUncountedLoss = 1000;
// That a computation needs, with `sync`.
constexpr uint32_t kSums = 3;

std::string StateOf(uint64_t begin, uint64_t end) { return absl::StrCat(begin, " to ", end); }

}  // namespace

WorkerProcess::WorkerProcess(Cluster* cluster, uint32_t index, uint64_t incarnation)
    : Member(cluster, absl::StrCat("worker-", index)),
      index_(index),
      incarnation_(incarnation),
      core_(
          cluster, this,
          [&] {
            worker::WorkerOptions options;
            options.process = MakeProcessId(v1::WORKER, index, incarnation);
            options.job = cluster->job_name();
            return options;
          }(),
          cluster->scenario().worker_rules),
      current_(cluster->scenario().tensors),
      incoming_(cluster->scenario().tensors),
      evaluation_(cluster->scenario().tensors) {}

void WorkerProcess::Start() { LookForCoordinator(); }

void WorkerProcess::Leave() { core_.Event(&Core::OnAskedToStop, "SIGTERM", absl::Seconds(10)); }

void WorkerProcess::OnCoordinatorConnected() { core_.Event(&Core::OnCoordinatorConnected); }

void WorkerProcess::OnCoordinatorDisconnected() { core_.Event(&Core::OnCoordinatorDisconnected); }

void WorkerProcess::OnCoordinatorMessage(const v1::CoordinatorMessage& message) {
  if (message.has_new_view() && message.new_view().has_view()) {
    cluster_.checker().OnView(message.new_view().view());
  }
  core_.Event(&Core::OnCoordinatorMessage, message);
}

void WorkerProcess::On(const worker::ConnectShard& action) {
  auto self = std::static_pointer_cast<WorkerProcess>(shared_from_this());
  const uint64_t shard = action.shard;
  const uint64_t attempt = ++attempts_[shard];

  auto broken = [self, shard, attempt] {
    if (self->attempts_[shard] != attempt) return;
    self->shards_.erase(shard);
    self->core_.Event(&Core::OnShardDisconnected, shard, absl::UnavailableError("broken"));
  };

  cluster_.network().Open(
      self, [self, address = action.address] { return self->cluster_.FindShard(address); },
      [](const StreamRef& stream) {
        static_cast<ShardProcess*>(stream->server.process.get())->Accept(stream);
      },
      [self, shard, attempt, broken](const StreamRef& stream) {
        if (self->attempts_[shard] != attempt) {
          self->cluster_.network().CloseByClient(stream);
          return;
        }
        self->shards_[shard] = stream;
        stream->client.on_closed = broken;
        stream->on_frame = [self, shard, attempt](const v1::Header& header,
                                                  const absl::Cord& payload) {
          if (self->attempts_[shard] != attempt) return;
          if (header.has_permit()) {
            self->permits_.emplace(Order(header.view()), header.permit().clock());
          }
          self->core_.Event(&Core::OnShardFrame, shard, header, payload);
        };
        self->core_.Event(&Core::OnShardConnected, shard);
      },
      broken);
}

void WorkerProcess::On(const worker::DisconnectShard& action) {
  ++attempts_[action.shard];
  auto it = shards_.find(action.shard);
  if (it == shards_.end()) return;
  cluster_.network().CloseByClient(it->second);
  shards_.erase(it);
}

void WorkerProcess::On(const worker::SendFrame& action) {
  auto it = shards_.find(action.shard);
  if (it == shards_.end()) return;
  StreamRef stream = it->second;
  cluster_.TraceMessage(name(), static_cast<Member*>(stream->server.process.get())->name(),
                        action.header);
  cluster_.Record(action.header);
  // Permits bound the updates that wait in the shards' memory.
  const bool update = action.header.has_push() && action.header.push().clock() != 0;
  if (update && permits_.count({Order(action.header.view()), action.header.push().clock()}) == 0) {
    cluster_.checker().Fail(
        absl::StrCat(name(), " pushes update ", action.header.push().clock(), " without a permit"));
  }
  cluster_.network().ToServer(stream, [stream, header = action.header, payload = action.payload] {
    static_cast<ShardProcess*>(stream->server.process.get())->OnFrame(stream, header, payload);
  });
}

void WorkerProcess::On(const worker::SendToCoordinator& action) {
  DeliverToCoordinator(action.message);
}

void WorkerProcess::On(const worker::OpenModel&) {
  cluster_.scheduler().After(
      cluster_.random().Between(absl::Milliseconds(1), absl::Milliseconds(20)),
      [self = std::static_pointer_cast<WorkerProcess>(shared_from_this())] {
        self->Handle([self] {
          ToyModel& model = self->cluster_.model();
          self->core_->SetRowTensors(model.RowTensors());
          v1::Ready ready;
          *ready.mutable_table() = model.table();
          ready.set_training_samples(model.samples());
          ready.set_evaluation_samples(20);
          ready.add_metrics(kSampleCount);
          ready.set_smallest_batch(self->cluster_.scenario().smallest_batch);
          self->core_.Event(&Core::OnModelReady, std::move(ready));
        });
      });
}

void WorkerProcess::On(const worker::ReadInitialTensor& action) {
  cluster_.scheduler().After(
      absl::Microseconds(100),
      [self = std::static_pointer_cast<WorkerProcess>(shared_from_this()), action] {
        self->Handle([self, action] {
          Elements3 initial = self->cluster_.model().Initial(action.tensor);
          self->core_.Event(&Core::OnInitialTensor, action.init_id, action.tensor, ToCord(initial));
        });
      });
}

void WorkerProcess::On(const worker::StoreBlock& action) {
  Buffer& buffer = action.buffer == ComputeEngine::Buffer::kEvaluation ? evaluation_ : incoming_;
  // A requested row arrives as a whole block, which is smaller than the row with its header.
  if (action.codec != v1::CODEC_ROWS) buffer[action.tensor] = FromCord(action.payload);
}

void WorkerProcess::On(const worker::FindRows& action) {
  cluster_.scheduler().After(
      cluster_.random().Between(absl::Microseconds(20), absl::Milliseconds(2)),
      [self = std::static_pointer_cast<WorkerProcess>(shared_from_this()), action] {
        self->Handle([self, action] {
          const ToyModel& model = self->cluster_.model();
          RowSelections rows;
          for (uint32_t tensor : model.RowTensors()) {
            const bool named = std::any_of(
                action.positions.begin(), action.positions.end(),
                [&](const PositionRange& positions) { return model.Names(positions, tensor); });
            if (named) rows[tensor] = {0};
          }
          self->core_.Event(&Core::OnRows, action.id, rows);
        });
      });
}

void WorkerProcess::On(const worker::AdoptVersion& action) {
  if (working_) cluster_.checker().Fail("a worker adopts a version while it computes");
  std::swap(current_, incoming_);
  adopted_ = action.version;
}

void WorkerProcess::On(const worker::Compute& action) {
  if (cluster_.scenario().job.training().mode() == v1::SYNCHRONOUS) {
    if (action.step != adopted_) cluster_.checker().Fail("a worker computes on a wrong version");
    cluster_.checker().OnSynchronousCompute(core_->view().id(), action.step, action.positions,
                                            current_);
  }
  if (action.positions.size() < cluster_.scenario().smallest_batch) {
    cluster_.checker().Fail(absl::StrCat(name(), " computes ", action.positions.size(),
                                         " samples of step ", action.step, " at once"));
  }
  Job job;
  job.compute = action;
  jobs_.push_back(job);
  if (!working_) NextJob();
}

void WorkerProcess::On(const worker::CancelCompute& action) {
  for (Job& job : jobs_) {
    if (!job.evaluation && job.compute.id == action.id) job.cancelled = true;
  }
  if (summing_ && jobs_.front().cancelled) LeaveSum();
}

void WorkerProcess::On(const worker::EvaluateSamples& action) {
  const Buffer& read = action.buffer == ComputeEngine::Buffer::kCurrent ? current_ : evaluation_;
  cluster_.checker().OnEvaluate(read);
  Job job;
  job.loss = cluster_.model().LossOf(read[0]);
  job.evaluation = true;
  job.evaluate = action;
  jobs_.push_back(job);
  if (!working_) NextJob();
}

void WorkerProcess::On(const worker::ComputeMetrics& action) {
  uint64_t samples = 0;
  for (const v1::ComputeMetrics::Part& part : action.request.parts()) {
    const bool right =
        part.samples().begin() == samples && part.metrics_size() == 1 &&
        part.metrics(0).name() == kSampleCount &&
        part.metrics(0).state() == StateOf(part.samples().begin(), part.samples().end());
    if (!right) cluster_.checker().Fail("the states of a metric are not of each sample once");
    samples = part.samples().end();
  }
  v1::MetricValues values;
  v1::Metric& value = *values.add_metrics();
  value.set_name(kSampleCount);
  value.set_value(static_cast<double>(samples));
  cluster_.scheduler().After(
      cluster_.random().Between(absl::Microseconds(20), absl::Milliseconds(3)),
      [self = std::static_pointer_cast<WorkerProcess>(shared_from_this()), id = action.id, values] {
        self->Handle([self, id, values] { self->core_.Event(&Core::OnMetricValues, id, values); });
      });
}

void WorkerProcess::On(const worker::JoinGroup& action) {
  cluster_.groups().Join(
      incarnation_, action.view, action.plan,
      [self = std::static_pointer_cast<WorkerProcess>(shared_from_this())](
          const v1::ViewId& view, uint64_t step, absl::StatusOr<worker::ReducedPart> part) {
        self->Handle([self, view, step, part = std::move(part)] {
          self->core_.Event(&Core::OnReduced, view, step, part);
        });
      });
}

void WorkerProcess::On(const worker::LeaveGroup&) { cluster_.groups().Leave(incarnation_); }

void WorkerProcess::On(const worker::ReduceGradients& action) {
  cluster_.groups().Reduce(incarnation_, action.step, action.gradients);
}

// ---- sums over a step: the numbers of samples, their integers, and a random mark of each member

void WorkerProcess::AskForSum() {
  const worker::Compute& compute = jobs_.front().compute;
  summing_ = true;
  const double mark = static_cast<double>((cluster_.random().Next() >> 40) + 1);
  const Elements3 part = {static_cast<double>(compute.positions.size()),
                          cluster_.model().SumOf(compute.positions, 0), mark};
  core_.Event(&Core::OnSum, compute.id, absl::StrCat("sum ", sums_), ToCord(part));
}

void WorkerProcess::On(const worker::GiveSum& action) {
  if (!summing_ || jobs_.front().compute.id != action.id) {
    return cluster_.checker().Fail(
        absl::StrCat(name(), " receives a sum that it has not asked for"));
  }
  summing_ = false;
  const Elements3 sum = FromCord(action.values);
  cluster_.checker().OnSum(core_->view().id(), jobs_.front().compute.step, sums_, sum);
  ++sums_;
  cluster_.scheduler().After(
      cluster_.random().Between(absl::Microseconds(20), absl::Microseconds(400)),
      [self = std::static_pointer_cast<WorkerProcess>(shared_from_this()), mark = sum[2]] {
        self->Handle([self, mark] {
          if (self->jobs_.front().cancelled) return self->LeaveSum();
          if (self->sums_ < kSums) return self->AskForSum();
          const double samples = static_cast<double>(self->jobs_.front().compute.positions.size());
          self->Gradient(0, mark * samples);
        });
      });
}

// The computation was cancelled: the program ends it with any numbers.
void WorkerProcess::LeaveSum() {
  summing_ = false;
  cluster_.scheduler().After(
      cluster_.random().Between(absl::Microseconds(20), absl::Microseconds(400)),
      [self = std::static_pointer_cast<WorkerProcess>(shared_from_this())] {
        self->Handle([self] { self->Gradient(0, 1); });
      });
}

void WorkerProcess::NextJob() {
  working_ = !jobs_.empty();
  if (!working_) return;
  const absl::Duration time =
      cluster_.random().Between(absl::Microseconds(200), absl::Milliseconds(3));
  cluster_.scheduler().After(time,
                             [self = std::static_pointer_cast<WorkerProcess>(shared_from_this())] {
                               self->Handle([self] {
                                 if (self->jobs_.front().evaluation) {
                                   self->RunEvaluation();
                                 } else {
                                   self->RunCompute();
                                 }
                               });
                             });
}

void WorkerProcess::RunCompute() {
  const Job& job = jobs_.front();
  if (job.cancelled && cluster_.random().OneIn(2)) return FinishJob();
  const double tag = static_cast<double>((cluster_.random().Next() >> 32) + 1);
  if (cluster_.scenario().job.training().mode() != v1::SYNCHRONOUS) {
    cluster_.checker().OnUpdate(tag, job.compute.positions);
    cluster_.NoteUpdate(job.compute.positions.size());
  } else {
    cluster_.checker().OnContribution(tag, job.compute.step, job.compute.positions);
  }
  const std::optional<double> weight =
      cluster_.model().WeightOf(job.compute.step, job.compute.positions);
  if (weight) core_.Event(&Core::OnWeight, job.compute.id, *weight);
  if (!alive()) return;
  sums_ = 0;
  if (cluster_.scenario().job.training().sync() == v1::TrainingSpec::BATCH_NORM && !job.cancelled) {
    return AskForSum();
  }
  Gradient(0, tag);
}

// Delivers the gradients one tensor at a time, from the last tensor to the first.
void WorkerProcess::Gradient(size_t place, double tag) {
  if (place == current_.size()) return FinishJob();
  const worker::Compute compute = jobs_.front().compute;
  const auto tensor = static_cast<uint32_t>(current_.size() - 1 - place);
  ToyModel& model = cluster_.model();

  if (model.IsSilent(tensor)) {
    core_.Event(&Core::OnNoGradient, compute.id, tensor);
  } else {
    absl::Cord gradient = ToCord(model.Gradient(compute.step, compute.positions, tensor, tag));
    const bool table = model.table().tensors(static_cast<int>(tensor)).shape_size() == 2;
    if (table) {
      core_.Event(&Core::OnRowGradient, compute.id, tensor, std::vector<uint64_t>{0},
                  std::move(gradient));
    } else {
      core_.Event(&Core::OnGradient, compute.id, tensor, std::move(gradient));
    }
  }

  if (!alive()) return;
  cluster_.scheduler().After(
      cluster_.random().Between(absl::Microseconds(20), absl::Microseconds(400)),
      [self = std::static_pointer_cast<WorkerProcess>(shared_from_this()), place, tag] {
        self->Handle([self, place, tag] { self->Gradient(place + 1, tag); });
      });
}

void WorkerProcess::FinishJob() {
  const Job job = jobs_.front();
  jobs_.pop_front();
  working_ = false;
  worker::ComputeResult result;
  result.samples = job.compute.positions.size();
  result.loss_sum = 1;
  if (cluster_.scenario().job.training().max_batch_size() > 0) {
    // The reported time is deterministic; the simulated time is random.
    result.compute_time = absl::Milliseconds(1 + 2 * index_) * static_cast<double>(result.samples);
  }
  core_.Event(&Core::OnComputed, job.compute.id, result);
  if (alive() && !working_) NextJob();
}

void WorkerProcess::RunEvaluation() {
  const Job job = jobs_.front();
  jobs_.pop_front();
  working_ = false;
  worker::ComputeResult result;
  result.samples = job.evaluate.samples.size();
  result.weight = cluster_.model().HeldOutWeightOf(job.evaluate.samples);
  result.loss_sum =
      static_cast<double>(result.samples) * (result.weight == 0 ? kUncountedLoss : job.loss);
  result.metrics.emplace_back().set_name(kSampleCount);
  result.metrics.back().set_state(StateOf(job.evaluate.samples.begin, job.evaluate.samples.end));
  core_.Event(&Core::OnEvaluated, job.evaluate.id, result);
  if (alive() && !working_) NextJob();
}

void WorkerProcess::On(const Exit& action) {
  cluster_.OnWorkerExit(*this, action.reason == ExitReason::kFinished,
                        action.reason == ExitReason::kFailed, action.message);
}

}  // namespace sluice::simulation
