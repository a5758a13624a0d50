#include "services/transport/polled_channel.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "proto/jobcontrol.grpc.pb.h"
#include "services/transport/server/grpc_server.h"

// Runs with only calls waiting at a client's sockets (see BUILD), as in a program without a server.

namespace sluice {
namespace {

class Answering final : public v1::JobControl::Service {
  grpc::Status GetProgress(grpc::ServerContext*, const v1::GetProgressRequest*,
                           v1::JobProgress*) override {
    return grpc::Status::OK;
  }
};

class PolledChannelTest : public ::testing::Test {
 protected:
  // At its previous address, if it had one.
  void StartServer() {
    auto server = GrpcServer::Start({.address = address_}, {&service_});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    address_ = absl::StrCat("127.0.0.1:", server_->port());
  }
  void StopServer() { server_ = nullptr; }

  static grpc::StatusCode Call(const std::shared_ptr<grpc::Channel>& channel) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    v1::JobProgress progress;
    return v1::JobControl::NewStub(channel)
        ->GetProgress(&context, v1::GetProgressRequest(), &progress)
        .error_code();
  }

  std::string address_ = "127.0.0.1:0";

 private:
  Answering answering_;
  GeneratedService service_{&answering_};
  std::unique_ptr<GrpcServer> server_;
};

TEST_F(PolledChannelTest, FindsServerThatStartsLate) {
  StartServer();
  StopServer();
  PolledChannel channel({.address = address_});
  EXPECT_EQ(Call(channel.Get()), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Call(channel.Get()), grpc::StatusCode::UNAVAILABLE);
  StartServer();
  EXPECT_EQ(Call(channel.Get()), grpc::StatusCode::OK);
}

TEST_F(PolledChannelTest, FindsServerThatRestarts) {
  StartServer();
  PolledChannel channel({.address = address_});
  EXPECT_EQ(Call(channel.Get()), grpc::StatusCode::OK);
  StopServer();
  EXPECT_EQ(Call(channel.Get()), grpc::StatusCode::UNAVAILABLE);
  StartServer();
  EXPECT_EQ(Call(channel.Get()), grpc::StatusCode::OK);
}

TEST_F(PolledChannelTest, KeepsChannelThatConnects) {
  StartServer();
  PolledChannel channel({.address = address_});
  const std::shared_ptr<grpc::Channel> first = channel.Get();
  EXPECT_EQ(channel.Get(), first);
  EXPECT_EQ(Call(first), grpc::StatusCode::OK);
  EXPECT_EQ(channel.Get(), first);
}

}  // namespace
}  // namespace sluice
