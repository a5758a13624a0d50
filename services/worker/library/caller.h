// The program that computes for a worker, as the worker's shell sees it: a model and data that are
// described once, and work that one thread takes and answers.
//
// Intuition. sluice-worker has a thread that takes a batch through LibTorch from beginning to end.
// Here the program's own thread does that, between Next and Done, so the work of the core is a
// queue, its results are separate calls, without a thread of the library in between. What the
// program reads stays as it is until it asks for more work, even if the core adopts a newer version
// meanwhile (TensorBuffers::Hold).
//
// A Caller outlives the instances of its worker: one that is expelled by mistake is followed by
// another, with the same model and the same memory.
#ifndef SLUICE_SERVICES_WORKER_LIBRARY_CALLER_H_
#define SLUICE_SERVICES_WORKER_LIBRARY_CALLER_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "include/sluice/worker.h"
#include "proto/common.pb.h"
#include "proto/control.pb.h"
#include "proto/job.pb.h"
#include "proto/model.pb.h"
#include "services/common/threads/mutex.h"
#include "services/protocol/row_selection.h"
#include "services/protocol/samples/sequence.h"
#include "services/shell/core_shell.h"
#include "services/worker/compute/tensor_buffers.h"
#include "services/worker/core/worker_core.h"
#include "services/worker/library/call_result.h"
#include "services/worker/model_runner.h"

namespace sluice::worker {

class Caller {
 public:
  explicit Caller(uint32_t index) : index_(index) {}

  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;

  // ---- for the worker's thread

  // For a new instance, which is the current one from now on: the program's calls have their effect
  // there. The Caller must outlive it.
  std::unique_ptr<ModelRunner> MakeRunner(CoreShell<WorkerCore>* shell);
  // The instance's shell takes events from now on. False: the program has left or has ended the
  // worker. A StopJob that came earlier is passed on.
  bool OnStarted();

  // Blocks until the program uses nothing of the instance that has ended, or has ended the worker.
  // Then its shell may be destroyed.
  void WaitUntilUnused();
  // Waits for `duration`. False, at once: the program has left or has ended the worker.
  bool Sleep(absl::Duration duration);
  // No instance follows: Next returns `end` from now on. Work that the program has is dropped: its
  // results are accepted and have no effect.
  void End(CallResult end);

  // ---- for the program. Which threads: include/sluice/worker.h.

  // Blocks until the job has registered the worker or has ended; OK in the first case. Otherwise
  // the end that Next would return.
  CallResult WaitForJob();
  // Once WaitForJob has returned OK; constant. As in WorkerOptions::job, and a serialized JobSpec.
  const std::string& job_name() const { return job_name_; }
  const std::string& job_spec() const { return job_spec_; }

  // The model; WRONG_STATE after Open. `initial`: the whole value at version 0.
  // `rows`: only the rows that FindRows has named are pulled.
  CallResult AddTensor(v1::TensorSpec spec, std::string initial, bool rows);
  // `traits`: of the Ready, everything but the tensors, the numbers of samples and the digests.
  CallResult Describe(v1::Ready traits);
  // Workers of a job must give the same hash by this name. At most kMaxDigests.
  CallResult AddDigest(std::string name, uint64_t hash);
  // Evaluations then need its state, and ComputeMetrics its value. At most kMaxMetrics.
  CallResult AddMetric(const std::string& name);
  // The model is complete: allocates its memory, and reports it (Ready) once the job is known.
  CallResult Open(uint64_t training_samples, uint64_t evaluation_samples);
  // OK: `work` is filled; its pointers are valid until Done. TIMEOUT: there is no work so far.
  // BUSY: another thread is in Next or Sum. WRONG_STATE: before Open, or before Done for the last
  // work. After End, every call returns its result.
  CallResult Next(absl::Duration timeout, sluice_work* work);
  // The tensor's memory: of the version to evaluate during such work, otherwise of the version that
  // was current when Next returned. Constant until the next Next. `bytes` may be null.
  CallResult Parameter(uint32_t tensor, const void** data, size_t* bytes) const;
  // Results of the work. WRONG_STATE: there is no work that takes them, or this one was given
  // already. Those of dropped work are accepted and have no effect. The weight comes before the
  // first gradient.
  CallResult GiveWeight(double weight);
  // Replaces `values` by their sum over the step's workers; blocks until all have given theirs.
  // TIMEOUT: call again with the same arguments. `abandoned`: the work was dropped, and there is no
  // sum.
  CallResult Sum(const std::string& name, double* values, size_t count, absl::Duration timeout,
                 bool* abandoned);
  // `token`: names the memory of `data`, which must not change until Released returns it; 0: the
  // data is copied.
  CallResult GiveGradient(uint32_t tensor, absl::string_view data, uint64_t token);
  CallResult GiveRowGradient(uint32_t tensor, const std::vector<uint64_t>& rows,
                             absl::string_view values, uint64_t token);
  CallResult GiveNoGradient(uint32_t tensor);
  CallResult GiveBufferChange(uint32_t tensor, absl::string_view data);
  // For FindRows: the rows that its samples name, in any order and repeated; several calls add up.
  CallResult GiveRows(uint32_t tensor, const uint64_t* rows, size_t count);
  // For an evaluation: the state over its samples, in a format of the program's own.
  CallResult GiveMetricState(uint32_t metric, absl::string_view state);
  // For ComputeMetrics: how many parts an evaluation had, and the state of one; valid until Done.
  CallResult MetricParts(size_t* parts) const;
  CallResult MetricPart(uint32_t metric, size_t part, const void** state, size_t* bytes) const;
  // For ComputeMetrics: the value over all parts; `note` explains a missing one.
  CallResult GiveMetricValue(uint32_t metric, double value, absl::string_view note);
  // Ends the work. WRONG_STATE: there is no work, or a result is missing. BUSY: another thread is
  // in Sum.
  CallResult Done(const sluice_result& result);
  // Writes at most `capacity` tokens whose memory is the program's again, each once; returns how
  // many.
  size_t Released(uint64_t* tokens, size_t capacity);
  // OK until End; then its result.
  CallResult Ended() const;
  // Whether the work was dropped, so that its results are no longer needed.
  bool Cancelled() const;
  // The version that Parameter returns outside of evaluations.
  uint64_t Position() const;
  // The samples at positions [first, first + count) of the sequence of this worker.
  CallResult Indices(uint64_t first, uint64_t count, uint64_t* indices) const;
  // No instance follows. Fail also fails the job.
  void Leave(std::string reason, absl::Duration grace);
  void Fail(const std::string& reason);
  // Requests to the job. StopJob is repeated by later instances, SaveJob is not.
  void StopJob(std::string reason);
  void SaveJob();

  bool leaving() const;
  // False: a thread of the program is in a call. Otherwise the worker ends: Next returns ENDED, and
  // WaitUntilUnused and Sleep return at once.
  bool StopIfIdle();

 private:
  class Runner;
  using Request = std::variant<Compute, EvaluateSamples, FindRows, ComputeMetrics>;

  // Tokens whose memory is the program's again. Cords may outlive the Caller.
  struct Tokens {
    Mutex mutex;
    std::vector<uint64_t> released ABSL_GUARDED_BY(mutex);
  };

  // Work that the program has, and everything that it has given for it.
  struct Work {
    Request request;
    uint64_t instance = 0;
    bool dropped = false;  // cancelled, or of an instance that has ended
    bool evaluation_buffer = false;
    std::vector<bool> given;        // by tensor; of an evaluation or ComputeMetrics, by metric
    std::optional<size_t> summing;  // numbers of the sum that is waited for
    std::optional<absl::Cord> sum;  // it
    bool weighted = false;
    double weight = 0;  // EvaluateSamples: if weighted
    std::vector<uint64_t> indices;
    std::vector<uint64_t> positions;  // empty: held-out samples have none
    RowSelections rows;
    std::vector<v1::MetricState> states;  // of an evaluation
    v1::MetricValues values;              // of ComputeMetrics
  };

  // Marks a call in progress that uses the shell: the shell is not destroyed meanwhile.
  class Use;

  // ---- for the runner, on the executor

  // The instance has registered. The first one's job is the worker's.
  void OnJob(const v1::JobSpec& job);
  void Queue(Request request);
  void Cancel(ComputeId id);
  void OnSum(const GiveSum& give);
  absl::Cord InitialTensor(uint32_t tensor) const;
  // Drops the instance's work and waits for calls that are using its shell.
  void OnStopped();

  // Once for each instance, when the job is known and the model is open.
  void SendReady();
  // Makes the request the program's work and describes it in `out`.
  void Begin(Request request, sluice_work* out) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool WaitBeforeStep(absl::Time deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The positions of the samples; with PER_WORKER in this worker's own sequence, which a Compute
  // advances.
  std::vector<PositionRange> PositionsOf(const Request& request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  CallResult CheckComputing() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The work's request; null: the work is not a ComputeMetrics.
  const v1::ComputeMetrics* Computation() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  CallResult CheckMetric(uint32_t metric) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  CallResult CheckSum(const std::string& name, size_t count) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  CallResult CheckAllGiven() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  CallResult CheckTensor(uint32_t tensor, v1::TensorKind kind) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Gives a gradient, some rows of one (`rows` is not null) or the change of a buffer.
  CallResult GiveTensor(uint32_t tensor, v1::TensorKind kind, absl::string_view data,
                        const std::vector<uint64_t>* rows, uint64_t token);
  // A cord over the program's memory, which releases the token with its last reference; a copy for
  // token 0.
  absl::Cord Refer(absl::string_view data, uint64_t token) const;
  // No instance follows; the one that runs gets the event.
  template <typename Event>
  void LeaveWith(Event event);
  // The instance that runs gets the event.
  template <typename Event>
  void Tell(Event event);

  const uint32_t index_;
  const std::shared_ptr<Tokens> tokens_ = std::make_shared<Tokens>();

  std::string stop_reason_ ABSL_GUARDED_BY(mutex_);  // of StopJob; each instance asks for it

  // Set once, before WaitForJob returns OK.
  std::string job_name_;
  std::string job_spec_;

  // Constant from Open on.
  v1::TensorTable table_;
  v1::Ready traits_;
  std::vector<v1::DataDigest> digests_;
  std::vector<std::string> metrics_;
  std::vector<std::shared_ptr<const std::string>> initial_;
  std::vector<uint32_t> row_tensors_;
  std::unique_ptr<TensorBuffers> buffers_;

  mutable Mutex mutex_;  // protects the members below; never held while the shell is called
  CondVar changed_;
  std::optional<v1::JobSpec> job_ ABSL_GUARDED_BY(mutex_);
  bool opened_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t training_samples_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t evaluation_samples_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<SampleOrder> order_ ABSL_GUARDED_BY(mutex_);
  uint64_t walked_ ABSL_GUARDED_BY(mutex_) = 0;  // data.partitioning: PerWorker

  CoreShell<WorkerCore>* shell_ ABSL_GUARDED_BY(mutex_) = nullptr;  // null: no instance runs
  uint64_t instance_ ABSL_GUARDED_BY(mutex_) = 0;                   // the newest
  bool started_ ABSL_GUARDED_BY(mutex_) = false;                    // the instance's shell
  bool registered_ ABSL_GUARDED_BY(mutex_) = false;                 // the instance has the job
  bool ready_sent_ ABSL_GUARDED_BY(mutex_) = false;                 // of the instance
  uint64_t version_ ABSL_GUARDED_BY(mutex_) = 0;                    // the current one
  uint64_t held_version_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<Request> queue_ ABSL_GUARDED_BY(mutex_);
  ComputeId delayed_ ABSL_GUARDED_BY(mutex_) = 0;  // waits for the job's delay until ...
  absl::Time delayed_until_ ABSL_GUARDED_BY(mutex_);
  std::optional<Work> work_ ABSL_GUARDED_BY(mutex_);  // with the program

  bool in_next_ ABSL_GUARDED_BY(mutex_) = false;
  bool in_sum_ ABSL_GUARDED_BY(mutex_) = false;
  int uses_ ABSL_GUARDED_BY(mutex_) = 0;
  bool leaving_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<CallResult> end_ ABSL_GUARDED_BY(mutex_);
};

// Keeps the shell alive while a call of the program uses it.
class Caller::Use {
 public:
  explicit Use(Caller* caller) ABSL_EXCLUSIVE_LOCKS_REQUIRED(caller->mutex_) : caller_(caller) {
    ++caller_->uses_;
  }
  ~Use() {
    MutexLock lock(&caller_->mutex_);
    if (--caller_->uses_ == 0) caller_->changed_.SignalAll();
  }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

 private:
  Caller* const caller_;
};

}  // namespace sluice::worker

#endif  // SLUICE_SERVICES_WORKER_LIBRARY_CALLER_H_
