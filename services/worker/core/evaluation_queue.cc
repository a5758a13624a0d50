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
  return receiver_.Accept(data, payload, &context_->actions);
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
  } else {
    answer.set_error(std::string(result.status.message()));
  }
  results_.push_back(std::move(answer));
  running_.erase(it);
  return true;
}

void EvaluationQueue::Proceed(std::optional<uint64_t> current_version) {
  SLUICE_DCHECK(std::all_of(running_.begin(), running_.end(),
                            [&](const auto& running) {
                              return context_->outstanding.count(running.first) > 0;
                            }),
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

std::vector<v1::EvaluationResult> EvaluationQueue::TakeResults() {
  return std::exchange(results_, {});
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
  EvaluateSamples evaluate;
  evaluate.id = context_->NewCompute();
  evaluate.buffer = buffer;
  SLUICE_DCHECK(asked.request.samples().begin() < asked.request.samples().end(),
                "an evaluation that is given to the compute thread has samples");
  evaluate.samples = {asked.request.samples().begin(), asked.request.samples().end()};
  running_[evaluate.id] = asked;
  context_->actions.push_back(evaluate);
}

void EvaluationQueue::Fail(const Asked& asked, const std::string& reason) {
  v1::EvaluationResult answer = AnswerTo(asked);
  answer.set_error(reason);
  results_.push_back(std::move(answer));
}

void EvaluationQueue::StartPull(uint64_t snapshot) {
  SLUICE_DCHECK(running_.empty(),
                "no evaluation reads the buffer while a snapshot is pulled to it");
  snapshot_ = snapshot;
  receiver_.Reset(&context_->layout, &*context_->index, context_->ByReference());
  for (auto& [shard, link] : context_->links) {
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
  if (pull.partitions_size() > 0) context_->Send(link, std::move(header));
}

}  // namespace sluice::worker
