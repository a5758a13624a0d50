#include "services/transport/streams/event_loop.h"

#include <pthread.h>

#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "services/common/threads/tsan.h"

namespace sluice {
namespace {

constexpr absl::Duration kSweepInterval = absl::Milliseconds(250);

}  // namespace

EventLoop::EventLoop(std::string name)
    : EventLoop(std::move(name), std::make_unique<grpc::CompletionQueue>()) {
  Start();
}

EventLoop::EventLoop(std::string name, std::unique_ptr<grpc::CompletionQueue> queue)
    : name_(std::move(name)), queue_(std::move(queue)) {}

EventLoop::~EventLoop() {
  queue_->Shutdown();
  if (thread_.joinable()) {
    thread_.join();
  } else {
    Run(nullptr);
  }
}

void EventLoop::Start(std::function<void()> sweep) {
  thread_ = std::thread([this, sweep = std::move(sweep)] {
    pthread_setname_np(pthread_self(), name_.substr(0, 15).c_str());
    Run(sweep);
  });
}

void EventLoop::Run(const std::function<void()>& sweep) {
  void* tag = nullptr;
  bool ok = false;
  absl::Time next_sweep = sweep ? absl::Now() + kSweepInterval : absl::InfiniteFuture();

  while (true) {
    const auto next = queue_->AsyncNext(&tag, &ok, absl::ToChronoTime(next_sweep));
    if (next == grpc::CompletionQueue::SHUTDOWN) return;
    internal::AfterGrpc(this);
    if (next == grpc::CompletionQueue::GOT_EVENT) static_cast<internal::Event*>(tag)->Complete(ok);

    if (!sweep || absl::Now() < next_sweep) continue;
    sweep();
    next_sweep = absl::Now() + kSweepInterval;
  }
}

}  // namespace sluice
