#include "operator/runtime/controller.h"

#include <algorithm>
#include <optional>

#include "services/common/check.h"

namespace sluice::runtime {

const char* KindName(Result::Kind kind) {
  switch (kind) {
    case Result::Kind::kDone:
      return "done";
    case Result::Kind::kRequeue:
      return "requeue";
    case Result::Kind::kRequeueAfter:
      return "requeue_after";
    case Result::Kind::kError:
      return "error";
  }
  return "unknown";
}

Controller::Controller(Options options, Reconciler* reconciler, const Clock* clock,
                       ControllerObserver* observer)
    : options_(std::move(options)),
      reconciler_(reconciler),
      clock_(clock),
      observer_(observer),
      queue_(options_.queue, clock) {}

Controller::~Controller() { Stop(); }

void Controller::Process(const QueueCore::Taken& taken) {
  const absl::Time start = clock_->Now();
  const Result result = reconciler_->Reconcile(taken.key);
  const absl::Duration took = clock_->Now() - start;

  absl::Duration retry_in;
  switch (result.kind) {
    case Result::Kind::kDone:
      queue_.Forget(taken.key);
      break;
    case Result::Kind::kRequeueAfter:
      queue_.Forget(taken.key);
      retry_in = std::max(result.after, options_.shortest_wait);
      queue_.AddAfter(taken.key, retry_in);
      break;
    case Result::Kind::kRequeue:
    case Result::Kind::kError:
      retry_in = queue_.AddRateLimited(taken.key);
      break;
  }

  queue_.Done(taken.key);
  if (observer_ != nullptr) {
    observer_->OnReconciled(taken.key, result, taken.waited, took, retry_in);
  }
}

bool Controller::ProcessOne() {
  const std::optional<QueueCore::Taken> taken = queue_.TryTake();
  if (!taken.has_value()) return false;
  Process(*taken);
  return true;
}

void Controller::Start() {
  SLUICE_DCHECK(workers_.empty(), "a controller is started once");
  for (int i = 0; i < options_.workers; ++i) {
    workers_.emplace_back([this] {
      while (const std::optional<QueueCore::Taken> taken = queue_.Take()) Process(*taken);
    });
  }
}

void Controller::Stop() {
  queue_.ShutDown();
  for (std::thread& worker : workers_) worker.join();
  workers_.clear();
}

}  // namespace sluice::runtime
