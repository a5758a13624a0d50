#include "services/worker/core/shard_link.h"

#include <algorithm>
#include <utility>

#include "services/common/check.h"

namespace sluice::worker {
namespace {

constexpr absl::Duration kFirstPause = absl::Milliseconds(50);
constexpr absl::Duration kLongestPause = absl::Seconds(1);

}  // namespace

ShardLink::ShardLink(ShardId id, std::string address, absl::Time now)
    : id_(id), address_(std::move(address)), retry_at_(now) {}

void ShardLink::Tick(absl::Time now, WorkerActions* actions) {
  if (state_ != State::kWaiting || now < retry_at_) return;
  SLUICE_DCHECK(queue_.empty() && queued_bytes_ == 0,
                "nothing waits for a stream that is not open");
  state_ = State::kConnecting;
  actions->push_back(ConnectShard{id_, address_});
}

absl::Time ShardLink::NextDeadline() const {
  return state_ == State::kWaiting ? retry_at_ : absl::InfiniteFuture();
}

void ShardLink::OnConnected(const v1::Header& hello, WorkerActions* actions) {
  if (state_ != State::kConnecting) return;
  state_ = State::kGreeting;
  actions->push_back(SendFrame{id_, hello, absl::Cord()});
}

bool ShardLink::OnHelloReply(const v1::HelloReply& reply) {
  if (state_ != State::kGreeting) return false;
  SLUICE_DCHECK(queue_.empty(), "nothing is queued before the shard has answered the Hello");

  state_ = State::kReady;
  ++generation_;
  failures_ = 0;

  window_ = credit_ = reply.window_bytes();
  takes_rows_ = reply.takes_rows();
  return true;
}

void ShardLink::OnBroken(absl::Time now) {
  DropQueue();
  state_ = State::kWaiting;
  const absl::Duration pause = kFirstPause * (uint64_t{1} << std::min(failures_, 10));
  retry_at_ = now + std::min(pause, kLongestPause);
  ++failures_;
}

void ShardLink::Reset(const std::string& reason, absl::Time now, WorkerActions* actions) {
  Close(reason, actions);
  OnBroken(now);
}

void ShardLink::Close(const std::string& reason, WorkerActions* actions) {
  if (state_ != State::kWaiting) actions->push_back(DisconnectShard{id_, reason});
  state_ = State::kWaiting;
  retry_at_ = absl::InfiniteFuture();
  DropQueue();
}

void ShardLink::Send(v1::Header header, absl::Cord payload, WorkerActions* actions) {
  if (!ready()) return;
  queued_bytes_ += payload.size();
  queue_.push_back({std::move(header), std::move(payload)});
  Pump(actions);
}

void ShardLink::OnCredit(uint64_t bytes, WorkerActions* actions) {
  SLUICE_DCHECK(credit_ <= window_, "credit never exceeds the shard's window");
  credit_ += std::min(bytes, window_ - credit_);
  Pump(actions);
}

void ShardLink::DropQueue() {
  queue_.clear();
  queued_bytes_ = 0;
}

void ShardLink::Pump(WorkerActions* actions) {
  while (ready() && !queue_.empty()) {
    const uint64_t size = queue_.front().payload.size();
    // A frame that is larger than the window is sent alone.
    if (size > credit_ && credit_ < window_) return;

    SLUICE_DCHECK(queued_bytes_ >= size, "queued bytes are counted");
    credit_ -= std::min(size, credit_);
    queued_bytes_ -= size;

    actions->push_back(
        SendFrame{id_, std::move(queue_.front().header), std::move(queue_.front().payload)});
    queue_.pop_front();
  }

  SLUICE_DCHECK(!queue_.empty() || queued_bytes_ == 0, "queued bytes are those of the queue");
}

}  // namespace sluice::worker
