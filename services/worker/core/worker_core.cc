#include "services/worker/core/worker_core.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "services/common/check.h"
#include "services/common/status_macros.h"
#include "services/common/utf8.h"
#include "services/protocol/elements.h"
#include "services/protocol/ids.h"
#include "services/protocol/job_length.h"
#include "services/protocol/layout.h"
#include "services/protocol/wire_version.h"
#include "services/worker/core/asynchronous_worker.h"
#include "services/worker/core/evaluation_queue.h"
#include "services/worker/core/init_pusher.h"
#include "services/worker/core/registration.h"
#include "services/worker/core/synchronous_worker.h"
#include "services/worker/core/training_mode.h"
#include "services/worker/core/worker_context.h"

namespace sluice::worker {
namespace {

v1::Register MakeRegister(const WorkerOptions& options) {
  v1::Register request;
  *request.mutable_process() = options.process;
  request.set_job(options.job);
  request.set_host(options.host);
  request.set_pid(options.pid);
  request.set_metrics_address(options.metrics_address);
  return request;
}

}  // namespace

class WorkerCore::Impl {
 public:
  Impl(WorkerOptions options, const WorkerRules* rules) : options_(std::move(options)) {
    context_.rules = rules == nullptr ? &all_rules_ : rules;
    context_.incarnation = options_.process.incarnation();
  }

  // Every event runs in here: sets the time, handles the event, and then does the work that is due.
  template <typename Event>
  void Handle(absl::Time now, Event event) {
    if (exited_) return;
    context_.now = now;
    event();
    if (!exited_) Proceed();
    SLUICE_DCHECK(!exited_ || std::holds_alternative<Exit>(context_.actions.back()),
                  "Exit is the last action");
  }
  WorkerActions TakeActions() { return std::exchange(context_.actions, {}); }

  void OnCoordinatorConnected() { registration_.OnConnected(); }
  void OnCoordinatorMessage(const v1::CoordinatorMessage& message);
  void OnShardFrame(ShardId shard, const v1::Header& header, const absl::Cord& payload);
  void OnShardDisconnected(ShardId shard, const absl::Status& why);
  void OnShardConnected(ShardId shard);
  void OnModelReady(const v1::TensorTable& table, uint64_t training, uint64_t evaluation);
  void OnInitialTensor(const v1::InitId& init_id, uint32_t tensor,
                       absl::StatusOr<absl::Cord> content);
  void SetRowTensors(std::vector<uint32_t> tensors) { context_.row_tensors = std::move(tensors); }
  void OnRows(RowsId id, absl::StatusOr<RowSelections> rows);
  void OnTensor(ComputeId id, uint32_t tensor, std::optional<Gradient> gradient);
  void OnComputed(ComputeId id, const ComputeResult& result);
  void OnEvaluated(ComputeId id, const ComputeResult& result);
  void OnReduced(const v1::ViewId& view, uint64_t step, absl::StatusOr<ReducedPart> part);
  void OnAskedToStop(std::string reason, absl::Duration grace);
  void OnSent(absl::Time at) { context_.sent_at = std::max(context_.sent_at, at); }
  void OnCoordinatorDisconnected() { registration_.OnDisconnected(); }
  void Fail(const absl::Status& status);

  absl::Time NextDeadline() const;
  WorkerStatus Status() const;
  const v1::View& view() const { return context_.view; }

 private:
  void Proceed();
  void OnRegistered(const v1::Registered& registered);
  void OnRefusal(const v1::Refusal& refusal);
  void OnInitialize(const v1::Initialize& initialize);
  void OnNewView(const v1::NewView& message);
  void OnFinish(const v1::Finish& finish);
  void SetLayout(const v1::TensorTable& table, const v1::Layout& layout);
  void Adopt(const v1::View& view);
  void ChooseMode(const v1::View& old);
  const TrainingMode* ModeOf(const v1::View& view) const;
  void UpdateLinks();
  absl::Status HandleFrame(ShardLink& link, const v1::Header& header, const absl::Cord& payload);
  void OnRefused(ShardLink& link, const v1::Refused& refused);
  void OnLinkReady(ShardLink& link);
  void ExitNow(ExitReason reason, std::string message,
               v1::Refusal::Code refusal = v1::Refusal::UNSPECIFIED);

  const WorkerRules all_rules_;
  const WorkerOptions options_;
  WorkerContext context_;
  Registration registration_{&context_, MakeRegister(options_)};
  EvaluationQueue evaluations_{&context_};
  InitPusher init_pusher_{&context_};
  std::unique_ptr<TrainingMode> synchronous_, asynchronous_;
  TrainingMode* mode_ = nullptr;  // one of the two: the view's

  bool opening_ = false;
  bool was_member_ = false;
  bool exited_ = false;
};

// ---- coordinator

void WorkerCore::Impl::OnCoordinatorMessage(const v1::CoordinatorMessage& message) {
  if (!registration_.connected()) return;
  switch (message.body_case()) {
    case v1::CoordinatorMessage::kRegistered:
      return OnRegistered(message.registered());
    case v1::CoordinatorMessage::kRefusal:
      return OnRefusal(message.refusal());
    case v1::CoordinatorMessage::kInitialize:
      return OnInitialize(message.initialize());
    case v1::CoordinatorMessage::kNewView:
      return OnNewView(message.new_view());
    case v1::CoordinatorMessage::kEvaluate:
      return evaluations_.Add(message.evaluate());
    case v1::CoordinatorMessage::kFinish:
      return OnFinish(message.finish());
    case v1::CoordinatorMessage::kHeartbeatReply:
      context_.batch_size = message.heartbeat_reply().batch_size();
      return;
    default:  // meant for shards, or of a later version
      return;
  }
}

void WorkerCore::Impl::OnRegistered(const v1::Registered& registered) {
  if (!opening_) {
    opening_ = true;
    context_.job = registered.job();
    context_.actions.push_back(OpenModel{registered.job()});
  }
  registration_.OnRegistered();
}

void WorkerCore::Impl::OnRefusal(const v1::Refusal& refusal) {
  switch (refusal.code()) {
    case v1::Refusal::FINISHED:
      return ExitNow(ExitReason::kFinished, refusal.reason());
    case v1::Refusal::EXPELLED:
    case v1::Refusal::DUPLICATE:
      return ExitNow(registration_.leaves() ? ExitReason::kLeft : ExitReason::kExpelled,
                     refusal.reason(), refusal.code());
    case v1::Refusal::WIRE_VERSION:
      if (registration_.OfferOlderVersion()) return;
      return ExitNow(ExitReason::kRefused, refusal.reason(), refusal.code());
    default:
      return ExitNow(ExitReason::kRefused, refusal.reason(), refusal.code());
  }
}

void WorkerCore::Impl::OnFinish(const v1::Finish& finish) {
  registration_.SendProgress();
  registration_.SendLeave("the job has ended");
  ExitNow(finish.succeeded() ? ExitReason::kFinished : ExitReason::kFailed, finish.reason());
}

void WorkerCore::Impl::SetLayout(const v1::TensorTable& table, const v1::Layout& layout) {
  context_.table = table;
  context_.layout = layout;
  context_.index.emplace(context_.table, context_.layout);
}

void WorkerCore::Impl::OnInitialize(const v1::Initialize& initialize) {
  if (context_.view.has_id() && initialize.init_id().attempt() <= context_.view.id().attempt())
    return;
  RETURN_IF_ERROR(ValidateLayout(initialize.table(), initialize.layout()), Fail(_));
  if (initialize.owner_size() != static_cast<int>(initialize.layout().partitions()) ||
      std::any_of(initialize.owner().begin(), initialize.owner().end(), [&](uint32_t owner) {
        return owner >= static_cast<uint32_t>(initialize.shards_size());
      })) {
    return Fail(
        absl::InvalidArgumentError("an initialization without an owner for each partition"));
  }
  SetLayout(initialize.table(), initialize.layout());
  if (init_pusher_.Start(initialize)) UpdateLinks();
}

void WorkerCore::Impl::OnInitialTensor(const v1::InitId& init_id, uint32_t tensor,
                                       absl::StatusOr<absl::Cord> content) {
  if (!content.ok()) return Fail(content.status());
  const v1::TensorTable& table = context_.table;
  if (tensor >= static_cast<uint32_t>(table.tensors_size())) return;
  const v1::TensorSpec& spec = table.tensors(static_cast<int>(tensor));
  if (content->size() != ElementCount(spec) * ElementBytes(spec.dtype())) {
    return Fail(absl::InternalError(absl::StrCat("tensor ", spec.name(), " has ", content->size(),
                                                 " bytes, which does not fit its shape")));
  }
  init_pusher_.OnInitialTensor(init_id, tensor, *std::move(content));
}

void WorkerCore::Impl::OnNewView(const v1::NewView& message) {
  if (message.layout().partitions() != 0 && !context_.index) {
    RETURN_IF_ERROR(ValidateLayout(message.table(), message.layout()), Fail(_));
    SetLayout(message.table(), message.layout());
  }
  if (message.has_view()) Adopt(message.view());
}

// ---- views

void WorkerCore::Impl::Adopt(const v1::View& view) {
  if (!context_.index) return;  // the coordinator sends view and layout together
  if (Compare(view.id(), context_.view.id()) <= 0 && context_.rules->CompareViews()) return;
  RETURN_IF_ERROR(CheckView(view, context_.layout), Fail(_));

  const v1::View old = std::exchange(context_.view, view);
  init_pusher_.Stop();
  context_.ReadView();
  UpdateLinks();

  // If other members continue without this instance, it was expelled or is leaving. A view without
  // members ends training (at a target, for a suspension): its former members wait for Finish, and
  // the coordinator refuses a former member that was in fact expelled when it registers.
  const bool left_out = was_member_ && !context_.member;
  if (left_out && (view.workers_size() > 0 || registration_.leaves())) {
    return ExitNow(registration_.leaves() ? ExitReason::kLeft : ExitReason::kExpelled,
                   absl::StrCat("view ", ShortName(view.id()), " is without this worker"));
  }

  was_member_ = was_member_ || context_.member;
  ChooseMode(old);
  SLUICE_DCHECK(context_.QueuedBytes() == 0, "no frame of an older view waits to be sent");
  mode_->OnView(old);
  evaluations_.OnView(old.id().attempt() == view.id().attempt());
}

// An attempt may use a different mode than the previous attempt. Work in progress belongs to the
// older mode; the clock continues (R8), for later attempts that use it.
void WorkerCore::Impl::ChooseMode(const v1::View& old) {
  std::unique_ptr<TrainingMode>& wanted =
      context_.view.mode() == v1::SYNCHRONOUS ? synchronous_ : asynchronous_;
  if (mode_ != nullptr && mode_ != wanted.get()) {
    const bool member = std::exchange(context_.member, false);
    mode_->OnView(old);
    context_.member = member;
  }
  if (wanted == nullptr) {
    if (context_.view.mode() == v1::SYNCHRONOUS) {
      wanted = std::make_unique<SynchronousWorker>(&context_);
    } else {
      wanted = std::make_unique<AsynchronousWorker>(&context_);
    }
  }
  mode_ = wanted.get();
}

const TrainingMode* WorkerCore::Impl::ModeOf(const v1::View& view) const {
  return (view.mode() == v1::SYNCHRONOUS ? synchronous_ : asynchronous_).get();
}

void WorkerCore::Impl::UpdateLinks() {
  std::map<ShardId, std::string> wanted;
  const auto want = [&](const auto& shards) {
    for (const v1::View::Shard& shard : shards) {
      wanted[shard.process().incarnation()] = shard.address();
    }
  };

  if (init_pusher_.active()) want(init_pusher_.initialize().shards());
  if (context_.MayEvaluate()) want(context_.view.shards());

  for (auto it = context_.links.begin(); it != context_.links.end();) {
    it->second.DropQueue();  // frames of an older view
    if (wanted.count(it->first) == 0) {
      it->second.Close("the shard is not in the view", &context_.actions);
      it = context_.links.erase(it);
    } else {
      ++it;
    }
  }

  for (const auto& [shard, address] : wanted) {
    context_.links.try_emplace(shard, shard, address, context_.now);
  }
  SLUICE_DCHECK(context_.links.size() == wanted.size(), "a worker has one stream to each shard");
}

// ---- shards

void WorkerCore::Impl::OnShardConnected(ShardId shard) {
  auto it = context_.links.find(shard);
  if (it == context_.links.end()) return;
  v1::Header header;
  if (context_.view.has_id()) *header.mutable_view() = context_.view.id();
  v1::Hello& hello = *header.mutable_hello();
  hello.set_min_wire_version(SpokenWireVersions().oldest);
  hello.set_max_wire_version(SpokenWireVersions().newest);
  hello.set_job(options_.job);
  *hello.mutable_sender() = options_.process;
  hello.set_shard_incarnation(shard);
  it->second.OnConnected(header, &context_.actions);
}

void WorkerCore::Impl::OnShardDisconnected(ShardId shard, const absl::Status& why) {
  // The blocks behind this worker's references are gone: sending the references again is useless.
  if (context_.ByReference() && absl::IsDataLoss(why)) {
    return ExitNow(ExitReason::kExpelled, std::string(why.message()));
  }
  auto it = context_.links.find(shard);
  if (it != context_.links.end()) it->second.OnBroken(context_.now);
}

void WorkerCore::Impl::OnShardFrame(ShardId shard, const v1::Header& header,
                                    const absl::Cord& payload) {
  auto it = context_.links.find(shard);
  if (it == context_.links.end()) return;
  absl::Status status = HandleFrame(it->second, header, payload);
  if (status.ok() || exited_) return;
  it = context_.links.find(shard);
  if (it == context_.links.end()) return;
  it->second.Reset(std::string(status.message()), context_.now, &context_.actions);
}

absl::Status WorkerCore::Impl::HandleFrame(ShardLink& link, const v1::Header& header,
                                           const absl::Cord& payload) {
  switch (header.body_case()) {
    case v1::Header::kHelloReply:
      if (!link.OnHelloReply(header.hello_reply())) {
        return absl::InvalidArgumentError("an unexpected HelloReply");
      }
      OnLinkReady(link);
      return absl::OkStatus();
    case v1::Header::kCredit:
      link.OnCredit(header.credit().bytes(), &context_.actions);
      return absl::OkStatus();
    case v1::Header::kRefused:
      OnRefused(link, header.refused());
      return absl::OkStatus();
    case v1::Header::kInitialized:
      init_pusher_.OnInitialized(link, header.initialized());
      return absl::OkStatus();
    default:
      break;
  }
  if (mode_ == nullptr) return absl::OkStatus();
  SLUICE_DCHECK(context_.index.has_value(), "a view is adopted after its layout");
  if (!Same(header.view(), context_.view.id()) && context_.rules->IgnoreDataOfOtherViews()) {
    return absl::OkStatus();
  }
  if (header.body_case() == v1::Header::kData && header.data().snapshot_id() != 0) {
    return evaluations_.OnData(header.data(), payload);
  }
  return mode_->OnFrame(link, header, payload);
}

void WorkerCore::Impl::OnLinkReady(ShardLink& link) {
  init_pusher_.OnLinkReady(link);
  if (mode_ == nullptr) return;
  if (context_.member) mode_->OnLinkReady(link);
  if (context_.MayEvaluate()) evaluations_.OnLinkReady(link);
}

void WorkerCore::Impl::OnRefused(ShardLink& link, const v1::Refused& refused) {
  (void)link;
  if (Compare(refused.newest().id(), context_.view.id()) > 0) return Adopt(refused.newest());
  if (refused.snapshot_id() != 0)
    evaluations_.OnPullRefused(refused.snapshot_id(), refused.reason());
}

// ---- model and compute

void WorkerCore::Impl::OnModelReady(const v1::TensorTable& table, uint64_t training,
                                    uint64_t evaluation) {
  ASSIGN_OR_RETURN(context_.plan, StepScheduleOf(context_.job.training(), training), Fail(_));
  context_.training_samples = training;
  v1::Ready ready;
  *ready.mutable_table() = table;
  ready.set_training_samples(training);
  ready.set_evaluation_samples(evaluation);
  registration_.SetReady(std::move(ready));
}

void WorkerCore::Impl::Fail(const absl::Status& status) {
  constexpr size_t kMaxReasonBytes = 4096;
  v1::MemberMessage message;
  // The reason may quote a file, or the user's model.
  message.mutable_failure()->set_reason(CleanUtf8(status.message(), kMaxReasonBytes));
  registration_.Send(std::move(message));
  ExitNow(ExitReason::kFailed, std::string(status.message()));
}

void WorkerCore::Impl::OnRows(RowsId id, absl::StatusOr<RowSelections> rows) {
  if (!rows.ok()) return Fail(rows.status());
  for (const auto& [tensor, selected] : *rows) {
    if (tensor >= static_cast<uint32_t>(context_.table.tensors_size())) continue;
    const v1::TensorSpec& spec = context_.table.tensors(static_cast<int>(tensor));
    if (selected.empty() || selected.back() < static_cast<uint64_t>(spec.shape(0))) continue;
    return Fail(
        absl::InvalidArgumentError(absl::StrCat("a sample names row ", selected.back(), " of '",
                                                spec.name(), "', which has ", spec.shape(0))));
  }
  if (mode_ != nullptr) mode_->OnRows(id, *std::move(rows));
}

void WorkerCore::Impl::OnTensor(ComputeId id, uint32_t tensor, std::optional<Gradient> gradient) {
  if (mode_ == nullptr || context_.outstanding.count(id) == 0) return;
  if (tensor >= static_cast<uint32_t>(context_.table.tensors_size())) return;
  if (gradient && !context_.ByReference()) {
    RETURN_IF_ERROR(CheckGradient(context_.table.tensors(static_cast<int>(tensor)), *gradient),
                    Fail(_));
  }
  absl::Status status = mode_->OnTensor(id, tensor, std::move(gradient));
  if (!status.ok()) Fail(status);
}

void WorkerCore::Impl::OnComputed(ComputeId id, const ComputeResult& result) {
  if (context_.outstanding.erase(id) == 0 || mode_ == nullptr) return;
  // A process that the engine computes with is gone (server-side execution): a new incarnation
  // finds the processes that exist now.
  if (absl::IsUnavailable(result.status)) {
    // Shards may learn of the view without this worker before the worker does.
    if (registration_.leaves()) {
      return ExitNow(ExitReason::kLeft, registration_.leave_reason());
    }
    return ExitNow(ExitReason::kExpelled, std::string(result.status.message()));
  }
  if (!result.status.ok() && !absl::IsCancelled(result.status)) return Fail(result.status);
  absl::Status status = mode_->OnComputed(id, result);
  if (!status.ok()) Fail(status);
}

void WorkerCore::Impl::OnEvaluated(ComputeId id, const ComputeResult& result) {
  if (context_.outstanding.erase(id) != 0) evaluations_.OnEvaluated(id, result);
}

void WorkerCore::Impl::OnReduced(const v1::ViewId& view, uint64_t step,
                                 absl::StatusOr<ReducedPart> part) {
  if (mode_ == nullptr) return;
  absl::Status status = mode_->OnReduced(view, step, std::move(part));
  if (!status.ok()) Fail(status);
}

// ---- leaving and time

void WorkerCore::Impl::OnAskedToStop(std::string reason, absl::Duration grace) {
  if (registration_.leaves()) return registration_.ShortenLeave(grace);
  registration_.Leave(std::move(reason), grace);
  if (!context_.member) ExitNow(ExitReason::kLeft, registration_.leave_reason());
}

void WorkerCore::Impl::Proceed() {
  for (auto& [shard, link] : context_.links) link.Tick(context_.now, &context_.actions);

  SLUICE_DCHECK(mode_ == nullptr || mode_ == ModeOf(context_.view), "the mode is that of the view");
  if (mode_ != nullptr && context_.plan) {
    mode_->Adopt();
    evaluations_.Proceed(mode_->CurrentVersion());
    mode_->Proceed();
  }

  if (registration_.registered()) {
    for (v1::EvaluationResult& result : evaluations_.TakeResults()) {
      v1::MemberMessage message;
      *message.mutable_evaluation_result() = std::move(result);
      registration_.Send(std::move(message));
    }
  }

  registration_.SendDue();
  if (registration_.LeaveIsOver()) ExitNow(ExitReason::kLeft, registration_.leave_reason());
  if (context_.now >= context_.give_up_at) {
    ExitNow(ExitReason::kExpelled, context_.give_up_reason);
  }
}

absl::Time WorkerCore::Impl::NextDeadline() const {
  if (exited_) return absl::InfiniteFuture();
  absl::Time next = std::min(registration_.NextDeadline(), context_.give_up_at);
  for (const auto& [shard, link] : context_.links) next = std::min(next, link.NextDeadline());
  return next;
}

void WorkerCore::Impl::ExitNow(ExitReason reason, std::string message, v1::Refusal::Code refusal) {
  if (exited_) return;
  exited_ = true;
  for (auto& [shard, link] : context_.links) link.Close("the worker exits", &context_.actions);
  context_.links.clear();
  context_.actions.push_back(Exit{reason, std::move(message), refusal});
}

WorkerStatus WorkerCore::Impl::Status() const {
  WorkerStatus status;
  if (context_.view.has_id()) status.view = ShortName(context_.view.id());
  status.member = context_.member;
  status.step = mode_ == nullptr ? 0 : mode_->Step();
  status.samples = context_.samples_sent;
  status.recomputed_samples = context_.samples_recomputed;
  status.queued_bytes = context_.QueuedBytes();
  status.pending_computes = context_.outstanding.size();
  return status;
}

// ---- public interface

WorkerCore::WorkerCore(WorkerOptions options, const WorkerRules* rules)
    : impl_(std::make_unique<Impl>(std::move(options), rules)) {}
WorkerCore::~WorkerCore() = default;

void WorkerCore::OnCoordinatorConnected(absl::Time now) {
  impl_->Handle(now, [&] { impl_->OnCoordinatorConnected(); });
}
void WorkerCore::OnCoordinatorDisconnected(absl::Time now) {
  impl_->Handle(now, [&] { impl_->OnCoordinatorDisconnected(); });
}
void WorkerCore::OnCoordinatorMessage(const v1::CoordinatorMessage& message, absl::Time now) {
  impl_->Handle(now, [&] { impl_->OnCoordinatorMessage(message); });
}
void WorkerCore::OnShardConnected(ShardId shard, absl::Time now) {
  impl_->Handle(now, [&] { impl_->OnShardConnected(shard); });
}
void WorkerCore::OnShardDisconnected(ShardId shard, const absl::Status& why, absl::Time now) {
  impl_->Handle(now, [&] { impl_->OnShardDisconnected(shard, why); });
}
void WorkerCore::OnShardFrame(ShardId shard, const v1::Header& header, absl::Cord payload,
                              absl::Time now) {
  impl_->Handle(now, [&] { impl_->OnShardFrame(shard, header, payload); });
}
void WorkerCore::OnSent(absl::Time at) { impl_->OnSent(at); }
void WorkerCore::SetRowTensors(std::vector<uint32_t> tensors) {
  impl_->SetRowTensors(std::move(tensors));
}
void WorkerCore::OnModelReady(const v1::TensorTable& table, uint64_t training_samples,
                              uint64_t evaluation_samples, absl::Time now) {
  impl_->Handle(now, [&] { impl_->OnModelReady(table, training_samples, evaluation_samples); });
}
void WorkerCore::OnModelFailed(const absl::Status& status, absl::Time now) {
  impl_->Handle(now, [&] { impl_->Fail(status); });
}
void WorkerCore::OnInitialTensor(const v1::InitId& init_id, uint32_t tensor,
                                 absl::StatusOr<absl::Cord> content, absl::Time now) {
  impl_->Handle(now, [&] { impl_->OnInitialTensor(init_id, tensor, std::move(content)); });
}
void WorkerCore::OnGradient(ComputeId id, uint32_t tensor, absl::Cord gradient, absl::Time now) {
  impl_->Handle(now, [&] { impl_->OnTensor(id, tensor, std::move(gradient)); });
}
void WorkerCore::OnRowGradient(ComputeId id, uint32_t tensor, std::vector<uint64_t> rows,
                               absl::Cord values, absl::Time now) {
  impl_->Handle(now,
                [&] { impl_->OnTensor(id, tensor, Gradient(std::move(rows), std::move(values))); });
}
void WorkerCore::OnRows(RowsId id, absl::StatusOr<RowSelections> rows, absl::Time now) {
  impl_->Handle(now, [&] { impl_->OnRows(id, std::move(rows)); });
}
void WorkerCore::OnNoGradient(ComputeId id, uint32_t tensor, absl::Time now) {
  impl_->Handle(now, [&] { impl_->OnTensor(id, tensor, std::nullopt); });
}
void WorkerCore::OnBufferChange(ComputeId id, uint32_t tensor, absl::Cord change, absl::Time now) {
  impl_->Handle(now, [&] { impl_->OnTensor(id, tensor, std::move(change)); });
}
void WorkerCore::OnComputed(ComputeId id, const ComputeResult& result, absl::Time now) {
  impl_->Handle(now, [&] { impl_->OnComputed(id, result); });
}
void WorkerCore::OnEvaluated(ComputeId id, const ComputeResult& result, absl::Time now) {
  impl_->Handle(now, [&] { impl_->OnEvaluated(id, result); });
}
void WorkerCore::OnReduced(const v1::ViewId& view, uint64_t step, absl::StatusOr<ReducedPart> part,
                           absl::Time now) {
  impl_->Handle(now, [&] { impl_->OnReduced(view, step, std::move(part)); });
}
void WorkerCore::OnAskedToStop(std::string reason, absl::Duration grace, absl::Time now) {
  impl_->Handle(now, [&] { impl_->OnAskedToStop(std::move(reason), grace); });
}
void WorkerCore::OnTick(absl::Time now) {
  impl_->Handle(now, [] {});
}
WorkerActions WorkerCore::TakeActions() { return impl_->TakeActions(); }
absl::Time WorkerCore::NextDeadline() const { return impl_->NextDeadline(); }
WorkerStatus WorkerCore::Status() const { return impl_->Status(); }
const v1::View& WorkerCore::view() const { return impl_->view(); }

}  // namespace sluice::worker
