#include "services/transport/job_control_client.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <algorithm>
#include <map>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "proto/jobcontrol.grpc.pb.h"
#include "services/common/threads/mutex.h"
#include "services/common/threads/tsan.h"
#include "services/protocol/desired_number.h"
#include "services/transport/grpc_settings.h"
#include "services/transport/grpc_status.h"

namespace sluice {
namespace {

// Pending deaths of one job; more are dropped.
constexpr size_t kMaxDeaths = 1000;

}  // namespace

class JobControlClient::Impl {
 public:
  Impl(Options options, OnProgress on_progress)
      : options_(std::move(options)), on_progress_(std::move(on_progress)) {
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

  void Sync(const std::string& job, const std::string& instance, const ControlAddress& address,
            const v1::SetDesiredRequest& desired, std::vector<Death> deaths) {
    MutexLock lock(&mutex_);
    Peer& peer = peers_[job];
    if (peer.instance != instance || peer.address.host_and_port != address.host_and_port) {
      peer.generation = ++generations_;
      peer.events_seen = peer.losses_seen = 0;
      peer.unsent = true;
      peer.due = absl::Now();
      OpenChannel(&peer, address);
    } else if (peer.channel == nullptr || peer.address.credentials != address.credentials) {
      OpenChannel(&peer, address);  // after a pause, or with renewed credentials
    }

    peer.instance = instance;
    peer.active = true;

    std::string serialized = desired.SerializeAsString();
    if (peer.serialized != serialized) {
      peer.serialized = std::move(serialized);
      peer.desired = desired;
      peer.unsent = true;
    }

    for (Death& death : deaths) {
      if (peer.deaths.size() >= kMaxDeaths) break;
      peer.deaths.push_back({std::move(death), absl::Now() + options_.deaths_last});
      peer.unsent = true;
    }

    // A failed call is repeated after the interval, not at once.
    if (peer.unsent && !peer.failing) peer.due = absl::Now();
    changed_.SignalAll();
  }

  void Pause(const std::string& job) {
    MutexLock lock(&mutex_);
    const auto found = peers_.find(job);
    if (found == peers_.end()) return;
    found->second.active = false;
    CloseChannel(&found->second);
    changed_.SignalAll();
  }

  void Forget(const std::string& job) {
    MutexLock lock(&mutex_);
    const auto found = peers_.find(job);
    if (found == peers_.end()) return;
    CloseChannel(&found->second);
    peers_.erase(found);
    changed_.SignalAll();
  }

 private:
  struct Call;
  struct PendingDeath {
    Death death;
    absl::Time until;
  };
  // The coordinator of one job.
  struct Peer {
    std::string instance;
    ControlAddress address;
    uint64_t generation = 0;  // another one for each instance and address
    std::shared_ptr<grpc::Channel> channel;
    bool active = false;
    v1::SetDesiredRequest desired;
    std::string serialized;  // `desired`, serialized
    bool unsent = false;
    std::vector<PendingDeath> deaths;
    const Call* call = nullptr;  // the one under way
    bool failing = false;        // the last call failed
    absl::Time due;
    uint64_t events_seen = 0;
    uint64_t losses_seen = 0;
  };
  struct Call {
    std::string job;
    std::string instance;
    uint64_t generation = 0;
    std::unique_ptr<v1::JobControl::Stub> stub;
    grpc::ClientContext context;
    v1::SetDesiredRequest sent;
    std::vector<PendingDeath> deaths;  // in `sent`
    v1::SetDesiredResponse response;
    v1::GetProgressRequest question;
    v1::JobProgress answer;
  };

  void OpenChannel(Peer* peer, const ControlAddress& address)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    CloseChannel(peer);
    peer->address = address;
    peer->channel = MakeChannel({.address = address.host_and_port,
                                 .credentials = address.credentials,
                                 .connect_timeout = options_.call_timeout});
  }

  void CloseChannel(Peer* peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (peer->channel != nullptr) garbage_.push_back(std::exchange(peer->channel, nullptr));
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
      for (auto& [job, peer] : peers_) {
        if (!peer.active || peer.call != nullptr) continue;
        if (peer.due <= now) {
          Begin(job, &peer, now);
        } else {
          next = std::min(next, peer.due);
        }
      }
      if (next == absl::InfiniteFuture()) {
        changed_.Wait(&mutex_);
      } else {
        changed_.WaitWithDeadline(&mutex_, next);
      }
    }
  }

  void Begin(const std::string& job, Peer* peer, absl::Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    // Without a call, nothing notices that the channel could connect meanwhile (PolledChannel).
    if (peer->channel->GetState(/*try_to_connect=*/false) == GRPC_CHANNEL_TRANSIENT_FAILURE) {
      OpenChannel(peer, ControlAddress(peer->address));
    }

    auto* call = new Call;
    calls_.push_back(call);
    peer->call = call;
    call->job = job;
    call->instance = peer->instance;
    call->generation = peer->generation;
    call->stub = v1::JobControl::NewStub(peer->channel);
    call->context.set_deadline(absl::ToChronoTime(now + options_.call_timeout));

    // If it is refused, the desired state is sent when it is allowed again.
    if (peer->unsent && (options_.may_send == nullptr || options_.may_send())) {
      SendDesired(call, peer, now);
    } else {
      Poll(call, *peer);
    }
  }

  void SendDesired(Call* call, Peer* peer, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    call->sent = peer->desired;
    call->sent.set_number(numbers_.Next(now));

    for (PendingDeath& pending : peer->deaths) {
      if (pending.until <= now) continue;
      *call->sent.add_deaths() = pending.death;
      call->deaths.push_back(std::move(pending));
    }

    peer->deaths.clear();
    peer->unsent = false;

    internal::BeforeGrpc(call);
    call->stub->async()->SetDesired(
        &call->context, &call->sent, &call->response,
        [this, call](const grpc::Status& status) { OnDesiredSent(call, status.ok()); });
  }

  void Poll(Call* call, const Peer& peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    call->question.set_events_after(options_.with_events ? peer.events_seen : kNoEvents);
    call->question.set_losses_after(peer.losses_seen);
    call->question.set_with_losses(options_.with_losses);
    internal::BeforeGrpc(call);
    call->stub->async()->GetProgress(
        &call->context, &call->question, &call->answer,
        [this, call](const grpc::Status& status) { OnAnswer(call, status.ok()); });
  }

  // The coordinator that was called; null if the job was forgotten.
  Peer* PeerOf(const Call* call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto found = peers_.find(call->job);
    return found == peers_.end() || found->second.call != call ? nullptr : &found->second;
  }

  void End(Call* call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (Peer* peer = PeerOf(call); peer != nullptr) peer->call = nullptr;
    calls_.erase(std::find(calls_.begin(), calls_.end(), call));
    garbage_.emplace_back(call, [](void* ended) { delete static_cast<Call*>(ended); });
    changed_.SignalAll();
  }

  void OnDesiredSent(Call* call, bool answered) {
    internal::AfterGrpc(call);
    MutexLock lock(&mutex_);
    if (Peer* peer = PeerOf(call); peer != nullptr) {
      const bool same = peer->generation == call->generation;
      if (same) {
        peer->failing = !answered;
        peer->due = answered ? absl::Now() : absl::Now() + options_.poll_interval;
        if (numbers_.Ignored(call->sent.number(), call->response.number())) peer->unsent = true;
      }
      if (!same || !answered) {
        peer->unsent = true;
        const absl::Time until = absl::Now() + options_.deaths_last / 2;
        for (PendingDeath& pending : call->deaths) {
          peer->deaths.push_back({std::move(pending.death), std::max(pending.until, until)});
        }
      }
    }
    End(call);
  }

  void OnAnswer(Call* call, bool answered) {
    internal::AfterGrpc(call);
    bool report = false;
    {
      MutexLock lock(&mutex_);
      Peer* const peer = PeerOf(call);
      if (peer != nullptr && peer->generation == call->generation) {
        peer->failing = !answered;
        peer->due = absl::Now() + options_.poll_interval;
        report = answered && !stopping_;
        for (const v1::Event& event : call->answer.events()) {
          peer->events_seen = std::max<uint64_t>(peer->events_seen, event.sequence());
        }
        for (const v1::BatchLoss& loss : call->answer.losses()) {
          peer->losses_seen = std::max<uint64_t>(peer->losses_seen, loss.sequence());
        }
      }
    }
    // The call counts as under way until here: the next one and the destructor wait for it.
    if (report) on_progress_(call->job, call->instance, std::move(call->answer));
    MutexLock lock(&mutex_);
    End(call);
  }

  const Options options_;
  const OnProgress on_progress_;
  Mutex mutex_;  // protects what follows; not held while calling out
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<std::string, Peer> peers_ ABSL_GUARDED_BY(mutex_);
  uint64_t generations_ ABSL_GUARDED_BY(mutex_) = 0;
  DesiredNumbers numbers_ ABSL_GUARDED_BY(mutex_);
  std::vector<Call*> calls_ ABSL_GUARDED_BY(mutex_);
  // Ended calls and unused channels. Freeing a channel may wait for gRPC's own threads, so none of
  // them may free it: the loop does.
  std::vector<std::shared_ptr<void>> garbage_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;  // last, because it uses the members above
};

JobControlClient::JobControlClient(Options options, OnProgress on_progress)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(on_progress))) {}
JobControlClient::~JobControlClient() = default;

void JobControlClient::Sync(const std::string& job, const std::string& instance,
                            const ControlAddress& address, const v1::SetDesiredRequest& desired,
                            std::vector<Death> deaths) {
  impl_->Sync(job, instance, address, desired, std::move(deaths));
}
void JobControlClient::Pause(const std::string& job) { impl_->Pause(job); }
void JobControlClient::Forget(const std::string& job) { impl_->Forget(job); }

absl::StatusOr<v1::JobProgress> AskForProgress(const ControlAddress& coordinator,
                                               const v1::GetProgressRequest& request,
                                               absl::Time deadline) {
  const auto stub = v1::JobControl::NewStub(
      MakeChannel({.address = coordinator.host_and_port, .credentials = coordinator.credentials}));
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(deadline));
  v1::JobProgress progress;
  const grpc::Status status = stub->GetProgress(&context, request, &progress);
  if (!status.ok()) return FromGrpcStatus(status);
  return progress;
}

}  // namespace sluice
