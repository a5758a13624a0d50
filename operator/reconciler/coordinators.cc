#include "operator/reconciler/coordinators.h"

#include <grpcpp/client_context.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <thread>
#include <utility>

#include "proto/jobcontrol.grpc.pb.h"
#include "services/common/mutex.h"
#include "services/common/tsan.h"
#include "services/protocol/desired_number.h"
#include "services/transport/grpc_settings.h"

namespace sluice::reconciler {
namespace {

using Death = v1::SetDesiredRequest::Death;

// Pending deaths of one job. More are dropped: the coordinator detects deaths itself.
constexpr size_t kMaxDeaths = 1000;
// As events_after, it asks for a progress without events: the operator records its own.
constexpr uint64_t kNoEvents = ~uint64_t{0};

}  // namespace

std::string Gist(const v1::JobProgress& progress) {
  v1::JobProgress gist;
  gist.set_phase(progress.phase());
  gist.set_reason(progress.reason());
  gist.set_attempt(progress.attempt());
  gist.set_restored(progress.restored());
  gist.set_total_steps(progress.total_steps());
  if (progress.has_view()) *gist.mutable_view()->mutable_id() = progress.view().id();
  gist.mutable_checkpoint()->set_error(progress.checkpoint().error());
  for (const v1::ProcessStatus& process : progress.processes()) {
    v1::ProcessStatus* kept = gist.add_processes();
    *kept->mutable_process() = process.process();
    kept->set_state(process.state());
  }
  return gist.SerializeAsString();
}

class GrpcCoordinators::Impl {
 public:
  Impl(Options options, std::function<void(const kube::ObjectKey&)> on_news)
      : options_(options), on_news_(std::move(on_news)) {
    thread_ = std::thread([this] { Loop(); });
  }

  ~Impl() {
    {
      MutexLock lock(&mutex_);
      stopping_ = true;
      for (Call* call : calls_) call->context.TryCancel();
      changed_.SignalAll();
    }
    thread_.join();
    std::vector<std::shared_ptr<void>> garbage;
    MutexLock lock(&mutex_);
    while (!calls_.empty()) changed_.Wait(&mutex_);
    garbage.swap(garbage_);  // freed after the lock
  }

  void Sync(const kube::ObjectKey& job, const std::string& instance, const ControlAddress& address,
            const v1::SetDesiredRequest& desired, std::vector<Death> deaths) {
    MutexLock lock(&mutex_);
    Partner& partner = partners_[job];
    if (partner.instance != instance || partner.address.host_and_port != address.host_and_port) {
      partner.deaths.clear();
      partner.unsent = true;
      partner.due = absl::Now();
      OpenChannel(&partner, address);
    } else if (partner.channel == nullptr || partner.address.credentials != address.credentials) {
      OpenChannel(&partner, address);  // after a pause, or with renewed credentials
    }
    partner.instance = instance;
    partner.active = true;
    const std::string serialized = desired.SerializeAsString();
    if (partner.serialized != serialized) {
      partner.serialized = serialized;
      partner.desired = desired;
      partner.unsent = true;
    }
    for (Death& death : deaths) {
      if (partner.deaths.size() >= kMaxDeaths) break;
      partner.deaths.push_back({std::move(death), absl::Now() + options_.deaths_last});
      partner.unsent = true;
    }
    if (partner.unsent && !partner.failing) partner.due = absl::Now();
    changed_.SignalAll();
  }

  void Pause(const kube::ObjectKey& job) {
    MutexLock lock(&mutex_);
    const auto found = partners_.find(job);
    if (found == partners_.end()) return;
    found->second.active = false;
    // A job may exist for weeks after its end; its connection is not needed.
    if (found->second.channel == nullptr) return;
    garbage_.push_back(std::exchange(found->second.channel, nullptr));
    changed_.SignalAll();
  }

  void Forget(const kube::ObjectKey& job) {
    MutexLock lock(&mutex_);
    const auto found = partners_.find(job);
    if (found == partners_.end()) return;
    if (found->second.channel != nullptr) garbage_.push_back(std::move(found->second.channel));
    partners_.erase(found);
    changed_.SignalAll();
  }

  LastProgress Latest(const kube::ObjectKey& job) const {
    MutexLock lock(&mutex_);
    const auto found = partners_.find(job);
    return found == partners_.end() ? LastProgress() : found->second.last_progress;
  }

 private:
  struct PendingDeath {
    Death death;
    absl::Time until;
  };
  struct Partner {
    std::string instance;
    ControlAddress address;
    std::shared_ptr<grpc::Channel> channel;
    bool active = false;
    v1::SetDesiredRequest desired;
    std::string serialized;  // `desired`, serialized
    bool unsent = false;
    std::vector<PendingDeath> deaths;
    bool calling = false;
    bool failing = false;  // the last call failed
    absl::Time due;
    LastProgress last_progress;
    std::string gist;
  };
  struct Call {
    kube::ObjectKey job;
    std::string instance;
    std::unique_ptr<v1::JobControl::Stub> stub;
    grpc::ClientContext context;
    v1::SetDesiredRequest sent;
    v1::SetDesiredResponse response;
    v1::GetProgressRequest question;
    v1::JobProgress answer;
  };

  void OpenChannel(Partner* partner, const ControlAddress& address)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    partner->address = address;
    if (partner->channel != nullptr) garbage_.push_back(std::move(partner->channel));
    partner->channel = MakeChannel({.address = address.host_and_port,
                                    .credentials = address.credentials,
                                    .connect_timeout = options_.call_timeout});
  }

  void Loop() {
    while (true) {
      std::vector<std::shared_ptr<void>> garbage;  // freed without the lock
      MutexLock lock(&mutex_);
      if (stopping_) return;
      garbage.swap(garbage_);
      if (!garbage.empty()) continue;

      const absl::Time now = absl::Now();
      absl::Time next = absl::InfiniteFuture();
      for (auto& [job, partner] : partners_) {
        if (!partner.active || partner.calling) continue;
        if (partner.due <= now) {
          Begin(job, &partner, now);
        } else {
          next = std::min(next, partner.due);
        }
      }
      if (next == absl::InfiniteFuture()) {
        changed_.Wait(&mutex_);
      } else {
        changed_.WaitWithDeadline(&mutex_, next);
      }
    }
  }

  void Begin(const kube::ObjectKey& job, Partner* partner, absl::Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    partner->calling = true;
    auto* call = new Call;
    calls_.push_back(call);
    call->job = job;
    call->instance = partner->instance;
    call->stub = v1::JobControl::NewStub(partner->channel);
    call->context.set_deadline(std::chrono::system_clock::now() +
                               absl::ToChronoMilliseconds(options_.call_timeout));

    // If the gate refuses, the desired state is sent when it opens again.
    const bool allowed = options_.gate == nullptr || options_.gate->Check().ok();
    if (!partner->unsent || !allowed) {
      call->question.set_events_after(kNoEvents);
      internal::BeforeGrpc(call);
      call->stub->async()->GetProgress(
          &call->context, &call->question, &call->answer,
          [this, call](const grpc::Status& status) { OnAnswer(call, status.ok()); });
      return;
    }

    call->sent = partner->desired;
    call->sent.set_number(numbers_.Next(now));
    for (const PendingDeath& pending : partner->deaths) {
      if (pending.until > now) *call->sent.add_deaths() = pending.death;
    }
    partner->deaths.clear();
    partner->unsent = false;
    internal::BeforeGrpc(call);
    call->stub->async()->SetDesired(
        &call->context, &call->sent, &call->response,
        [this, call](const grpc::Status& status) { OnDesiredSent(call, status.ok()); });
  }

  // Null if the job's coordinator has been replaced meanwhile.
  Partner* PartnerOf(const Call& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto found = partners_.find(call.job);
    if (found == partners_.end()) return nullptr;
    Partner* partner = &found->second;
    partner->calling = false;
    return partner->instance == call.instance ? partner : nullptr;
  }

  void End(Call* call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    calls_.erase(std::find(calls_.begin(), calls_.end(), call));
    garbage_.emplace_back(call, [](void* ended) { delete static_cast<Call*>(ended); });
    changed_.SignalAll();
  }

  void OnDesiredSent(Call* call, bool answered) {
    internal::AfterGrpc(call);
    MutexLock lock(&mutex_);
    if (Partner* partner = PartnerOf(*call); partner != nullptr) {
      partner->failing = !answered;
      partner->due = answered ? absl::Now() : absl::Now() + options_.poll_interval;
      if (numbers_.Ignored(call->sent.number(), call->response.number())) partner->unsent = true;
      if (!answered) {
        partner->unsent = true;
        for (const Death& death : call->sent.deaths()) {
          partner->deaths.push_back({death, absl::Now() + options_.deaths_last / 2});
        }
      }
    }
    End(call);
  }

  void OnAnswer(Call* call, bool answered) {
    internal::AfterGrpc(call);
    bool news = false;
    const kube::ObjectKey job = call->job;
    {
      MutexLock lock(&mutex_);
      if (Partner* partner = PartnerOf(*call); partner != nullptr) {
        partner->failing = !answered;
        partner->due = absl::Now() + options_.poll_interval;
        if (answered) {
          std::string gist = Gist(call->answer);
          news = partner->last_progress.instance != call->instance || gist != partner->gist;
          partner->gist = std::move(gist);
          partner->last_progress = {call->instance,
                                    std::make_shared<v1::JobProgress>(std::move(call->answer)),
                                    absl::Now()};
        }
      }
      news = news && !stopping_;
    }
    // The call counts as pending until here, so the destructor waits for it.
    if (news) on_news_(job);
    MutexLock lock(&mutex_);
    End(call);
  }

  const Options options_;
  const std::function<void(const kube::ObjectKey&)> on_news_;
  mutable Mutex mutex_;  // protects what follows; not held while calling out
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<kube::ObjectKey, Partner> partners_ ABSL_GUARDED_BY(mutex_);
  DesiredNumbers numbers_ ABSL_GUARDED_BY(mutex_);
  std::vector<Call*> calls_ ABSL_GUARDED_BY(mutex_);
  // Ended calls and unused channels. Freeing a channel may wait for gRPC's own threads, so none of
  // them may free it: the loop does.
  std::vector<std::shared_ptr<void>> garbage_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;  // last, because it uses the members above
};

GrpcCoordinators::GrpcCoordinators(Options options,
                                   std::function<void(const kube::ObjectKey&)> on_news)
    : impl_(std::make_unique<Impl>(options, std::move(on_news))) {}
GrpcCoordinators::~GrpcCoordinators() = default;

void GrpcCoordinators::Sync(const kube::ObjectKey& job, const std::string& instance,
                            const ControlAddress& address, const v1::SetDesiredRequest& desired,
                            std::vector<Death> deaths) {
  impl_->Sync(job, instance, address, desired, std::move(deaths));
}
void GrpcCoordinators::Pause(const kube::ObjectKey& job) { impl_->Pause(job); }
void GrpcCoordinators::Forget(const kube::ObjectKey& job) { impl_->Forget(job); }
LastProgress GrpcCoordinators::Latest(const kube::ObjectKey& job) const {
  return impl_->Latest(job);
}

}  // namespace sluice::reconciler
