#include "cli/local/job_control_client.h"

#include <grpcpp/client_context.h>

#include <chrono>
#include <optional>
#include <utility>

#include "services/transport/polled_channel.h"

namespace sluice::local {
namespace {

std::chrono::system_clock::time_point DeadlineAfter(absl::Duration timeout) {
  return std::chrono::system_clock::now() + absl::ToChronoMilliseconds(timeout);
}

}  // namespace

JobControlClient::JobControlClient(Options options,
                                   std::function<void(v1::JobProgress)> on_progress)
    : options_(std::move(options)), on_progress_(std::move(on_progress)) {
  thread_ = std::thread([this] { Loop(); });
}

JobControlClient::~JobControlClient() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.SignalAll();
  }
  thread_.join();
}

void JobControlClient::SetAddress(std::string address) {
  MutexLock lock(&mutex_);
  address_ = std::move(address);
  ++generation_;
  events_seen_ = 0;
  losses_seen_ = 0;
  unsent_ = wanted_;
  changed_.SignalAll();
}

void JobControlClient::SetDesired(uint32_t workers, uint32_t shards, bool suspend) {
  MutexLock lock(&mutex_);
  if (wanted_ && desired_.workers() == workers && desired_.shards() == shards &&
      desired_.suspend() == suspend) {
    return;
  }
  desired_.set_workers(workers);
  desired_.set_shards(shards);
  desired_.set_suspend(suspend);
  wanted_ = unsent_ = true;
  changed_.SignalAll();
}

void JobControlClient::ReportDeath(v1::SetDesiredRequest::Death death) {
  // Further deaths are dropped: the coordinator also detects deaths itself.
  constexpr int kMaxDeaths = 1000;
  MutexLock lock(&mutex_);
  if (desired_.deaths_size() >= kMaxDeaths) return;
  *desired_.add_deaths() = std::move(death);
  unsent_ = wanted_;
  changed_.SignalAll();
}

void JobControlClient::Loop() {
  std::optional<PolledChannel> channel;
  uint64_t channel_generation = 0;
  absl::Time next_poll = absl::InfinitePast();
  while (true) {
    std::string address;
    uint64_t generation = 0;
    bool unsent = false;
    {
      MutexLock lock(&mutex_);
      while (!stopping_ && (address_.empty() || (!unsent_ && generation_ == channel_generation &&
                                                 absl::Now() < next_poll))) {
        if (address_.empty()) {
          changed_.Wait(&mutex_);
        } else {
          changed_.WaitWithDeadline(&mutex_, next_poll);
        }
      }
      if (stopping_) return;
      address = address_;
      generation = generation_;
      unsent = unsent_;
    }
    if (generation != channel_generation) {
      channel.emplace(ChannelOptions{.address = address,
                                     .credentials = options_.credentials,
                                     .connect_timeout = options_.call_timeout});
      channel_generation = generation;
    }
    const std::unique_ptr<v1::JobControl::Stub> stub = v1::JobControl::NewStub(channel->Get());
    const bool answered =
        (!unsent || SendDesired(stub.get(), generation)) && PollProgress(stub.get(), generation);
    next_poll = absl::Now() + options_.poll_interval;
    if (answered) continue;
    // A failed call is repeated after a delay, not immediately.
    MutexLock lock(&mutex_);
    while (!stopping_ && generation_ == generation &&
           !changed_.WaitWithDeadline(&mutex_, next_poll)) {
    }
  }
}

bool JobControlClient::SendDesired(v1::JobControl::Stub* stub, uint64_t generation) {
  v1::SetDesiredRequest request;
  {
    MutexLock lock(&mutex_);
    request = desired_;
    request.set_number(numbers_.Next(absl::Now()));
    unsent_ = false;
  }
  grpc::ClientContext context;
  context.set_deadline(DeadlineAfter(options_.call_timeout));
  v1::SetDesiredResponse response;
  const grpc::Status status = stub->SetDesired(&context, request, &response);
  MutexLock lock(&mutex_);
  if (!status.ok()) {
    unsent_ = true;
  } else if (generation_ == generation) {
    if (numbers_.Ignored(request.number(), response.number())) unsent_ = true;
    desired_.mutable_deaths()->DeleteSubrange(0, request.deaths_size());
  }
  return status.ok();
}

bool JobControlClient::PollProgress(v1::JobControl::Stub* stub, uint64_t generation) {
  v1::GetProgressRequest request;
  {
    MutexLock lock(&mutex_);
    if (generation_ == generation) {
      request.set_events_after(events_seen_);
      request.set_losses_after(losses_seen_);
    }
    request.set_with_losses(options_.with_losses);
  }
  grpc::ClientContext context;
  context.set_deadline(DeadlineAfter(options_.call_timeout));
  v1::JobProgress progress;
  const grpc::Status status = stub->GetProgress(&context, request, &progress);
  if (!status.ok()) return false;
  {
    MutexLock lock(&mutex_);
    if (generation_ != generation || stopping_) return true;
    for (const v1::Event& event : progress.events()) {
      if (event.sequence() > events_seen_) events_seen_ = event.sequence();
    }
    for (const v1::BatchLoss& loss : progress.losses()) {
      if (loss.sequence() > losses_seen_) losses_seen_ = loss.sequence();
    }
  }
  on_progress_(std::move(progress));
  return true;
}

}  // namespace sluice::local
