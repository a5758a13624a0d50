#include "services/coordinator/snapshot_calls.h"

#include <utility>
#include <vector>

#include "services/common/threads/tsan.h"
#include "services/transport/grpc_status.h"
#include "services/transport/streams/outbox.h"

namespace sluice::coordinator {

// Lives until OnDone, which gRPC calls last.
class SnapshotCalls::Call final : public grpc::ServerWriteReactor<v1::Snapshot> {
 public:
  Call(SnapshotCalls* calls, uint64_t number, grpc::CallbackServerContext* context)
      : calls_(calls), number_(number), context_(context) {}

  void Answer(absl::StatusOr<v1::Snapshot> snapshot) {
    if (snapshot.ok()) {
      Act(outbox_.Push(*std::move(snapshot), 1));
    } else {
      Act(outbox_.Close(snapshot.status()));
    }
  }

  void OnWriteDone(bool ok) override {
    internal::AfterGrpc(this);
    if (!ok) Act(outbox_.Break(ReaderEnded()));
    Act(outbox_.Sent());
  }

  void OnCancel() override {
    internal::AfterGrpc(this);
    Act(outbox_.Break(ReaderEnded()));
  }

  void OnDone() override {
    internal::AfterGrpc(this);
    {
      MutexLock lock(&mutex_);
      context_ = nullptr;
    }
    calls_->on_ended_(number_);
    calls_->Forget(number_);  // ends this
  }

 private:
  using Outbox = internal::Outbox<v1::Snapshot>;

  static absl::Status ReaderEnded() { return absl::CancelledError("the reader ended the call"); }

  void Act(Outbox::Action action) {
    internal::BeforeGrpc(this);
    switch (action) {
      case Outbox::Action::kNothing:
        return;
      case Outbox::Action::kWrite:
        return StartWrite(&outbox_.front());
      case Outbox::Action::kCutLater: {
        // The reader has not received the snapshot, which has ended.
        MutexLock lock(&mutex_);
        if (context_ != nullptr) context_->TryCancel();
        return;
      }
      case Outbox::Action::kFinish: {
        const grpc::Status status = ToGrpcStatus(outbox_.why());
        internal::BeforeGrpc(this);  // OnDone may follow on another thread at once
        return Finish(status);
      }
    }
  }

  SnapshotCalls* const calls_;
  const uint64_t number_;
  Outbox outbox_{/*max_cost=*/1, nullptr};  // one Snapshot
  // Protects the context's lifetime: gRPC destroys it after OnDone. Held while it is cancelled,
  // which runs no reaction on this thread.
  Mutex mutex_;
  grpc::CallbackServerContext* context_ ABSL_GUARDED_BY(mutex_);
};

grpc::ServerWriteReactor<v1::Snapshot>* SnapshotCalls::Accept(grpc::CallbackServerContext* context,
                                                              uint64_t* call) {
  MutexLock lock(&mutex_);
  *call = ++last_;
  return open_.emplace(*call, std::make_shared<Call>(this, *call, context)).first->second.get();
}

void SnapshotCalls::Answer(uint64_t call, absl::StatusOr<v1::Snapshot> snapshot) {
  if (const std::shared_ptr<Call> open = Find(call)) open->Answer(std::move(snapshot));
}

void SnapshotCalls::EndAll(const absl::Status& why) {
  std::vector<std::shared_ptr<Call>> calls;
  {
    MutexLock lock(&mutex_);
    for (const auto& [number, call] : open_) calls.push_back(call);
  }
  for (const auto& call : calls) call->Answer(why);
}

void SnapshotCalls::Stopped() {
  MutexLock lock(&mutex_);
  while (!open_.empty()) ended_.Wait(&mutex_);
}

std::shared_ptr<SnapshotCalls::Call> SnapshotCalls::Find(uint64_t call) {
  MutexLock lock(&mutex_);
  const auto found = open_.find(call);
  return found == open_.end() ? nullptr : found->second;
}

void SnapshotCalls::Forget(uint64_t call) {
  std::shared_ptr<Call> ended;  // destroyed without the lock
  MutexLock lock(&mutex_);
  const auto found = open_.find(call);
  if (found == open_.end()) return;
  ended = std::move(found->second);
  open_.erase(found);
  if (open_.empty()) ended_.SignalAll();
}

}  // namespace sluice::coordinator
