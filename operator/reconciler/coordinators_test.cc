#include "operator/reconciler/coordinators.h"

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/jobcontrol.grpc.pb.h"
#include "services/common/threads/mutex.h"

namespace sluice::reconciler {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);

// A coordinator on the loopback device.
class FakeCoordinator final : public v1::JobControl::Service {
 public:
  FakeCoordinator() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~FakeCoordinator() override {
    {
      MutexLock lock(&mutex_);
      hangs_ = false;
      changed_.SignalAll();
    }
    server_->Shutdown();
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }
  void Hang() {
    MutexLock lock(&mutex_);
    hangs_ = true;
  }
  // As if another operator had sent a request with this number.
  void SetHighest(uint64_t number) {
    MutexLock lock(&mutex_);
    highest_ = number;
  }
  void SetStep(uint64_t step) {
    MutexLock lock(&mutex_);
    progress_.set_step(step);
    progress_.set_phase(step == 0 ? v1::JobProgress::STARTING : v1::JobProgress::TRAINING);
  }
  int Asked() {
    MutexLock lock(&mutex_);
    return asked_;
  }
  size_t TimesTold() {
    MutexLock lock(&mutex_);
    return received_.size();
  }
  // The desired state number `count` that it received, from 1; waits for it.
  v1::SetDesiredRequest Received(size_t count) {
    MutexLock lock(&mutex_);
    const absl::Time deadline = absl::Now() + kPatience;
    while (received_.size() < count && !changed_.WaitWithDeadline(&mutex_, deadline)) {
    }
    return received_.size() < count ? v1::SetDesiredRequest() : received_[count - 1];
  }

  grpc::Status SetDesired(grpc::ServerContext*, const v1::SetDesiredRequest* request,
                          v1::SetDesiredResponse* response) override {
    MutexLock lock(&mutex_);
    received_.push_back(*request);
    highest_ = std::max(highest_, request->number());
    response->set_number(highest_);
    changed_.SignalAll();
    return grpc::Status::OK;
  }
  grpc::Status GetProgress(grpc::ServerContext*, const v1::GetProgressRequest*,
                           v1::JobProgress* progress) override {
    MutexLock lock(&mutex_);
    ++asked_;
    while (hangs_) changed_.Wait(&mutex_);
    *progress = progress_;
    return grpc::Status::OK;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool hangs_ ABSL_GUARDED_BY(mutex_) = false;
  int asked_ ABSL_GUARDED_BY(mutex_) = 0;
  v1::JobProgress progress_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::SetDesiredRequest> received_ ABSL_GUARDED_BY(mutex_);
  uint64_t highest_ ABSL_GUARDED_BY(mutex_) = 0;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

class CoordinatorsTest : public ::testing::Test {
 protected:
  static GrpcCoordinators::Options Quick() {
    GrpcCoordinators::Options options;
    options.poll_interval = absl::Milliseconds(20);
    options.call_timeout = absl::Seconds(2);
    options.deaths_last = kPatience;
    return options;
  }
  static v1::SetDesiredRequest Wish(uint32_t workers) {
    v1::SetDesiredRequest wish;
    wish.set_workers(workers);
    return wish;
  }
  void WaitForNews(const kube::ObjectKey& job, uint64_t step) {
    MutexLock lock(&mutex_);
    const absl::Time deadline = absl::Now() + kPatience;
    while (absl::Now() < deadline) {
      const LastProgress last_progress = coordinators_.Latest(job);
      if (last_progress.progress != nullptr && last_progress.progress->step() == step) return;
      news_.WaitWithTimeout(&mutex_, absl::Milliseconds(10));
    }
    FAIL() << "step " << step << " of " << job.ToString() << " was not received";
  }

  const kube::ObjectKey a_{"ns", "a"};
  const kube::ObjectKey b_{"ns", "b"};
  Mutex mutex_;
  CondVar news_;
  GrpcCoordinators coordinators_{Quick(), [this](const kube::ObjectKey&) {
                                   MutexLock lock(&mutex_);
                                   news_.SignalAll();
                                 }};
};

TEST_F(CoordinatorsTest, SendsTheDesiredStateAndPolls) {
  FakeCoordinator coordinator;
  coordinator.SetStep(7);
  coordinators_.Sync(a_, "instance-1", {coordinator.address(), nullptr}, Wish(3), {});
  EXPECT_EQ(coordinator.Received(1).workers(), 3u);
  WaitForNews(a_, 7);
  EXPECT_EQ(coordinators_.Latest(a_).instance, "instance-1");
  coordinator.SetStep(8);
  WaitForNews(a_, 8);
}

TEST_F(CoordinatorsTest, SendsDesiredStateOnceAndDeathsWithTheNextCall) {
  FakeCoordinator coordinator;
  coordinators_.Sync(a_, "instance-1", {coordinator.address(), nullptr}, Wish(3), {});
  coordinator.Received(1);
  coordinators_.Sync(a_, "instance-1", {coordinator.address(), nullptr}, Wish(3), {});
  v1::SetDesiredRequest::Death death;
  death.mutable_process()->set_incarnation(5);
  coordinators_.Sync(a_, "instance-1", {coordinator.address(), nullptr}, Wish(3), {death});
  const v1::SetDesiredRequest received = coordinator.Received(2);
  ASSERT_EQ(received.deaths_size(), 1);
  EXPECT_EQ(received.deaths(0).process().incarnation(), 5u);
}

TEST_F(CoordinatorsTest, SendsAgainWithAHigherNumberWhatACoordinatorTookForOlder) {
  FakeCoordinator coordinator;
  constexpr uint64_t kHighest = uint64_t{1} << 60;
  coordinator.SetHighest(kHighest);
  coordinators_.Sync(a_, "instance-1", {coordinator.address(), nullptr}, Wish(3), {});
  EXPECT_LT(coordinator.Received(1).number(), kHighest);
  EXPECT_EQ(coordinator.Received(2).number(), kHighest + 1);
  EXPECT_EQ(coordinator.Received(2).workers(), 3u);
  coordinators_.Sync(a_, "instance-1", {coordinator.address(), nullptr}, Wish(4), {});
  EXPECT_EQ(coordinator.Received(3).number(), kHighest + 2);
}

TEST_F(CoordinatorsTest, SendsEverythingAgainToANewInstance) {
  FakeCoordinator first;
  coordinators_.Sync(a_, "instance-1", {first.address(), nullptr}, Wish(3), {});
  first.Received(1);
  FakeCoordinator second;
  second.SetStep(9);
  coordinators_.Sync(a_, "instance-2", {second.address(), nullptr}, Wish(3), {});
  EXPECT_EQ(second.Received(1).workers(), 3u);
  WaitForNews(a_, 9);
  EXPECT_EQ(coordinators_.Latest(a_).instance, "instance-2");
}

TEST_F(CoordinatorsTest, AHangingCoordinatorBlocksNoOther) {
  FakeCoordinator hung;
  hung.Hang();
  FakeCoordinator other;
  other.SetStep(4);
  coordinators_.Sync(a_, "instance-1", {hung.address(), nullptr}, Wish(1), {});
  hung.Received(1);
  coordinators_.Sync(b_, "instance-1", {other.address(), nullptr}, Wish(1), {});
  WaitForNews(b_, 4);
  EXPECT_EQ(coordinators_.Latest(a_).progress, nullptr);
}

TEST_F(CoordinatorsTest, ReachesACoordinatorThatStartsLater) {
  auto coordinator = std::make_unique<FakeCoordinator>();
  const std::string address = coordinator->address();
  coordinators_.Sync(a_, "instance-1", {"127.0.0.1:1", nullptr}, Wish(1), {});
  coordinators_.Sync(a_, "instance-1", {address, nullptr}, Wish(1), {});
  coordinator->SetStep(2);
  WaitForNews(a_, 2);
}

TEST_F(CoordinatorsTest, ContinuesAfterAPause) {
  FakeCoordinator coordinator;
  coordinator.SetStep(1);
  coordinators_.Sync(a_, "instance-1", {coordinator.address(), nullptr}, Wish(1), {});
  WaitForNews(a_, 1);
  coordinators_.Pause(a_);
  EXPECT_EQ(coordinators_.Latest(a_).progress->step(), 1u) << "the last report is kept";
  coordinator.SetStep(2);
  coordinators_.Sync(a_, "instance-1", {coordinator.address(), nullptr}, Wish(1), {});
  WaitForNews(a_, 2);
}

TEST_F(CoordinatorsTest, MakesNoCallsForAForgottenJob) {
  FakeCoordinator coordinator;
  coordinator.SetStep(1);
  coordinators_.Sync(a_, "instance-1", {coordinator.address(), nullptr}, Wish(1), {});
  WaitForNews(a_, 1);
  coordinators_.Forget(a_);
  EXPECT_EQ(coordinators_.Latest(a_).progress, nullptr);
}

class Gate final : public kube::WriteGate {
 public:
  absl::Status Check() override {
    return open ? absl::OkStatus() : absl::FailedPreconditionError("not the leader");
  }
  std::atomic<bool> open{false};
};

TEST_F(CoordinatorsTest, AFormerLeaderOnlyPolls) {
  FakeCoordinator coordinator;
  coordinator.SetStep(1);
  Gate gate;
  GrpcCoordinators::Options options = Quick();
  options.gate = &gate;
  GrpcCoordinators frozen(options, [](const kube::ObjectKey&) {});
  v1::SetDesiredRequest::Death death;
  death.mutable_process()->set_incarnation(5);
  frozen.Sync(a_, "instance-1", {coordinator.address(), nullptr}, Wish(3), {death});
  const absl::Time deadline = absl::Now() + kPatience;
  while (coordinator.Asked() < 3 && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(5));
  EXPECT_GE(coordinator.Asked(), 3);
  EXPECT_EQ(coordinator.TimesTold(), 0u);
  gate.open = true;
  const v1::SetDesiredRequest received = coordinator.Received(1);
  EXPECT_EQ(received.workers(), 3u);
  EXPECT_EQ(received.deaths_size(), 1);
}

TEST(GistTest, GrowingStepsAreNotNews) {
  v1::JobProgress before;
  before.set_step(1);
  before.set_phase(v1::JobProgress::TRAINING);
  v1::JobProgress after = before;
  after.set_step(2);
  after.set_samples(99);
  EXPECT_EQ(Gist(before), Gist(after));
  after.set_attempt(2);
  EXPECT_NE(Gist(before), Gist(after));
}

}  // namespace
}  // namespace sluice::reconciler
