#include "services/worker/core/evaluation_queue.h"

#include <algorithm>
#include <utility>

#include "services/common/check.h"

namespace sluice::worker {

void EvaluationQueue::Add(const v1::Evaluate& request) {
  const Asked asked{request, context_->view.id().attempt()};
  const auto same = [&](const Asked& other) {
    return other.attempt == asked.attempt && other.request.version() == request.version() &&
           other.request.evaluation() == request.evaluation() &&
           other.request.samples().begin() == request.samples().begin() &&
           other.request.samples().end() == request.samples().end();
  };

  if (std::any_of(waiting_.begin(), waiting_.end(), same)) return;
  if (std::any_of(running_.begin(), running_.end(),
                  [&](const auto& running) { return same(running.second); })) {
    return;
  }

  if (!context_->MayEvaluate() || waiting_.size() >= kMaxWaiting ||
      request.samples().begin() >= request.samples().end()) {
    Fail(asked, !context_->MayEvaluate()         ? "not a member of the view"
                : waiting_.size() >= kMaxWaiting ? "too many evaluations are waiting"
                                                 : "no samples");
    return;
  }

  waiting_.push_back(asked);
}

void EvaluationQueue::OnView(bool same_attempt) {
  // In this view the snapshot may have been pinned again, and partitions have other owners.
  snapshot_ = 0;
  if (same_attempt && context_->MayEvaluate()) return;
  for (const Asked& asked : waiting_) Fail(asked, "the version is gone: the view has changed");
  waiting_.clear();
}

void EvaluationQueue::OnLinkReady(ShardLink& link) {
  if (snapshot_ != 0 && !receiver_.IsWhole()) PullFrom(link);
}

absl::Status EvaluationQueue::OnData(const v1::Data& data, const absl::Cord& payload) {
  if (snapshot_ == 0 || data.snapshot_id() != snapshot_) return absl::OkStatus();
  return receiver_.Accept(data, payload, out_->actions());
}

void EvaluationQueue::OnPullRefused(uint64_t snapshot, const std::string& reason) {
  if (snapshot_ != snapshot || receiver_.IsWhole()) return;

  for (auto it = waiting_.begin(); it != waiting_.end();) {
    if (it->request.snapshot_id() == snapshot_) {
      Fail(*it, reason);
      it = waiting_.erase(it);
    } else {
      ++it;
    }
  }

  snapshot_ = 0;
}

bool EvaluationQueue::OnEvaluated(ComputeId id, const ComputeResult& result) {
  auto it = running_.find(id);
  if (it == running_.end()) return false;

  v1::EvaluationResult answer = AnswerTo(it->second);
  if (result.status.ok()) {
    answer.set_loss_sum(result.loss_sum);
    if (result.weight.has_value()) answer.set_weight(*result.weight);
    answer.set_correct(result.correct);
    answer.set_counted(result.counted);
    answer.set_count(result.samples);
    *answer.mutable_metrics() = {result.metrics.begin(), result.metrics.end()};
  } else {
    answer.set_error(std::string(result.status.message()));
  }

  Answer(std::move(answer));
  running_.erase(it);
  return true;
}

void EvaluationQueue::Proceed(std::optional<uint64_t> current_version) {
  SLUICE_DCHECK(std::all_of(running_.begin(), running_.end(),
                            [&](const auto& running) { return out_->Awaits(running.first); }),
                "an evaluation runs until its result has come");
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    if (current_version && *current_version == it->request.version()) {
      Issue(*it, ComputeEngine::Buffer::kCurrent);
    } else if (snapshot_ == it->request.snapshot_id() && snapshot_ != 0 && receiver_.IsWhole()) {
      Issue(*it, ComputeEngine::Buffer::kEvaluation);
    } else {
      ++it;
      continue;
    }
    it = waiting_.erase(it);
  }

  // The buffer is free for another snapshot once no evaluation reads or waits for its snapshot.
  const bool wanted =
      snapshot_ != 0 && std::any_of(waiting_.begin(), waiting_.end(), [&](const Asked& asked) {
        return asked.request.snapshot_id() == snapshot_;
      });
  if (!waiting_.empty() && !wanted && running_.empty())
    StartPull(waiting_.front().request.snapshot_id());
}

void EvaluationQueue::Answer(v1::EvaluationResult answer) {
  *answers_.emplace_back().mutable_evaluation_result() = std::move(answer);
}

std::vector<v1::MemberMessage> EvaluationQueue::TakeAnswers() {
  return std::exchange(answers_, {});
}

// ---- the program's own metrics

void EvaluationQueue::Add(const v1::ComputeMetrics& request) {
  Computation computation;
  computation.evaluation = request.evaluation();
  computation.name = request.name();
  if (request.parts_size() > 0) computation.samples = request.parts().rbegin()->samples().end();

  const auto same = std::find_if(computing_.begin(), computing_.end(), [&](const auto& other) {
    return other.evaluation == computation.evaluation &&
           other.name.attempt() == computation.name.attempt() &&
           other.name.step() == computation.name.step();
  });
  if (same != computing_.end()) {
    if (same->samples == computation.samples) return;
    computing_.erase(same);  // of an older coordinator
  }

  if (computing_.size() >= kMaxComputations) {
    v1::MetricValues& answer = *answers_.emplace_back().mutable_metric_values();
    answer.set_evaluation(request.evaluation());
    *answer.mutable_name() = request.name();
    answer.set_error("too many computations of metrics are waiting");
    return;
  }

  computation.id = ++last_computation_;
  computing_.push_back(computation);
  out_->Add(ComputeMetrics{computation.id, request});
}

void EvaluationQueue::OnMetricValues(MetricsId id, v1::MetricValues values) {
  const auto answered = std::find_if(computing_.begin(), computing_.end(),
                                     [&](const auto& computation) { return computation.id == id; });
  if (answered == computing_.end()) return;
  values.set_evaluation(answered->evaluation);
  *values.mutable_name() = answered->name;
  computing_.erase(answered);
  *answers_.emplace_back().mutable_metric_values() = std::move(values);
}

v1::EvaluationResult EvaluationQueue::AnswerTo(const Asked& asked) {
  v1::EvaluationResult answer;
  answer.set_evaluation(asked.request.evaluation());
  *answer.mutable_samples() = asked.request.samples();
  answer.mutable_name()->set_attempt(asked.attempt);
  answer.mutable_name()->set_step(asked.request.version());
  return answer;
}

void EvaluationQueue::Issue(const Asked& asked, ComputeEngine::Buffer buffer) {
  SLUICE_DCHECK(asked.request.samples().begin() < asked.request.samples().end(),
                "an evaluation that is given to the compute thread has samples");
  EvaluateSamples evaluate;
  evaluate.id = out_->NewCompute();
  evaluate.buffer = buffer;
  evaluate.samples = {asked.request.samples().begin(), asked.request.samples().end()};

  running_[evaluate.id] = asked;
  out_->Add(evaluate);
}

void EvaluationQueue::Fail(const Asked& asked, const std::string& reason) {
  v1::EvaluationResult answer = AnswerTo(asked);
  answer.set_error(reason);
  Answer(std::move(answer));
}

void EvaluationQueue::StartPull(uint64_t snapshot) {
  SLUICE_DCHECK(running_.empty(),
                "no evaluation reads the buffer while a snapshot is pulled to it");
  snapshot_ = snapshot;
  receiver_.Reset(&context_->layout, &*context_->index, context_->ByReference());
  for (auto& [shard, link] : out_->links()) {
    if (link.ready()) PullFrom(link);
  }
}

void EvaluationQueue::PullFrom(ShardLink& link) {
  auto owned = context_->owned.find(link.id());
  if (owned == context_->owned.end()) return;

  v1::Header header;
  v1::Pull& pull = *header.mutable_pull();
  pull.set_snapshot_id(snapshot_);

  for (uint32_t partition : owned->second) {
    if (receiver_.IsWhole(partition)) continue;
    receiver_.ForgetPartial(partition);
    pull.add_partitions(partition);
  }

  if (pull.partitions_size() > 0) out_->Send(link, std::move(header));
}

}  // namespace sluice::worker
