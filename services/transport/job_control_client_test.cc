#include "services/transport/job_control_client.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/jobcontrol.grpc.pb.h"
#include "services/common/threads/mutex.h"
#include "services/transport/server/grpc_server.h"

// Runs in an environment where only calls poll the client's sockets (see BUILD), as in `sluice
// run`, which has no server.

namespace sluice {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);
constexpr uint32_t kAfterForget = 100;

// A coordinator on the loopback device.
class FakeCoordinator final : public v1::JobControl::Service {
 public:
  explicit FakeCoordinator(const std::string& address = "127.0.0.1:0") {
    auto server = GrpcServer::Start({.address = address}, {&service_});
    if (!server.ok()) {
      ADD_FAILURE() << server.status();
      return;
    }
    server_ = *std::move(server);
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", server_->port()); }
  // As another process at the same address.
  void Forget() {
    MutexLock lock(&mutex_);
    received_.Clear();
    highest_ = 0;
    forgot_ = true;
  }
  void SetEvents(uint64_t events) {
    MutexLock lock(&mutex_);
    events_ = events;
  }
  int deaths() {
    MutexLock lock(&mutex_);
    return deaths_;
  }

  grpc::Status SetDesired(grpc::ServerContext*, const v1::SetDesiredRequest* request,
                          v1::SetDesiredResponse* response) override {
    MutexLock lock(&mutex_);
    if (request->number() > highest_) received_ = *request;
    highest_ = std::max(highest_, request->number());
    response->set_number(highest_);
    deaths_ += request->deaths_size();
    if (forgot_) received_.set_workers(request->workers() + kAfterForget);
    return grpc::Status::OK;
  }
  // As if another parent had sent a request with this number.
  void SetHighest(uint64_t number) {
    MutexLock lock(&mutex_);
    highest_ = number;
  }
  // The step is the desired number of workers that it received.
  grpc::Status GetProgress(grpc::ServerContext*, const v1::GetProgressRequest* request,
                           v1::JobProgress* progress) override {
    MutexLock lock(&mutex_);
    progress->set_step(received_.workers());
    for (uint64_t event = request->events_after() + 1; event <= events_; ++event) {
      progress->add_events()->set_sequence(event);
    }
    return grpc::Status::OK;
  }

 private:
  Mutex mutex_;
  v1::SetDesiredRequest received_ ABSL_GUARDED_BY(mutex_);
  uint64_t highest_ ABSL_GUARDED_BY(mutex_) = 0;
  bool forgot_ ABSL_GUARDED_BY(mutex_) = false;
  int deaths_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t events_ ABSL_GUARDED_BY(mutex_) = 0;
  GeneratedService service_{this};
  std::unique_ptr<GrpcServer> server_;
};

// Listens, but closes every connection.
class BrokenListener {
 public:
  BrokenListener() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(name);
    // The next listener need not wait until the connections are forgotten.
    const int yes = 1;
    setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    auto* const plain = reinterpret_cast<sockaddr*>(&name);
    if (bind(socket_, plain, size) != 0 || listen(socket_, 16) != 0 ||
        getsockname(socket_, plain, &size) != 0) {
      ADD_FAILURE() << "cannot listen on the loopback device";
    }
    port_ = ntohs(name.sin_port);
  }
  ~BrokenListener() { close(socket_); }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }
  // Waits for a connection and closes it.
  void BreakOne() {
    const int connection = accept(socket_, nullptr, nullptr);
    EXPECT_GE(connection, 0);
    close(connection);
  }

 private:
  const int socket_;
  int port_ = 0;
};

class JobControlClientTest : public ::testing::Test {
 protected:
  void WaitForStep(uint64_t step) {
    MutexLock lock(&mutex_);
    const absl::Time deadline = absl::Now() + kPatience;
    while (step_ != step) {
      ASSERT_FALSE(changed_.WaitWithDeadline(&mutex_, deadline)) << "step " << step_;
    }
  }

  void WaitForEvents(const std::vector<uint64_t>& events) {
    MutexLock lock(&mutex_);
    const absl::Time deadline = absl::Now() + kPatience;
    while (events_.size() < events.size()) {
      ASSERT_FALSE(changed_.WaitWithDeadline(&mutex_, deadline)) << events_.size() << " events";
    }
    EXPECT_EQ(events_, events);
  }
  void Sync(const std::string& instance, const std::string& address, uint32_t workers) {
    v1::SetDesiredRequest desired;
    desired.set_workers(workers);
    client_.Sync("job", instance, {address, nullptr}, desired, {});
  }

  Mutex mutex_;
  CondVar changed_;
  uint64_t step_ ABSL_GUARDED_BY(mutex_) = UINT64_MAX;
  std::vector<uint64_t> events_ ABSL_GUARDED_BY(mutex_);
  JobControlClient client_{
      {.poll_interval = absl::Milliseconds(10)},
      [this](const std::string&, const std::string&, const v1::JobProgress& progress) {
        MutexLock lock(&mutex_);
        step_ = progress.step();
        for (const v1::Event& event : progress.events()) {
          events_.push_back(event.sequence());
        }
        changed_.SignalAll();
      }};
};

TEST_F(JobControlClientTest, SendsTheDesiredStateAndReceivesTheProgress) {
  FakeCoordinator coordinator;
  Sync("1", coordinator.address(), 3);
  WaitForStep(3);
  Sync("1", coordinator.address(), 4);
  WaitForStep(4);
}

TEST_F(JobControlClientTest, SendsEverythingAgainToANewInstance) {
  FakeCoordinator first;
  Sync("1", first.address(), 3);
  WaitForStep(3);
  // It has the address of the first one, but knows nothing.
  first.Forget();
  Sync("2", first.address(), 3);
  WaitForStep(3 + kAfterForget);
  FakeCoordinator second;
  Sync("2", second.address(), 5);
  WaitForStep(5);
}

TEST_F(JobControlClientTest, SendsAgainWithAHigherNumberWhatACoordinatorTookForOlder) {
  FakeCoordinator coordinator;
  coordinator.SetHighest(uint64_t{1} << 60);
  Sync("1", coordinator.address(), 3);
  WaitForStep(3);
  Sync("1", coordinator.address(), 4);
  WaitForStep(4);
}

TEST_F(JobControlClientTest, ReadsEveryEventOfEachInstanceOnce) {
  FakeCoordinator coordinator;
  coordinator.SetEvents(2);
  Sync("1", coordinator.address(), 1);
  WaitForEvents({1, 2});
  coordinator.SetEvents(3);
  WaitForEvents({1, 2, 3});
  Sync("2", coordinator.address(), 1);
  WaitForEvents({1, 2, 3, 1, 2, 3});
}

TEST_F(JobControlClientTest, ReportsDeathsToTheNextInstanceIfTheFirstDidNotAnswer) {
  JobControlClient::Death death;
  death.set_pid(7);
  {
    BrokenListener listener;
    client_.Sync("job", "1", {listener.address(), nullptr}, {}, {death});
    listener.BreakOne();
  }
  FakeCoordinator coordinator;
  Sync("2", coordinator.address(), 3);
  WaitForStep(3);
  EXPECT_EQ(coordinator.deaths(), 1);
}

TEST_F(JobControlClientTest, ReachesACoordinatorThatWasUnreachableAtFirst) {
  std::string address;
  {
    BrokenListener listener;
    address = listener.address();
    Sync("1", address, 3);
    // The client opens the second connection because the first one failed.
    listener.BreakOne();
    listener.BreakOne();
  }
  FakeCoordinator coordinator(address);
  WaitForStep(3);
}

TEST(AskForProgressTest, ReturnsTheAnswerOrTheError) {
  FakeCoordinator coordinator;
  const auto soon = [] { return absl::Now() + absl::Seconds(30); };
  EXPECT_TRUE(AskForProgress({coordinator.address(), nullptr}, {}, soon()).ok());
  EXPECT_EQ(AskForProgress({"127.0.0.1:1", nullptr}, {}, soon()).status().code(),
            absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace sluice
