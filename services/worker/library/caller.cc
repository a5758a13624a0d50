#include "services/worker/library/caller.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "services/common/arithmetic/splitmix64.h"
#include "services/common/text/utf8.h"
#include "services/protocol/elements.h"
#include "services/protocol/job_name.h"
#include "services/protocol/worker_limits.h"
#include "services/worker/store_block.h"

namespace sluice::worker {
namespace {

ComputeId IdOf(const Compute& compute) { return compute.id; }
ComputeId IdOf(const EvaluateSamples& evaluate) { return evaluate.id; }
// These cannot be cancelled.
ComputeId IdOf(const FindRows&) { return 0; }
ComputeId IdOf(const ComputeMetrics&) { return 0; }

}  // namespace

// Passes the core's requests on. One per instance.
class Caller::Runner final : public ModelRunner {
 public:
  Runner(Caller* caller, CoreShell<WorkerCore>* shell) : caller_(caller), shell_(shell) {}

  void Perform(OpenModel& open) override { caller_->OnJob(open.job); }
  void Perform(ReadInitialTensor& read) override {
    shell_->Event(Call(&WorkerCore::OnInitialTensor, read.init_id, read.tensor,
                       absl::StatusOr<absl::Cord>(caller_->InitialTensor(read.tensor))));
  }
  void Perform(Compute& compute) override { caller_->Queue(compute); }
  void Perform(FindRows& find) override { caller_->Queue(std::move(find)); }
  void Perform(EvaluateSamples& evaluate) override { caller_->Queue(evaluate); }
  void Perform(ComputeMetrics& compute) override { caller_->Queue(std::move(compute)); }
  void Perform(CancelCompute& cancel) override { caller_->Cancel(cancel.id); }
  void Perform(GiveSum& give) override { caller_->OnSum(give); }

  absl::Status Store(const StoreBlock& block) override {
    return StoreInto(caller_->table_, block,
                     [buffers = caller_->buffers_.get()](auto... arguments) {
                       return buffers->SetRange(arguments...);
                     });
  }

  absl::Status Adopt(uint64_t version) override {
    MutexLock lock(&caller_->mutex_);
    caller_->buffers_->Swap();
    caller_->version_ = version;
    return absl::OkStatus();
  }

  void Stop() override { caller_->OnStopped(); }

 private:
  Caller* const caller_;
  CoreShell<WorkerCore>* const shell_;
};

// ---- instances

std::unique_ptr<ModelRunner> Caller::MakeRunner(CoreShell<WorkerCore>* shell) {
  MutexLock lock(&mutex_);
  shell_ = shell;
  ++instance_;
  started_ = registered_ = ready_sent_ = false;
  return std::make_unique<Runner>(this, shell);
}

bool Caller::OnStarted() {
  std::string stop_reason;
  bool runs;
  {
    MutexLock lock(&mutex_);
    started_ = true;
    stop_reason = stop_reason_;
    runs = !leaving_ && !stopping_;
  }

  if (!stop_reason.empty()) {
    Tell(Call(&WorkerCore::OnJobRequest, v1::JobRequest::STOP, std::move(stop_reason)));
  }
  return runs;
}

void Caller::OnStopped() {
  MutexLock lock(&mutex_);
  shell_ = nullptr;
  queue_.clear();
  delayed_ = 0;
  if (work_) work_->dropped = true;
  changed_.SignalAll();
  // The tasks of calls in progress run out: the executor still takes them.
  while (uses_ > 0) changed_.Wait(&mutex_);
}

void Caller::WaitUntilUnused() {
  MutexLock lock(&mutex_);
  if (work_) work_->dropped = true;
  changed_.SignalAll();
  // The evaluated version is in memory that the next instance would write.
  while (work_ && work_->evaluation_buffer && !stopping_) changed_.Wait(&mutex_);
}

bool Caller::Sleep(absl::Duration duration) {
  const absl::Time until = absl::Now() + duration;
  MutexLock lock(&mutex_);
  while (!stopping_ && !leaving_ && absl::Now() < until) {
    changed_.WaitWithDeadline(&mutex_, until);
  }
  return !stopping_ && !leaving_;
}

void Caller::End(CallResult end) {
  MutexLock lock(&mutex_);
  end_ = std::move(end);
  queue_.clear();
  if (work_) work_->dropped = true;
  changed_.SignalAll();
}

bool Caller::StopIfIdle() {
  MutexLock lock(&mutex_);
  if (in_next_ || in_sum_ || uses_ > 0) return false;
  stopping_ = true;
  changed_.SignalAll();
  return true;
}

bool Caller::leaving() const {
  MutexLock lock(&mutex_);
  return leaving_ || stopping_;
}

void Caller::OnJob(const v1::JobSpec& job) {
  {
    MutexLock lock(&mutex_);
    if (!job_) {
      job_ = job;
      job_name_ = FullJobName(job);
      job_spec_ = job.SerializeAsString();
    }
    registered_ = true;
    changed_.SignalAll();
  }

  SendReady();
}

void Caller::SendReady() {
  CoreShell<WorkerCore>* shell;
  std::optional<Use> use;
  absl::Status status;
  {
    MutexLock lock(&mutex_);
    if (!opened_ || !registered_ || ready_sent_ || shell_ == nullptr) return;
    ready_sent_ = true;
    shell = shell_;
    use.emplace(this);

    const bool own_walk = job_->data().partitioning() == v1::DataSpec::PER_WORKER;
    const uint64_t seed = job_->training().seed();
    absl::StatusOr<SampleOrder> order =
        SampleOrder::Create({.samples = training_samples_,
                             .seed = own_walk ? SplitMix64At(seed, index_) : seed,
                             .shuffle = !job_->data().no_shuffle()});
    status = order.status();
    if (order.ok()) order_ = *std::move(order);
  }
  if (!status.ok()) return shell->Event(Call(&WorkerCore::OnModelFailed, status));

  shell->Event([this](WorkerCore& core, absl::Time now) {
    v1::Ready ready = traits_;
    *ready.mutable_table() = table_;
    for (const v1::DataDigest& digest : digests_) *ready.add_digests() = digest;
    *ready.mutable_metrics() = {metrics_.begin(), metrics_.end()};
    bool own_walk;
    {
      MutexLock lock(&mutex_);
      ready.set_training_samples(training_samples_);
      ready.set_evaluation_samples(evaluation_samples_);
      own_walk = job_->data().partitioning() == v1::DataSpec::PER_WORKER;
    }
    // The samples of a worker that walks on its own are not known ahead.
    if (!own_walk) core.SetRowTensors(row_tensors_);
    core.OnModelReady(std::move(ready), now);
  });
}

void Caller::Queue(Request request) {
  MutexLock lock(&mutex_);
  queue_.push_back(std::move(request));
  changed_.SignalAll();
}

void Caller::Cancel(ComputeId id) {
  CoreShell<WorkerCore>* shell = nullptr;
  {
    MutexLock lock(&mutex_);
    const auto is_cancelled = [&](const Request& request) {
      return std::visit([](const auto& r) { return IdOf(r); }, request) == id;
    };

    const auto waiting = std::find_if(queue_.begin(), queue_.end(), is_cancelled);
    if (waiting != queue_.end()) {
      queue_.erase(waiting);
      shell = shell_;
    } else if (work_ && is_cancelled(work_->request)) {
      work_->dropped = true;
    }
    changed_.SignalAll();
  }
  // On the executor: the event follows this one.
  if (shell != nullptr) shell->Event(Call(&WorkerCore::OnComputed, id, ComputeResult()));
}

void Caller::OnSum(const GiveSum& give) {
  MutexLock lock(&mutex_);
  const auto* compute = work_ ? std::get_if<Compute>(&work_->request) : nullptr;
  if (compute == nullptr || compute->id != give.id || !work_->summing) return;
  if (give.values.size() == *work_->summing * sizeof(double)) work_->sum = give.values;
  changed_.SignalAll();
}

absl::Cord Caller::InitialTensor(uint32_t tensor) const {
  const std::shared_ptr<const std::string>& content = initial_[tensor];
  return absl::MakeCordFromExternal(*content, [content] {});
}

// ---- joining and the model

CallResult Caller::WaitForJob() {
  MutexLock lock(&mutex_);
  while (!job_ && !end_) changed_.Wait(&mutex_);
  return end_ ? *end_ : CallResult();
}

CallResult Caller::AddTensor(v1::TensorSpec spec, std::string initial, bool rows) {
  MutexLock lock(&mutex_);
  if (opened_) return WrongState("the model is open: a tensor is added before");
  for (const v1::TensorSpec& other : table_.tensors()) {
    if (other.name() == spec.name()) return Invalid("there are two tensors '", spec.name(), "'");
  }

  if (rows && (spec.shape_size() != 2 || spec.kind() != v1::PARAMETER)) {
    return Invalid("rows of '", spec.name(), "': it is not a matrix of parameters");
  }

  const uint64_t bytes = ElementCount(spec) * ElementBytes(spec.dtype());
  if (initial.size() != bytes) {
    return Invalid("the initial value of '", spec.name(), "' has ", initial.size(),
                   " bytes, its shape [", absl::StrJoin(spec.shape(), ", "), "] needs ", bytes);
  }

  if (rows) row_tensors_.push_back(static_cast<uint32_t>(table_.tensors_size()));
  *table_.add_tensors() = std::move(spec);
  initial_.push_back(std::make_shared<const std::string>(std::move(initial)));
  return {};
}

CallResult Caller::Describe(v1::Ready traits) {
  MutexLock lock(&mutex_);
  if (opened_) return WrongState("the model is open: it is described before");
  traits_ = std::move(traits);
  return {};
}

CallResult Caller::AddDigest(std::string name, uint64_t hash) {
  MutexLock lock(&mutex_);
  if (opened_) return WrongState("the model is open: a digest is added before");

  if (name.empty() || name.size() > kMaxDigestNameBytes || !IsUtf8(name)) {
    return Invalid("the name of a digest must be UTF-8 of 1 to ", kMaxDigestNameBytes, " bytes");
  }

  for (const v1::DataDigest& other : digests_) {
    if (other.name() == name) return Invalid("there are two digests '", name, "'");
  }

  if (digests_.size() >= size_t{kMaxDigests}) {
    return Invalid("there are more than ", kMaxDigests, " digests");
  }

  v1::DataDigest& digest = digests_.emplace_back();
  digest.set_name(std::move(name));
  digest.set_hash(hash);
  return {};
}

CallResult Caller::Open(uint64_t training_samples, uint64_t evaluation_samples) {
  {
    MutexLock lock(&mutex_);
    if (opened_) return WrongState("the model is open already");
    if (end_) return *end_;

    if (std::none_of(table_.tensors().begin(), table_.tensors().end(),
                     [](const v1::TensorSpec& spec) { return spec.kind() == v1::PARAMETER; })) {
      return Invalid("the model has no parameter: call sluice_worker_add_tensor before");
    }

    if (training_samples == 0 || training_samples > kMaxSamples) {
      return Invalid(training_samples, " training samples: there must be 1 to ", kMaxSamples);
    }
    if (evaluation_samples > kMaxSamples) {
      return Invalid(evaluation_samples, " held-out samples: there may be at most ", kMaxSamples);
    }

    buffers_ = std::make_unique<TensorBuffers>(table_);
    training_samples_ = training_samples;
    evaluation_samples_ = evaluation_samples;
    opened_ = true;
  }

  SendReady();
  return {};
}

CallResult Caller::Parameter(uint32_t tensor, const void** data, size_t* bytes) const {
  MutexLock lock(&mutex_);
  if (!opened_) return WrongState("the model is not open: call sluice_worker_open before");
  if (tensor >= buffers_->tensors()) {
    return Invalid("there is no tensor ", tensor, ": the model has ", buffers_->tensors());
  }
  *data = work_ && work_->evaluation_buffer
              ? buffers_->data(TensorBuffers::Buffer::kEvaluation, tensor)
              : buffers_->held(tensor);
  if (bytes != nullptr) *bytes = buffers_->bytes(tensor);
  return {};
}

uint64_t Caller::Position() const {
  MutexLock lock(&mutex_);
  return held_version_;
}

// ---- the loop

CallResult Caller::Next(absl::Duration timeout, sluice_work* out) {
  const absl::Time deadline = absl::Now() + timeout;
  MutexLock lock(&mutex_);
  if (in_next_) return {SLUICE_BUSY, "another thread waits for work of this worker"};
  if (in_sum_) return {SLUICE_BUSY, "another thread waits for a sum of this worker's work"};
  if (!opened_) return WrongState("the model is not open: call sluice_worker_open before");
  if (work_ && !end_) return WrongState("the last work was not ended by sluice_worker_done");

  in_next_ = true;
  work_.reset();
  buffers_->Release();
  changed_.SignalAll();

  while (!end_ && !stopping_ && !work_) {
    if (queue_.empty()) {
      if (absl::Now() >= deadline) break;
      changed_.WaitWithDeadline(&mutex_, deadline);
    } else if (WaitBeforeStep(deadline)) {
      Request request = std::move(queue_.front());
      queue_.pop_front();
      Begin(std::move(request), out);
    } else if (absl::Now() >= deadline) {
      break;
    }
  }

  // Until the next call, the program may read the version that is current now.
  buffers_->Hold();
  held_version_ = version_;
  in_next_ = false;

  if (work_) return {};
  if (end_) return *end_;
  if (stopping_) return {SLUICE_ENDED, "the worker is closed"};
  return {SLUICE_TIMEOUT, "there is no work so far"};
}

// The job's delay before each step. False: check the queue and the time again.
bool Caller::WaitBeforeStep(absl::Time deadline) {
  const double seconds = job_->debug().step_delay_seconds();
  const auto* compute = std::get_if<Compute>(&queue_.front());
  if (seconds <= 0 || compute == nullptr) return true;
  if (delayed_ != compute->id) {
    delayed_ = compute->id;
    delayed_until_ = absl::Now() + absl::Seconds(seconds);
  }
  if (absl::Now() >= delayed_until_) return true;
  changed_.WaitWithDeadline(&mutex_, std::min(deadline, delayed_until_));
  return false;
}

std::vector<PositionRange> Caller::PositionsOf(const Request& request) {
  if (const auto* compute = std::get_if<Compute>(&request)) {
    if (job_->data().partitioning() != v1::DataSpec::PER_WORKER) return {compute->positions};
    const uint64_t begin = walked_;
    walked_ += compute->positions.size();
    return {{begin, walked_}};
  }
  if (const auto* find = std::get_if<FindRows>(&request)) {
    return {find->positions.begin(), find->positions.end()};
  }
  return {};  // EvaluateSamples, ComputeMetrics
}

void Caller::Begin(Request request, sluice_work* out) {
  work_ = Work();
  work_->instance = instance_;
  for (const PositionRange& range : PositionsOf(request)) {
    for (uint64_t p = range.begin; p < range.end; ++p) work_->positions.push_back(p);
    const std::vector<uint64_t> some = order_->IndicesOf(range);
    work_->indices.insert(work_->indices.end(), some.begin(), some.end());
  }

  if (const auto* evaluate = std::get_if<EvaluateSamples>(&request)) {
    work_->indices.resize(evaluate->samples.size());
    std::iota(work_->indices.begin(), work_->indices.end(), evaluate->samples.begin);
  }

  sluice_work work{};
  work.struct_size = sizeof work;
  work.indices = work_->indices.data();
  work.positions = work_->positions.empty() ? nullptr : work_->positions.data();
  work.samples = work_->indices.size();
  work.sum_of_means = job_->training().aggregation() == v1::TrainingSpec::SUM ? 1 : 0;
  work.kind = SLUICE_ROWS;

  if (const auto* compute = std::get_if<Compute>(&request)) {
    work.kind = SLUICE_GRADIENTS;
    work.step = compute->step;
    work.first_microbatch = compute->first_microbatch;
    work.microbatch_size = std::max<uint64_t>(1, compute->microbatch_size);
    work.microbatches = (work.samples + work.microbatch_size - 1) / work.microbatch_size;
    work.seed = SplitMix64At(SplitMix64At(job_->training().seed(), compute->step),
                             compute->first_microbatch);
    work_->given.resize(static_cast<size_t>(table_.tensors_size()));
  } else if (const auto* evaluate = std::get_if<EvaluateSamples>(&request)) {
    work.kind = SLUICE_EVALUATE;
    work_->evaluation_buffer = evaluate->buffer == ComputeEngine::Buffer::kEvaluation;
    work_->given.resize(metrics_.size());
    work_->states.resize(metrics_.size());
  } else if (std::holds_alternative<ComputeMetrics>(request)) {
    work.kind = SLUICE_METRICS;
    work_->given.resize(metrics_.size());
    for (const std::string& name : metrics_) work_->values.add_metrics()->set_name(name);
  } else {
    for (uint32_t tensor : row_tensors_) work_->rows[tensor] = {};
  }

  work_->request = std::move(request);
  *out = work;
}

CallResult Caller::Indices(uint64_t first, uint64_t count, uint64_t* indices) const {
  std::optional<SampleOrder> order;
  {
    MutexLock lock(&mutex_);
    order = order_;
  }
  if (!order) {
    return {SLUICE_WRONG_STATE, "the order of the samples is not known before the first work"};
  }

  const std::vector<uint64_t> found = order->IndicesOf({first, first + count});
  std::copy(found.begin(), found.end(), indices);
  return {};
}

bool Caller::Cancelled() const {
  MutexLock lock(&mutex_);
  return work_ && work_->dropped;
}

size_t Caller::Released(uint64_t* tokens, size_t capacity) {
  MutexLock lock(&tokens_->mutex);
  const size_t count = std::min(capacity, tokens_->released.size());
  std::copy_n(tokens_->released.begin(), count, tokens);
  tokens_->released.erase(tokens_->released.begin(),
                          tokens_->released.begin() + static_cast<std::ptrdiff_t>(count));
  return count;
}

// ---- the end

CallResult Caller::Ended() const {
  MutexLock lock(&mutex_);
  return end_ ? *end_ : CallResult();
}

void Caller::Leave(std::string reason, absl::Duration grace) {
  LeaveWith(Call(&WorkerCore::OnAskedToStop, std::move(reason), grace));
}

void Caller::Fail(const std::string& reason) {
  LeaveWith(Call(&WorkerCore::OnModelFailed, absl::InternalError(reason)));
}

void Caller::StopJob(std::string reason) {
  {
    MutexLock lock(&mutex_);
    if (!stop_reason_.empty()) return;
    stop_reason_ = reason;
  }
  Tell(Call(&WorkerCore::OnJobRequest, v1::JobRequest::STOP, std::move(reason)));
}

void Caller::SaveJob() {
  Tell(Call(&WorkerCore::OnJobRequest, v1::JobRequest::SAVE, std::string()));
}

template <typename Event>
void Caller::Tell(Event event) {
  CoreShell<WorkerCore>* shell;
  std::optional<Use> use;
  {
    MutexLock lock(&mutex_);
    shell = started_ ? shell_ : nullptr;
    use.emplace(this);
  }
  if (shell != nullptr) shell->Event(std::move(event));
}

template <typename Event>
void Caller::LeaveWith(Event event) {
  CoreShell<WorkerCore>* shell;
  std::optional<Use> use;
  {
    MutexLock lock(&mutex_);
    leaving_ = true;
    shell = started_ ? shell_ : nullptr;
    use.emplace(this);
    changed_.SignalAll();
  }
  if (shell != nullptr) shell->Event(std::move(event));
}

}  // namespace sluice::worker
