#include "services/worker/core/worker_core.h"

#include <algorithm>
#include <map>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "services/common/check.h"
#include "services/common/status_macros.h"
#include "services/common/text/utf8.h"
#include "services/protocol/elements.h"
#include "services/protocol/ids.h"
#include "services/protocol/layout.h"
#include "services/protocol/samples/job_length.h"
#include "services/protocol/worker_limits.h"
#include "services/worker/core/asynchronous_worker.h"
#include "services/worker/core/synchronous_worker.h"

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

// The texts come from the user's program and its libraries; the coordinator refuses longer ones.
void CleanTexts(v1::Ready* ready) {
  ready->set_smallest_batch_module(CleanUtf8(ready->smallest_batch_module(), kMaxReadyTextBytes));

  const int notes = std::min(ready->notes_size(), kMaxNotes);
  ready->mutable_notes()->DeleteSubrange(notes, ready->notes_size() - notes);
  for (std::string& note : *ready->mutable_notes()) note = CleanUtf8(note, kMaxReadyTextBytes);

  if (!ready->has_environment()) return;

  v1::Environment& environment = *ready->mutable_environment();
  environment.set_kernels(CleanUtf8(environment.kernels(), kMaxReadyTextBytes));
  environment.set_library(CleanUtf8(environment.library(), kMaxReadyTextBytes));
}

}  // namespace

WorkerCore::WorkerCore(WorkerOptions options, const WorkerRules* rules)
    : options_(std::move(options)),
      out_(&context_),
      registration_(&context_, &out_, MakeRegister(options_)),
      evaluations_(&context_, &out_),
      init_pusher_(&context_, &out_) {
  context_.rules = rules == nullptr ? &all_rules_ : rules;
  context_.incarnation = options_.process.incarnation();
}

template <typename Event>
void WorkerCore::Handle(absl::Time now, Event event) {
  if (exited_) return;
  context_.now = now;
  event();
  if (!exited_) Proceed();
  SLUICE_DCHECK(!exited_ || std::holds_alternative<Exit>(out_.actions()->back()),
                "Exit is the last action");
}

// ---- coordinator

void WorkerCore::OnCoordinatorConnected(absl::Time now) {
  Handle(now, [&] { registration_.OnConnected(was_member_); });
}

void WorkerCore::OnCoordinatorDisconnected(absl::Time now) {
  Handle(now, [&] { registration_.OnDisconnected(); });
}

void WorkerCore::OnCoordinatorMessage(const v1::CoordinatorMessage& message, absl::Time now) {
  Handle(now, [&] {
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
      case v1::CoordinatorMessage::kComputeMetrics:
        return evaluations_.Add(message.compute_metrics());
      case v1::CoordinatorMessage::kFinish:
        return OnFinish(message.finish());
      case v1::CoordinatorMessage::kHeartbeatReply:
        context_.batch_size = message.heartbeat_reply().batch_size();
        return;
      default:  // meant for shards, or of a later version
        return;
    }
  });
}

void WorkerCore::OnRegistered(const v1::Registered& registered) {
  if (!opening_) {
    opening_ = true;
    context_.job = registered.job();
    out_.Add(OpenModel{registered.job()});
  }
  registration_.OnRegistered();
}

void WorkerCore::OnRefusal(const v1::Refusal& refusal) {
  std::optional<Exit> exit = registration_.ExitAfter(refusal);
  if (exit.has_value()) ExitNow(*std::move(exit));
}

void WorkerCore::OnFinish(const v1::Finish& finish) {
  registration_.SendProgress();
  ExitNow(registration_.ExitAfter(finish));
}

void WorkerCore::SetLayout(const v1::TensorTable& table, const v1::Layout& layout) {
  context_.table = table;
  context_.layout = layout;
  context_.index.emplace(context_.table, context_.layout);
}

void WorkerCore::OnInitialize(const v1::Initialize& initialize) {
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

void WorkerCore::OnInitialTensor(const v1::InitId& init_id, uint32_t tensor,
                                 absl::StatusOr<absl::Cord> content, absl::Time now) {
  Handle(now, [&] {
    if (!content.ok()) return Fail(content.status());

    const v1::TensorTable& table = context_.table;
    if (tensor >= static_cast<uint32_t>(table.tensors_size())) return;

    const v1::TensorSpec& spec = table.tensors(static_cast<int>(tensor));
    if (content->size() != ElementCount(spec) * ElementBytes(spec.dtype())) {
      return Fail(absl::InternalError(absl::StrCat("tensor ", spec.name(), " has ", content->size(),
                                                   " bytes, which does not fit its shape")));
    }
    init_pusher_.OnInitialTensor(init_id, tensor, *std::move(content));
  });
}

void WorkerCore::OnNewView(const v1::NewView& message) {
  if (message.layout().partitions() != 0 && !context_.index) {
    RETURN_IF_ERROR(ValidateLayout(message.table(), message.layout()), Fail(_));
    SetLayout(message.table(), message.layout());
  }
  if (message.has_view()) Adopt(message.view());
}

// ---- views

void WorkerCore::Adopt(const v1::View& view) {
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
    return ExitNow({registration_.leaves() ? ExitReason::kLeft : ExitReason::kExpelled,
                    absl::StrCat("view ", ShortName(view.id()), " is without this worker")});
  }

  was_member_ = was_member_ || context_.member;
  ChooseMode(old);
  SLUICE_DCHECK(out_.QueuedBytes() == 0, "no frame of an older view waits to be sent");
  mode_->OnView(old);
  evaluations_.OnView(old.id().attempt() == view.id().attempt());
}

// An attempt may use a different mode than the previous attempt. Work in progress belongs to the
// older mode; the clock continues (R8), for later attempts that use it.
void WorkerCore::ChooseMode(const v1::View& old) {
  const bool synchronous = IsSynchronous(context_.view.mode());
  std::unique_ptr<WorkerMode>& wanted = synchronous ? synchronous_ : asynchronous_;

  if (mode_ != nullptr && mode_ != wanted.get()) {
    const bool member = std::exchange(context_.member, false);
    mode_->OnView(old);
    context_.member = member;
  }

  if (wanted == nullptr) {
    if (synchronous) {
      wanted = std::make_unique<SynchronousWorker>(&context_, &out_);
    } else {
      wanted = std::make_unique<AsynchronousWorker>(&context_, &out_);
    }
  }

  mode_ = wanted.get();
}

const WorkerMode* WorkerCore::ModeOf(const v1::View& view) const {
  return (IsSynchronous(view.mode()) ? synchronous_ : asynchronous_).get();
}

void WorkerCore::UpdateLinks() {
  std::map<ShardId, std::string> wanted;
  const auto want = [&](const auto& shards) {
    for (const v1::View::Shard& shard : shards) {
      wanted[shard.process().incarnation()] = shard.address();
    }
  };

  if (init_pusher_.active()) want(init_pusher_.initialize().shards());
  if (context_.MayEvaluate()) want(context_.view.shards());

  for (auto it = out_.links().begin(); it != out_.links().end();) {
    it->second.DropQueue();  // frames of an older view
    if (wanted.count(it->first) == 0) {
      it->second.Close("the shard is not in the view", out_.actions());
      it = out_.links().erase(it);
    } else {
      ++it;
    }
  }

  for (const auto& [shard, address] : wanted) {
    out_.links().try_emplace(shard, shard, address, context_.now);
  }
  SLUICE_DCHECK(out_.links().size() == wanted.size(), "a worker has one stream to each shard");
}

// ---- shards

void WorkerCore::OnShardConnected(ShardId shard, absl::Time now) {
  Handle(now, [&] {
    auto it = out_.links().find(shard);
    if (it == out_.links().end()) return;

    v1::Header header;
    if (context_.view.has_id()) *header.mutable_view() = context_.view.id();
    *header.mutable_hello() = registration_.MakeHello(shard);
    it->second.OnConnected(header, out_.actions());
  });
}

void WorkerCore::OnShardDisconnected(ShardId shard, const absl::Status& why, absl::Time now) {
  Handle(now, [&] {
    // The blocks behind this worker's references are gone: sending the references again is useless.
    if (context_.ByReference() && absl::IsDataLoss(why)) {
      return ExitNow({ExitReason::kExpelled, std::string(why.message())});
    }

    auto it = out_.links().find(shard);
    if (it != out_.links().end()) it->second.OnBroken(context_.now);
  });
}

void WorkerCore::OnShardFrame(ShardId shard, const v1::Header& header, absl::Cord payload,
                              absl::Time now) {
  Handle(now, [&] {
    auto it = out_.links().find(shard);
    if (it == out_.links().end()) return;

    absl::Status status = HandleFrame(it->second, header, payload);
    if (status.ok() || exited_) return;

    it = out_.links().find(shard);
    if (it == out_.links().end()) return;
    it->second.Reset(std::string(status.message()), context_.now, out_.actions());
  });
}

absl::Status WorkerCore::HandleFrame(ShardLink& link, const v1::Header& header,
                                     const absl::Cord& payload) {
  switch (header.body_case()) {
    case v1::Header::kHelloReply:
      if (!link.OnHelloReply(header.hello_reply())) {
        return absl::InvalidArgumentError("an unexpected HelloReply");
      }
      OnLinkReady(link);
      return absl::OkStatus();
    case v1::Header::kCredit:
      link.OnCredit(header.credit().bytes(), out_.actions());
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

void WorkerCore::OnLinkReady(ShardLink& link) {
  init_pusher_.OnLinkReady(link);
  if (mode_ == nullptr) return;
  if (context_.member) mode_->OnLinkReady(link);
  if (context_.MayEvaluate()) evaluations_.OnLinkReady(link);
}

void WorkerCore::OnRefused(ShardLink& link, const v1::Refused& refused) {
  (void)link;
  if (Compare(refused.newest().id(), context_.view.id()) > 0) return Adopt(refused.newest());
  if (refused.snapshot_id() != 0)
    evaluations_.OnPullRefused(refused.snapshot_id(), refused.reason());
}

void WorkerCore::OnSent(absl::Time at) { context_.sent_at = std::max(context_.sent_at, at); }

// ---- model and compute

void WorkerCore::SetRowTensors(std::vector<uint32_t> tensors) {
  context_.row_tensors = std::move(tensors);
}

void WorkerCore::OnModelReady(v1::Ready ready, absl::Time now) {
  Handle(now, [&] {
    ASSIGN_OR_RETURN(context_.plan,
                     StepScheduleOf(context_.job.training(), ready.training_samples()), Fail(_));
    context_.training_samples = ready.training_samples();
    context_.smallest_batch = std::max(1u, ready.smallest_batch());

    CleanTexts(&ready);
    registration_.SetReady(std::move(ready));
  });
}

void WorkerCore::OnModelFailed(const absl::Status& status, absl::Time now) {
  Handle(now, [&] { Fail(status); });
}

void WorkerCore::Fail(const absl::Status& status) {
  constexpr size_t kMaxReasonBytes = 4096;
  v1::MemberMessage message;
  // The reason may quote a file, or the user's model.
  message.mutable_failure()->set_reason(CleanUtf8(status.message(), kMaxReasonBytes));
  registration_.Send(std::move(message));
  ExitNow({ExitReason::kFailed, std::string(status.message())});
}

void WorkerCore::OnRows(RowsId id, absl::StatusOr<RowSelections> rows, absl::Time now) {
  Handle(now, [&] {
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
  });
}

void WorkerCore::OnWeight(ComputeId id, double weight, absl::Time now) {
  Handle(now, [&] {
    if (mode_ == nullptr || !out_.Awaits(id)) return;
    if (!IsWeight(weight)) {
      return Fail(absl::InvalidArgumentError(absl::StrCat(
          "the weight of a batch is ", weight, ": it should be from 0 to ", kMaxWeight)));
    }

    // A sum of means is not divided.
    if (context_.job.training().aggregation() == v1::TrainingSpec::SUM) return;
    mode_->OnWeight(id, weight);
  });
}

void WorkerCore::OnSum(ComputeId id, std::string name, absl::Cord values, absl::Time now) {
  Handle(now, [&] {
    if (mode_ == nullptr || !out_.Awaits(id)) return;
    mode_->OnSum(id, std::move(name), std::move(values));
  });
}

void WorkerCore::OnGradient(ComputeId id, uint32_t tensor, absl::Cord gradient, absl::Time now) {
  Handle(now, [&] { OnTensor(id, tensor, std::move(gradient)); });
}

void WorkerCore::OnRowGradient(ComputeId id, uint32_t tensor, std::vector<uint64_t> rows,
                               absl::Cord values, absl::Time now) {
  Handle(now, [&] { OnTensor(id, tensor, Gradient(std::move(rows), std::move(values))); });
}

void WorkerCore::OnNoGradient(ComputeId id, uint32_t tensor, absl::Time now) {
  Handle(now, [&] { OnTensor(id, tensor, std::nullopt); });
}

void WorkerCore::OnBufferChange(ComputeId id, uint32_t tensor, absl::Cord change, absl::Time now) {
  Handle(now, [&] { OnTensor(id, tensor, std::move(change)); });
}

void WorkerCore::OnTensor(ComputeId id, uint32_t tensor, std::optional<Gradient> gradient) {
  if (mode_ == nullptr || !out_.Awaits(id)) return;
  if (tensor >= static_cast<uint32_t>(context_.table.tensors_size())) return;

  if (gradient && !context_.ByReference()) {
    RETURN_IF_ERROR(CheckGradient(context_.table.tensors(static_cast<int>(tensor)), *gradient),
                    Fail(_));
  }

  absl::Status status = mode_->OnTensor(id, tensor, std::move(gradient));
  if (!status.ok()) Fail(status);
}

void WorkerCore::OnComputed(ComputeId id, const ComputeResult& result, absl::Time now) {
  Handle(now, [&] {
    if (!out_.OnAnswered(id) || mode_ == nullptr) return;
    // A process that the engine computes with is gone (server-side execution): a new incarnation
    // finds the processes that exist now.
    if (absl::IsUnavailable(result.status)) {
      // Shards may learn of the view without this worker before the worker does.
      if (registration_.leaves()) {
        return ExitNow({ExitReason::kLeft, registration_.leave_reason()});
      }
      return ExitNow({ExitReason::kExpelled, std::string(result.status.message())});
    }

    if (!result.status.ok() && !absl::IsCancelled(result.status)) return Fail(result.status);

    absl::Status status = mode_->OnComputed(id, result);
    if (!status.ok()) Fail(status);
  });
}

void WorkerCore::OnEvaluated(ComputeId id, const ComputeResult& result, absl::Time now) {
  Handle(now, [&] {
    if (out_.OnAnswered(id)) evaluations_.OnEvaluated(id, result);
  });
}

void WorkerCore::OnMetricValues(MetricsId id, v1::MetricValues values, absl::Time now) {
  Handle(now, [&] {
    values.set_error(CleanUtf8(values.error(), kMaxReadyTextBytes));
    evaluations_.OnMetricValues(id, std::move(values));
  });
}

void WorkerCore::OnReduced(const v1::ViewId& view, uint64_t step, absl::StatusOr<ReducedPart> part,
                           absl::Time now) {
  Handle(now, [&] {
    if (mode_ == nullptr) return;
    absl::Status status = mode_->OnReduced(view, step, std::move(part));
    if (!status.ok()) Fail(status);
  });
}

// ---- leaving and time

void WorkerCore::OnAskedToStop(std::string reason, absl::Duration grace, absl::Time now) {
  Handle(now, [&] {
    registration_.AskToLeave(std::move(reason), now + grace);
    if (!context_.member) ExitNow({ExitReason::kLeft, registration_.leave_reason()});
  });
}

void WorkerCore::OnJobRequest(v1::JobRequest::Kind kind, std::string reason, absl::Time now) {
  Handle(now, [&] { registration_.Request(kind, std::move(reason)); });
}

void WorkerCore::OnTick(absl::Time now) {
  Handle(now, [] {});
}

void WorkerCore::Proceed() {
  for (auto& [shard, link] : out_.links()) link.Tick(context_.now, out_.actions());

  SLUICE_DCHECK(mode_ == nullptr || mode_ == ModeOf(context_.view), "the mode is that of the view");
  if (mode_ != nullptr && context_.plan) {
    mode_->Adopt();
    evaluations_.Proceed(mode_->CurrentVersion());
    mode_->Proceed();
  }

  if (registration_.registered()) {
    for (v1::MemberMessage& answer : evaluations_.TakeAnswers()) {
      registration_.Send(std::move(answer));
    }
  }

  registration_.SendDue();
  if (context_.now >= registration_.leave_until())
    ExitNow({ExitReason::kLeft, registration_.leave_reason()});
  if (context_.now >= out_.give_up_at()) {
    ExitNow({ExitReason::kExpelled, out_.give_up_reason()});
  }
}

absl::Time WorkerCore::NextDeadline() const {
  if (exited_) return absl::InfiniteFuture();
  absl::Time next = std::min(registration_.NextDeadline(), out_.give_up_at());
  for (const auto& [shard, link] : out_.links()) next = std::min(next, link.NextDeadline());
  return next;
}

WorkerActions WorkerCore::TakeActions() { return out_.TakeActions(); }

void WorkerCore::ExitNow(Exit exit) {
  if (exited_) return;
  exited_ = true;
  for (auto& [shard, link] : out_.links()) link.Close("the worker exits", out_.actions());
  out_.links().clear();
  out_.Add(std::move(exit));
}

WorkerStatus WorkerCore::Status() const {
  WorkerStatus status;
  if (context_.view.has_id()) status.view = ShortName(context_.view.id());
  status.member = context_.member;

  status.step = mode_ == nullptr ? 0 : mode_->Step();
  status.samples = out_.samples_sent();
  status.recomputed_samples = out_.samples_recomputed();
  status.queued_bytes = out_.QueuedBytes();
  status.pending_computes = out_.outstanding();
  return status;
}

}  // namespace sluice::worker
