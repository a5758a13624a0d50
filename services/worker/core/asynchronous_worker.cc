#include "services/worker/core/asynchronous_worker.h"

#include <algorithm>
#include <utility>

#include "services/common/check.h"
#include "services/common/status_macros.h"
#include "services/protocol/ids.h"

namespace sluice::worker {
namespace {

constexpr double kLeaseSeconds = 30;
constexpr MicrobatchRange kWholeUpdate = {0, 1};

}  // namespace

AsynchronousWorker::AsynchronousWorker(const WorkerContext* context, WorkerOutput* out)
    : context_(context), out_(out), push_(context, out), rows_(context, out) {}

// ---- views and streams

void AsynchronousWorker::OnView(const v1::View& old) {
  push_.Stop();
  lease_asked_ = false;
  done_ = false;
  pulling_ = false;
  pull_sent_.clear();
  counted_.reset();
  times_.Begin();

  SLUICE_DCHECK(!update_ || !update_->computing || out_->Awaits(*update_->computing),
                "an update is computed until its result has come");
  const bool same_attempt = old.id().attempt() == context_->view.id().attempt();
  if (!same_attempt || !context_->member) {
    push_.encoder().Reset();
    // Restored: leases and computed samples belong to another history.
    if (update_ && update_->computing) {
      out_->Add(CancelCompute{*update_->computing});
    }
    if (update_) {
      out_->CountRecomputed(update_->samples.size());
      clock_ = std::max(clock_, update_->clock);
    }
    update_.reset();
    lease_ = Interval();
    fresh_ = false;
  }

  // The pulled version may contain updates that no copy had applied when their arbiter died. They
  // are not among the updates with which this view begins.
  base_version_ = std::min(base_version_, context_->view.first_step());
  if (update_) {
    update_->base_version = std::min(update_->base_version, context_->view.first_step());
    if (!context_->rules->KeepUpdate() && !update_->computing) {
      clock_ = update_->clock;
      update_.reset();
      push_.encoder().Rollback();
      fresh_ = false;
      return;
    }

    if (!update_->computing) times_.OnComputed(context_->now);
    update_->permit_asked = false;
    update_->permit.reset();
    update_->bare_sent.clear();
    update_->staged.clear();
    update_->norms.clear();
    update_->apply_sent.clear();
    update_->applied.clear();
  }
}

void AsynchronousWorker::OnLinkReady(ShardLink& link) {
  if (!context_->member) return;
  const ShardId shard = link.id();
  if (shard == context_->Arbiter()) {
    lease_asked_ = false;
    if (update_ && !update_->permit) update_->permit_asked = false;
  }
  if (!context_->rules->SendAgainAfterReconnect()) return;

  if (update_ && update_->applied.count(shard) == 0) {
    update_->apply_sent.erase(shard);
    if (update_->staged.count(shard) == 0) {
      update_->bare_sent.erase(shard);
      push_.SendAgain(shard);
    }
  }
  pull_sent_.erase(shard);
}

// ---- work that is due

void AsynchronousWorker::Adopt() {
  if (!context_->member || !pulling_ || update_ || !incoming_.IsWhole() || out_->AwaitsAny()) {
    return;
  }

  base_version_ = incoming_.version(0);
  out_->Add(AdoptVersion{base_version_});
  times_.AddTo(out_->progress());
  times_.Begin();
  pulling_ = false;
  fresh_ = true;
}

void AsynchronousWorker::Proceed() {
  if (!context_->member) return;
  ShardLink* arbiter = out_->ReadyLink(context_->Arbiter());

  if (!update_ && fresh_ && !lease_.empty()) StartUpdate();
  if (update_) {
    if (arbiter != nullptr) AskForPermit(*arbiter);
    Push();
    SendApplies();
    NoteGiven();
  }

  if (arbiter != nullptr) AskForLease(*arbiter);
  if (rows_.active()) FindNextRows();

  const bool may_pull = MayPull();
  if (!update_ && !fresh_ && !pulling_ && may_pull) BeginPull();
  if (pulling_ && may_pull) SendPulls();
}

bool AsynchronousWorker::MayPull() const {
  if (rows_.active()) return !lease_.empty() && rows_.known();
  return !bounded() || !lease_.empty() || !context_->rules->AskArbiterFirst();
}

// The next update also has samples of the lease that the model could not compute by themselves.
Interval AsynchronousWorker::NextSamples() const {
  const uint64_t smallest = context_->smallest_batch;
  const uint64_t batch = std::max(context_->BatchSize(), smallest);
  return {lease_.begin, lease_.size() < batch + smallest ? lease_.end : lease_.begin + batch};
}

// A lease that is too small by itself (a barrier follows it, or the job ends) is computed together
// with samples before it, or after it at the beginning: the update counts as the lease alone.
PositionRange AsynchronousWorker::ComputedFor(const Interval& samples) const {
  PositionRange computed{samples.begin, samples.end};
  if (computed.size() >= context_->smallest_batch) return computed;
  computed.begin = computed.end - std::min(computed.end, context_->smallest_batch);
  computed.end = std::max(computed.end, computed.begin + context_->smallest_batch);
  return computed;
}

void AsynchronousWorker::FindNextRows() {
  if (lease_.empty() || fresh_) return;
  rows_.Want({ComputedFor(NextSamples())});
  // The pulls in flight are for other samples.
  if (pulling_ && !pull_sent_.empty() && !(pulled_rows_ == rows_.positions())) BeginPull();
}

// ---- leases

void AsynchronousWorker::AskForLease(ShardLink& arbiter) {
  if (lease_asked_ || done_ || !lease_.empty()) return;
  // The update in progress is part of the old lease until all shards have applied it: the clock in
  // a worker's lease request reports its progress to them (R13). A single shard gets the Apply
  // before the request.
  if (update_ && (context_->view.shards_size() > 1 || update_->apply_sent.empty())) return;

  lease_asked_ = true;
  v1::Header header;
  v1::LeaseRequest& request = *header.mutable_lease_request();
  request.set_clock(update_ ? update_->clock : clock_);
  request.set_samples(SamplesWished());
  out_->Send(arbiter, std::move(header));
}

uint64_t AsynchronousWorker::SamplesWished() const {
  const uint64_t batch = context_->BatchSize();
  const double samples = samples_per_second_ * kLeaseSeconds;
  return std::max<uint64_t>(1, static_cast<uint64_t>(samples / static_cast<double>(batch))) * batch;
}

void AsynchronousWorker::OnLease(const v1::Lease& lease) {
  if (!lease_asked_ || !lease_.empty()) return;
  if (lease.done()) {
    lease_asked_ = false;
    done_ = true;
  }
  // `wait`: the shard will answer the same request once more.
  if (lease.samples().begin() >= lease.samples().end()) return;
  lease_asked_ = false;
  lease_ = FromProto(lease.samples());
  clock_ = std::max(clock_, lease.clock());
}

// ---- an update

void AsynchronousWorker::StartUpdate() {
  const Interval next = NextSamples();
  if (rows_.active() && !Contains(pulled_rows_, {ComputedFor(next)})) {
    fresh_ = false;
    return;
  }
  SLUICE_DCHECK(!update_ && fresh_, "an update begins on a version that no other update has used");

  update_.emplace(&context_->table, context_->rules);
  update_->clock = clock_ + 1;
  update_->samples = next;
  lease_.begin = update_->samples.end;
  SLUICE_DCHECK(lease_.begin <= lease_.end, "R8: an update is of leased samples");
  update_->base_version = base_version_;
  update_->started = context_->now;
  fresh_ = false;
  update_->gradients.Assign({kWholeUpdate});

  Compute compute;
  compute.id = out_->NewCompute();
  compute.step = update_->samples.begin;
  compute.microbatch_size = context_->job.training().microbatch_size();
  compute.positions = ComputedFor(next);
  if (compute.positions.size() > next.size()) {
    compute.microbatch_size = std::max(compute.microbatch_size, compute.positions.size());
    update_->weight = static_cast<double>(compute.positions.size());
  }
  update_->computing = compute.id;
  out_->Add(compute);
}

void AsynchronousWorker::AskForPermit(ShardLink& arbiter) {
  if (update_->permit || update_->permit_asked) return;
  update_->permit_asked = true;
  v1::Header header;
  v1::PermitRequest& request = *header.mutable_permit_request();
  request.set_clock(update_->clock);
  request.set_base_version(update_->base_version);
  out_->Send(arbiter, std::move(header));
}

v1::Apply AsynchronousWorker::MakeApply() const {
  SLUICE_DCHECK(update_ && update_->permit, "8.2: an update is applied with a permit of this view");

  v1::Apply apply;
  apply.set_clock(update_->clock);
  *apply.mutable_samples() = ToProto(update_->samples);
  if (update_->permit) {
    apply.set_ordinal(update_->permit->ordinal());
    apply.set_staleness(update_->permit->staleness());
  }

  apply.set_pull_next(PullsByApply());
  for (const auto& [partition, norm] : update_->norms) {
    apply.set_square_sum(apply.square_sum() + norm.square_sum());
    apply.set_non_finite(apply.non_finite() || norm.non_finite());
  }
  return apply;
}

void AsynchronousWorker::Push() {
  if (!update_->permit && context_->rules->AwaitPermit()) return;
  if (!push_.active()) {
    PushSender::Common common;
    common.clock = update_->clock;
    common.samples = update_->samples.size();
    common.weight = update_->weight;
    const uint64_t microbatch = std::max<uint64_t>(1, context_->job.training().microbatch_size());
    common.microbatches = (update_->samples.size() + microbatch - 1) / microbatch;
    if (update_->permit) common.ordinal = update_->permit->ordinal();
    common.has_apply = context_->view.shards_size() == 1 && context_->owned.size() == 1;
    if (common.has_apply) common.apply = MakeApply();
    push_.Start(&update_->gradients, std::move(common));
  }

  push_.Flush();
  if (!push_.common().has_apply) PushToOthers();

  if (!push_.common().has_apply || update_->computing) return;
  const ShardId only = context_->owned.begin()->first;
  if (out_->ReadyLink(only) == nullptr || !push_.AllSentTo(only)) return;
  if (!update_->apply_sent.insert(only).second) return;

  if (!pulling_) BeginPull();
  if (PullsByApply()) pull_sent_.insert(only);
}

// A shard without content records each update like any other shard, and so has to stage it.
void AsynchronousWorker::PushToOthers() {
  for (const v1::View::Shard& entry : context_->view.shards()) {
    const ShardId shard = entry.process().incarnation();
    ShardLink* const link = out_->ReadyLink(shard);
    if (link == nullptr || context_->owned.count(shard) != 0) continue;
    if (!update_->bare_sent.insert(shard).second) continue;

    v1::Header header;
    header.mutable_push()->set_clock(update_->clock);
    out_->Send(*link, std::move(header));
  }
}

bool AsynchronousWorker::AllStaged() const {
  if (!context_->rules->AwaitAllStaged()) return push_.active() && push_.AllSent();
  const auto& shards = context_->view.shards();
  return std::all_of(shards.begin(), shards.end(), [&](const v1::View::Shard& shard) {
    const ShardId id = shard.process().incarnation();
    return update_->staged.count(id) != 0 || update_->applied.count(id) != 0;
  });
}

void AsynchronousWorker::SendApplies() {
  if (!push_.active() || push_.common().has_apply || update_->computing || !AllStaged()) return;
  for (const v1::View::Shard& entry : context_->view.shards()) {
    const ShardId shard = entry.process().incarnation();
    ShardLink* link = out_->ReadyLink(shard);
    if (link == nullptr || update_->applied.count(shard) != 0) continue;
    if (!update_->apply_sent.insert(shard).second) continue;
    if (!pulling_) BeginPull();

    v1::Header header;
    *header.mutable_apply() = MakeApply();
    out_->Send(*link, std::move(header));
    if (PullsByApply()) pull_sent_.insert(shard);
  }
}

void AsynchronousWorker::NoteGiven() {
  if (update_->computing || times_.given() || out_->QueuedBytes() > 0) return;
  const auto& shards = context_->view.shards();
  const bool everywhere =
      std::all_of(shards.begin(), shards.end(), [&](const v1::View::Shard& shard) {
        return update_->apply_sent.count(shard.process().incarnation()) != 0;
      });
  if (everywhere) times_.OnGiven(context_->now);
}

void AsynchronousWorker::OnStaged(ShardLink& link, const v1::Staged& staged) {
  if (!update_ || staged.clock() != update_->clock) return;
  update_->staged.insert(link.id());
  // A shard that has applied the update sends no norms again; its earlier norms stay.
  for (const v1::Norms::PartitionNorm& norm : staged.norms()) {
    update_->norms[norm.partition()] = norm;
  }
}

void AsynchronousWorker::OnApplied(ShardLink& link, const v1::Applied& applied) {
  if (!update_ || applied.clock() < update_->clock) return;
  update_->applied.insert(link.id());

  const auto& shards = context_->view.shards();
  const bool everywhere =
      std::all_of(shards.begin(), shards.end(), [&](const v1::View::Shard& shard) {
        return update_->applied.count(shard.process().incarnation()) != 0;
      });
  // In this view no permit was granted yet, so the arbiter knows the clock from the Install. If one
  // shard had applied the update, all shards have applied it now.
  const bool by_install = !update_->permit && link.id() == context_->Arbiter();
  if (everywhere || by_install) FinishUpdate();
}

void AsynchronousWorker::FinishUpdate() {
  SLUICE_DCHECK(update_.has_value(), "an update is finished once");
  times_.OnAnswered(context_->now, context_->sent_at);

  const double seconds = absl::ToDoubleSeconds(context_->now - update_->started);
  if (seconds > 0) {
    const double speed = static_cast<double>(update_->samples.size()) / seconds;
    samples_per_second_ =
        samples_per_second_ == 0 ? speed : 0.8 * samples_per_second_ + 0.2 * speed;
  }

  v1::WorkerProgress::Step& step = *out_->progress()->add_steps();
  step.set_step(update_->clock);
  step.set_samples(update_->samples.size());
  step.set_loss_sum(update_->result.loss_sum);
  if (update_->loss_weight) step.set_weight(*update_->loss_weight);
  step.set_correct(update_->result.correct);
  if (update_->permit) step.set_staleness(update_->permit->staleness());
  out_->progress()->set_data_seconds(out_->progress()->data_seconds() +
                                     absl::ToDoubleSeconds(update_->result.data_time));
  out_->progress()->set_compute_seconds(out_->progress()->compute_seconds() +
                                        absl::ToDoubleSeconds(update_->result.compute_time));

  out_->CountSent(update_->samples.size());
  clock_ = std::max(clock_, update_->clock);
  if (update_->computing) out_->Add(CancelCompute{*update_->computing});
  update_.reset();
  push_.encoder().Commit();
  push_.Stop();
}

void AsynchronousWorker::OnWeight(ComputeId id, double weight) {
  if (!update_ || update_->computing != id) return;
  update_->weight = weight;
  update_->loss_weight = weight;
  if (push_.active()) push_.common().weight = weight;
}

absl::Status AsynchronousWorker::OnTensor(ComputeId id, uint32_t tensor,
                                          std::optional<Gradient> gradient) {
  if (!update_ || update_->computing != id) return absl::OkStatus();
  ASSIGN_OR_RETURN(auto partial_sum,
                   update_->gradients.Resolve(kWholeUpdate, tensor, std::move(gradient)));
  if (partial_sum.has_value()) push_.OnResolved(*partial_sum, tensor);
  return absl::OkStatus();
}

absl::Status AsynchronousWorker::OnComputed(ComputeId id, const ComputeResult& result) {
  if (!update_ || update_->computing != id) return absl::OkStatus();

  for (int tensor = 0; tensor < context_->table.tensors_size(); ++tensor) {
    RETURN_IF_ERROR(OnTensor(id, static_cast<uint32_t>(tensor), std::nullopt));
  }
  SLUICE_DCHECK(update_->gradients.IsComplete(), "a computed update has every gradient");

  update_->computing.reset();
  update_->result = result;
  if (const uint64_t samples = update_->samples.size(); result.samples > samples) {
    const double part = static_cast<double>(samples) / static_cast<double>(result.samples);
    update_->result.loss_sum *= part;
    update_->result.correct *= part;
    if (update_->loss_weight) *update_->loss_weight *= part;
  }

  times_.OnComputed(context_->now);
  return absl::OkStatus();
}

// ---- parameters

void AsynchronousWorker::BeginPull() {
  SLUICE_DCHECK(!fresh_, "a version that was pulled is used before the next is pulled");
  pulling_ = true;
  pull_sent_.clear();
  counted_.reset();
  ++pull_request_;
  incoming_.Reset(&context_->layout, &*context_->index, context_->ByReference());
}

void AsynchronousWorker::SendPulls() {
  for (const auto& [shard, partitions] : context_->owned) {
    ShardLink* link = out_->ReadyLink(shard);
    if (link == nullptr || pull_sent_.count(shard) != 0) continue;

    // After the Apply, so that the worker receives its own update.
    if (update_ && update_->apply_sent.count(shard) == 0) continue;

    const bool first = !bounded() || shard == context_->Arbiter();
    if (!first && !counted_ && context_->rules->AskArbiterFirst()) continue;

    pull_sent_.insert(shard);
    PullFrom(*link);
  }
}

void AsynchronousWorker::PullFrom(ShardLink& link) {
  SLUICE_DCHECK(context_->owned.count(link.id()) > 0, "pulls go to the owners of partitions");
  SLUICE_DCHECK(!bounded() || link.id() == context_->Arbiter() || counted_,
                "R13: the arbiter is asked first");
  v1::Header header;
  v1::Pull& pull = *header.mutable_pull();
  pull.set_clock(update_ ? std::max(clock_, update_->clock) : clock_);
  pull.set_request(pull_request_);
  for (uint32_t partition : context_->owned.at(link.id())) {
    if (incoming_.IsWhole(partition)) continue;
    incoming_.ForgetPartial(partition);
    pull.add_partitions(partition);
  }

  if (link.id() != context_->Arbiter() && counted_) {
    pull.mutable_counted()->CopyFrom(counted_->counted());
    pull.mutable_counted_from()->CopyFrom(counted_->counted_from());
  }

  if (pull.partitions_size() == 0) return;
  absl::Cord payload;
  if (rows_.active()) {
    payload = rows_.AddTo(link, &pull);
    incoming_.ExpectRows(&context_->table, &rows_.rows());
    pulled_rows_ = rows_.positions();
  }
  out_->Send(link, std::move(header), std::move(payload));
}

absl::Status AsynchronousWorker::OnFrame(ShardLink& link, const v1::Header& header,
                                         const absl::Cord& payload) {
  if (!context_->member) return absl::OkStatus();
  switch (header.body_case()) {
    case v1::Header::kData:
      if (!pulling_) return absl::OkStatus();
      // Rows belong to the samples of one pull.
      if (rows_.active() && header.data().request() != pull_request_) return absl::OkStatus();
      RETURN_IF_ERROR(incoming_.Accept(header.data(), payload, out_->actions()));
      out_->CountPulled(header.data(), payload.size());
      times_.OnData(context_->now, context_->sent_at);
      if (incoming_.IsWhole()) times_.OnWhole(context_->now);
      return absl::OkStatus();
    case v1::Header::kPullAnswer:
      if (header.pull_answer().request() == pull_request_) counted_ = header.pull_answer();
      return absl::OkStatus();
    case v1::Header::kLease:
      OnLease(header.lease());
      return absl::OkStatus();
    case v1::Header::kPermit:
      if (update_ && header.permit().clock() == update_->clock) update_->permit = header.permit();
      return absl::OkStatus();
    case v1::Header::kStaged:
      OnStaged(link, header.staged());
      return absl::OkStatus();
    case v1::Header::kApplied:
      OnApplied(link, header.applied());
      return absl::OkStatus();
    default:
      return absl::OkStatus();
  }
}

}  // namespace sluice::worker
