#include "services/worker/core/synchronous_worker.h"

#include <algorithm>
#include <limits>

#include "services/common/check.h"
#include "services/common/status_macros.h"
#include "services/protocol/ids.h"
#include "services/protocol/samples/job_length.h"
#include "services/protocol/worker_limits.h"

namespace sluice::worker {
SynchronousWorker::SynchronousWorker(const WorkerContext* context, WorkerOutput* out)
    : context_(context),
      out_(out),
      tree_(context->job.training().bit_exact()),
      rows_(context, out),
      sums_(context, out),
      reduction_(context, out),
      push_(context, out) {}

uint64_t SynchronousWorker::LastStep() const {
  return TotalSteps(context_->job.training(), context_->plan);
}

void SynchronousWorker::OnView(const v1::View& old) {
  SettleResiduals(old);
  KeepOrDropVersions(old);
  reduction_.OnView();

  if (!context_->member) {
    DropGradients();
    push_.Stop();
    return;
  }

  // Gradients that contain sums of the older view are computed again, by all members.
  if (sums_.active() && context_->rules->DropGradientsOfOldSums()) DropGradients();
  if (has_current_) {
    Assign();
  } else {
    DropGradients();
    push_.Stop();
  }

  rows_sent_.clear();
  if (!has_current_) PullFromAll();
  owed_since_ = has_current_ ? absl::InfiniteFuture() : context_->now;
}

// Runs before anything of the new view is processed.
void SynchronousWorker::SettleResiduals(const v1::View& old) {
  const v1::View& view = context_->view;
  if (old.id().attempt() != view.id().attempt()) {
    push_.encoder().Reset();
  } else if (has_current_ && view.first_step() > step_) {
    // A step closes only with the contribution of each member, so this worker's is in it.
    push_.encoder().Commit();
  } else {
    // The sums were dropped; the contribution is encoded again, by new partial sums.
    push_.encoder().Rollback();
  }
}

void SynchronousWorker::KeepOrDropVersions(const v1::View& old) {
  const WorkerRules& rules = *context_->rules;
  const v1::View& view = context_->view;
  const bool same_attempt = old.id().attempt() == view.id().attempt();
  const bool skipped = !same_attempt || !Same(view.previous(), old.id());
  const bool drop_all = !context_->member || !same_attempt || (skipped && rules.DropAllIfSkipped());
  const uint64_t first = view.first_step();

  // Rows belong to the older assignment.
  const bool has_rows = !rows_.active() || Contains(held_rows_, AssignedPositions(first));
  const bool keep_current =
      !drop_all && has_current_ && has_rows && (step_ == first || !rules.DropOlderVersions());
  const bool keep_incoming =
      !drop_all && incoming_version_ == first && !keep_current && !rows_.active();

  if (keep_current) {
    // R9: parts of the next version belong to the older view.
    if (rules.DropOlderVersions()) {
      ExpectIncoming(step_ + 1);
    } else {
      incoming_.ForgetPartial();
    }
    return;
  }

  has_current_ = false;
  step_ = first;
  if (keep_incoming) {
    incoming_.ForgetPartial();
  } else {
    ExpectIncoming(first);
  }
}

void SynchronousWorker::ExpectIncoming(uint64_t version) {
  incoming_version_ = version;
  incoming_.Reset(&context_->layout, &*context_->index, context_->ByReference());
  rows_sent_.clear();
}

Positions SynchronousWorker::AssignedPositions(uint64_t step) const {
  Positions positions;
  if (step >= LastStep()) return positions;
  for (const MicrobatchRange& range : context_->assignment) {
    const PositionRange assigned = context_->plan->PositionsOf(step, range);
    if (!assigned.empty()) positions.push_back(assigned);
  }
  return positions;
}

void SynchronousWorker::PullRows() {
  if (incoming_version_ > LastStep()) return;
  rows_.Want(AssignedPositions(incoming_version_));
  if (!rows_.known()) return;
  for (auto& [shard, link] : out_->links()) {
    if (link.ready() && rows_sent_.insert(shard).second) PullFrom(link);
  }
}

void SynchronousWorker::DropGradients() {
  SLUICE_DCHECK(
      std::all_of(computing_.begin(), computing_.end(),
                  [this](const auto& computing) { return out_->Awaits(computing.first); }),
      "a range is computed until its result has come");

  for (const auto& [id, range] : computing_) out_->Add(CancelCompute{id});
  computing_.clear();
  results_.clear();
  weights_.clear();
  sums_.Stop();
  reduction_.Stop();

  gradients_.reset();
  assigned_ = false;
}

void SynchronousWorker::OnLinkReady(ShardLink& link) {
  if (!context_->member) return;
  auto owned = context_->owned.find(link.id());
  if (owned == context_->owned.end()) return;

  for (uint32_t partition : owned->second) incoming_.ForgetPartial(partition);
  rows_sent_.erase(link.id());
  sums_.OnLinkReady(link);

  if (has_current_) {
    if (context_->rules->SendAgainAfterReconnect()) push_.SendAgain(link.id());
  } else if (!rows_.active()) {
    PullFrom(link);
  }
}

void SynchronousWorker::SkipTo(uint64_t version, uint32_t partition) {
  SLUICE_DCHECK(version > step_, "a worker that was dropped continues at a later version");

  if (has_current_) {
    if (!results_.empty()) ReportStep();
    push_.encoder().Rollback();
  }

  DropGradients();
  push_.Stop();
  has_current_ = false;

  step_ = version;
  owed_since_ = context_->now;
  ExpectIncoming(version);
  PullFromAll(partition);
}

void SynchronousWorker::PullFromAll(uint32_t but) {
  if (rows_.active()) return;  // later, when its rows are known
  for (auto& [shard, link] : out_->links()) {
    if (link.ready()) PullFrom(link, but);
  }
}

void SynchronousWorker::PullFrom(ShardLink& link, uint32_t but) {
  SLUICE_DCHECK(!has_current_ || rows_.active(), "a push pulls the version after the current one");
  auto owned = context_->owned.find(link.id());
  if (owned == context_->owned.end()) return;

  v1::Header header;
  v1::Pull& pull = *header.mutable_pull();
  pull.set_version(incoming_version_);

  for (uint32_t partition : owned->second) {
    if (partition != but && !incoming_.IsWhole(partition)) pull.add_partitions(partition);
  }
  if (pull.partitions_size() == 0) return;

  absl::Cord payload;
  if (rows_.active()) {
    payload = rows_.AddTo(link, &pull);
    incoming_.ExpectRows(&context_->table, &rows_.rows());
  }

  out_->Send(link, std::move(header), std::move(payload));
}

absl::Status SynchronousWorker::OnFrame(ShardLink& link, const v1::Header& header,
                                        const absl::Cord& payload) {
  (void)link;
  if (!context_->member) return absl::OkStatus();
  if (header.has_step_sum_answer()) sums_.OnAnswer(header.step_sum_answer(), payload);
  if (header.body_case() != v1::Header::kData) return absl::OkStatus();

  const v1::Data& data = header.data();
  const bool drops =
      context_->job.training().stragglers().policy() == v1::TrainingSpec::Stragglers::DROP;
  if (drops && data.version() > incoming_version_ &&
      data.partition() < context_->index->partitions()) {
    SkipTo(data.version(), data.partition());
  }

  if (data.version() != incoming_version_) return absl::OkStatus();
  RETURN_IF_ERROR(incoming_.Accept(data, payload, out_->actions()));

  out_->CountPulled(data, payload.size());
  times_.OnData(context_->now, context_->sent_at);
  if (incoming_.IsWhole()) times_.OnWhole(context_->now);

  if (owed_since_ != absl::InfiniteFuture()) owed_since_ = context_->now;
  if (push_.active() && incoming_.IsWhole(data.partition())) push_.Close(data.partition());
  return absl::OkStatus();
}

void SynchronousWorker::Adopt() {
  if (!context_->member || !incoming_.IsWhole() || out_->AwaitsAny()) return;
  SLUICE_DCHECK(computing_.empty(), "the current version is not replaced while it is computed on");

  if (has_current_) {
    ReportStep();
    push_.encoder().Commit();
  }

  step_ = incoming_version_;
  has_current_ = true;
  held_rows_ = rows_.positions();
  owed_since_ = absl::InfiniteFuture();

  out_->Add(AdoptVersion{step_});
  DropGradients();
  push_.Stop();

  ExpectIncoming(step_ + 1);
}

void SynchronousWorker::ReportOwing() {
  const double limit = context_->job.timeouts().weights();
  if (limit <= 0 || context_->now < owed_since_ + absl::Seconds(limit)) return;
  owed_since_ = context_->now;

  v1::WorkerProgress& progress = *out_->progress();
  progress.clear_owing();
  progress.set_owed_version(incoming_version_);
  for (const auto& [shard, partitions] : context_->owned) {
    const bool whole = std::all_of(partitions.begin(), partitions.end(),
                                   [this](uint32_t p) { return incoming_.IsWhole(p); });
    if (!whole) progress.add_owing(shard);
  }
}

void SynchronousWorker::Proceed() {
  if (!context_->member) return;
  SLUICE_DCHECK(incoming_version_ == step_ + (has_current_ ? 1 : 0),
                "a worker receives the version after its current one, or the one to begin with");

  ReportOwing();
  if (has_current_ && !assigned_ && !Finished()) Assign();
  if (rows_.active()) PullRows();

  if (!has_current_) return;
  reduction_.Proceed();
  push_.Flush();

  if (!push_.active() || times_.given() || !push_.AllSent() || out_->QueuedBytes() > 0) return;
  times_.OnGiven(context_->now);
  owed_since_ = context_->now;

  if (!context_->rules->KeepGradient())
    gradients_.emplace(&context_->table, tree_, context_->rules);
}

void SynchronousWorker::Assign() {
  if (Finished()) return;
  SLUICE_DCHECK(has_current_, "gradients are of the current version");
  if (!gradients_) gradients_.emplace(&context_->table, tree_, context_->rules);
  assigned_ = true;

  std::vector<MicrobatchRange> ranges = gradients_->Assign(context_->assignment);
  if (std::any_of(ranges.begin(), ranges.end(), [&](const auto& r) { return IsTooSmall(r); })) {
    // The model cannot compute it by itself, but with what is held: the assignment as a whole.
    gradients_.emplace(&context_->table, tree_, context_->rules);
    results_.clear();
    weights_.clear();
    ranges = gradients_->Assign(context_->assignment);
  }
  for (auto it = computing_.begin(); it != computing_.end();) {
    // A range that must be computed again was dropped, together with this computation's results, so
    // the computation's outcome does not affect what is held.
    const bool again = std::find(ranges.begin(), ranges.end(), it->second) != ranges.end();
    if (gradients_->Wants(it->second) && !again) {
      ++it;
    } else {
      out_->Add(CancelCompute{it->first});
      it = computing_.erase(it);
    }
  }

  for (const MicrobatchRange& range : ranges) Issue(range);
  times_.Begin();
  if (computing_.empty()) times_.OnComputed(context_->now);

  reduction_.Start(&*gradients_, step_);
  push_.Start(&*gradients_, CommonOfStep(), reduction_.active() ? &reduction_ : nullptr);
}

bool SynchronousWorker::IsTooSmall(const MicrobatchRange& range) const {
  const uint64_t samples = context_->plan->PositionsOf(step_, range).size();
  return !tree_ && samples > 0 && samples < context_->smallest_batch;
}

void SynchronousWorker::Issue(const MicrobatchRange& range) {
  SLUICE_DCHECK(gradients_->Wants(range), "what is computed is assigned");

  weights_.erase(weights_.lower_bound(range.begin), weights_.lower_bound(range.end));
  const PositionRange positions = context_->plan->PositionsOf(step_, range);
  if (positions.empty()) {
    for (int tensor = 0; tensor < context_->table.tensors_size(); ++tensor) {
      // Without gradients there is nothing to add, so this cannot fail.
      (void)gradients_->Resolve(range, static_cast<uint32_t>(tensor), std::nullopt);
    }
    return;
  }

  CountIfRecomputed(range, positions.size());
  Compute compute;
  compute.id = out_->NewCompute();
  compute.step = step_;
  compute.first_microbatch = range.begin;
  compute.microbatch_size = context_->job.training().microbatch_size();
  compute.positions = positions;
  computing_[compute.id] = range;
  sums_.Begin(compute.id, step_);
  out_->Add(compute);
}

void SynchronousWorker::CountIfRecomputed(const MicrobatchRange& range, uint64_t samples) {
  if (step_ > begun_step_) begun_ = IntervalSet();
  if (step_ < begun_step_) {
    out_->CountRecomputed(samples);
    return;
  }

  begun_step_ = step_;
  for (uint64_t microbatch = range.begin; microbatch < range.end; ++microbatch) {
    if (begun_.Contains(microbatch)) {
      out_->CountRecomputed(
          context_->plan->PositionsOf(step_, {microbatch, microbatch + 1}).size());
    }
  }
  begun_.Add(Interval{range.begin, range.end});
}

PushSender::Common SynchronousWorker::CommonOfStep() const {
  PushSender::Common common;
  common.step = step_;
  common.pull_next = !rows_.active();

  const uint64_t microbatches = context_->plan->MicrobatchesOfStep(step_);
  for (const MicrobatchRange& range : context_->assignment) {
    common.samples += context_->plan->PositionsOf(step_, range).size();
    if (range.begin < microbatches) {
      common.microbatches += std::min(range.end, microbatches) - range.begin;
    }
  }

  common.weight = WeightOfStep();
  return common;
}

// The weight of everything that is assigned, as far as it is known.
std::optional<double> SynchronousWorker::WeightOfStep() const {
  double sum = 0;
  bool given = false;
  for (const MicrobatchRange& range : context_->assignment) {
    const auto end = weights_.lower_bound(range.end);
    for (auto it = weights_.lower_bound(range.begin); it != end; ++it) {
      sum += it->second.value;
      given |= it->second.given;
    }
  }

  return given ? std::optional<double>(sum) : std::nullopt;
}

// With BitExact, weights are rounded, so that their sum is exact and does not depend on how the
// microbatches are divided among workers (docs/protocol.md 7.7).
void SynchronousWorker::OnWeight(ComputeId id, double weight) {
  const auto it = computing_.find(id);
  if (it == computing_.end()) return;
  weights_[it->second.begin] = {tree_ ? static_cast<double>(static_cast<float>(weight)) : weight,
                                /*given=*/true};
  push_.common().weight = WeightOfStep();
}

absl::Status SynchronousWorker::OnTensor(ComputeId id, uint32_t tensor,
                                         std::optional<Gradient> gradient) {
  auto it = computing_.find(id);
  if (it == computing_.end()) return absl::OkStatus();
  SLUICE_DCHECK(gradients_.has_value(), "the gradients that are computed are held");

  const uint64_t samples = context_->plan->PositionsOf(step_, it->second).size();
  if (weights_.try_emplace(it->second.begin, Weight{static_cast<double>(samples)}).second) {
    push_.common().weight = WeightOfStep();
  }

  ASSIGN_OR_RETURN(auto partial_sum, gradients_->Resolve(it->second, tensor, std::move(gradient)));
  if (partial_sum.has_value()) {
    reduction_.OnResolved(tensor);
    push_.OnResolved(*partial_sum, tensor);
  }
  return absl::OkStatus();
}

absl::Status SynchronousWorker::OnReduced(const v1::ViewId& view, uint64_t step,
                                          absl::StatusOr<ReducedPart> part) {
  ASSIGN_OR_RETURN(bool reduced, reduction_.OnReduced(view, step, std::move(part)));
  if (reduced) push_.OnReduced();
  return absl::OkStatus();
}

absl::Status SynchronousWorker::OnComputed(ComputeId id, const ComputeResult& result) {
  auto it = computing_.find(id);
  if (it == computing_.end()) return absl::OkStatus();
  for (int tensor = 0; tensor < context_->table.tensors_size(); ++tensor) {
    // A tensor that the engine did not name has no gradient.
    RETURN_IF_ERROR(OnTensor(id, static_cast<uint32_t>(tensor), std::nullopt));
  }

  results_[it->second.begin] = result;
  computing_.erase(it);
  sums_.OnComputed(id);

  if (computing_.empty()) times_.OnComputed(context_->now);
  return absl::OkStatus();
}

// If the engine gives weights, the mean loss of the results is the mean over their weights.
void SynchronousWorker::WeighLoss(v1::WorkerProgress::Step* step) const {
  double sum = 0;
  double weight = 0;
  bool given = false;
  for (const auto& [begin, result] : results_) {
    const auto found = weights_.find(begin);
    if (found == weights_.end() || result.samples == 0) continue;
    given |= found->second.given;
    if (found->second.value == 0) continue;  // its loss is the mean of nothing
    sum += result.loss_sum / static_cast<double>(result.samples) * found->second.value;
    weight += found->second.value;
  }

  if (!given) return;
  step->set_weight(weight);
  step->set_loss_sum(weight < kMinWeight ? 0 : sum / weight * static_cast<double>(step->samples()));
}

void SynchronousWorker::ReportStep() {
  SLUICE_DCHECK(has_current_, "a step is reported by a worker that had its version");
  v1::WorkerProgress& progress = *out_->progress();
  v1::WorkerProgress::Step& step = *progress.add_steps();
  step.set_step(step_);

  double data = 0;
  double compute = 0;
  for (const auto& [begin, result] : results_) {
    step.set_samples(step.samples() + result.samples);
    step.set_loss_sum(step.loss_sum() + result.loss_sum);
    step.set_correct(step.correct() + result.correct);
    data += absl::ToDoubleSeconds(result.data_time);
    compute += absl::ToDoubleSeconds(result.compute_time);
  }
  WeighLoss(&step);

  out_->CountSent(step.samples());
  progress.set_data_seconds(progress.data_seconds() + data);
  progress.set_compute_seconds(progress.compute_seconds() + compute);
  times_.AddTo(&progress);
}

}  // namespace sluice::worker
