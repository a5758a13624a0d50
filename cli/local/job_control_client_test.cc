#include "cli/local/job_control_client.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "services/transport/grpc_server.h"

// Runs in an environment where only calls poll the client's sockets (see BUILD), as in `sluice
// run`, which has no server.

namespace sluice::local {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);

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

  grpc::Status SetDesired(grpc::ServerContext*, const v1::SetDesiredRequest* request,
                          v1::SetDesiredResponse* response) override {
    MutexLock lock(&mutex_);
    if (request->number() > highest_) received_ = *request;
    highest_ = std::max(highest_, request->number());
    response->set_number(highest_);
    return grpc::Status::OK;
  }
  // As if another parent had sent a request with this number.
  void SetHighest(uint64_t number) {
    MutexLock lock(&mutex_);
    highest_ = number;
  }
  // The step is the desired number of workers that it received.
  grpc::Status GetProgress(grpc::ServerContext*, const v1::GetProgressRequest*,
                           v1::JobProgress* progress) override {
    MutexLock lock(&mutex_);
    progress->set_step(received_.workers());
    return grpc::Status::OK;
  }

 private:
  Mutex mutex_;
  v1::SetDesiredRequest received_ ABSL_GUARDED_BY(mutex_);
  uint64_t highest_ ABSL_GUARDED_BY(mutex_) = 0;
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

  Mutex mutex_;
  CondVar changed_;
  uint64_t step_ ABSL_GUARDED_BY(mutex_) = UINT64_MAX;
  JobControlClient client_{{.poll_interval = absl::Milliseconds(10)},
                           [this](const v1::JobProgress& progress) {
                             MutexLock lock(&mutex_);
                             step_ = progress.step();
                             changed_.SignalAll();
                           }};
};

TEST_F(JobControlClientTest, SendsTheDesiredStateAndReceivesTheProgress) {
  FakeCoordinator coordinator;
  client_.SetAddress(coordinator.address());
  WaitForStep(0);
  client_.SetDesired(3, 2, /*suspend=*/false);
  WaitForStep(3);
  client_.SetDesired(4, 2, /*suspend=*/false);
  WaitForStep(4);
}

TEST_F(JobControlClientTest, SendsEverythingAgainToANewInstance) {
  FakeCoordinator first;
  client_.SetAddress(first.address());
  client_.SetDesired(3, 2, /*suspend=*/false);
  WaitForStep(3);
  FakeCoordinator second;
  client_.SetDesired(5, 2, /*suspend=*/false);
  client_.SetAddress(second.address());
  WaitForStep(5);
}

TEST_F(JobControlClientTest, SendsAgainWithAHigherNumberWhatACoordinatorTookForOlder) {
  FakeCoordinator coordinator;
  coordinator.SetHighest(uint64_t{1} << 60);
  client_.SetDesired(3, 2, /*suspend=*/false);
  client_.SetAddress(coordinator.address());
  WaitForStep(3);
  client_.SetDesired(4, 2, /*suspend=*/false);
  WaitForStep(4);
}

TEST_F(JobControlClientTest, ReachesACoordinatorThatWasUnreachableAtFirst) {
  std::string address;
  {
    BrokenListener listener;
    address = listener.address();
    client_.SetDesired(3, 2, /*suspend=*/false);
    client_.SetAddress(address);
    // The client opens the second connection because the first one failed.
    listener.BreakOne();
    listener.BreakOne();
  }
  FakeCoordinator coordinator(address);
  WaitForStep(3);
}

}  // namespace
}  // namespace sluice::local
