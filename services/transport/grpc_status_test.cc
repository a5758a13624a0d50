#include "services/transport/grpc_status.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "proto/jobcontrol.grpc.pb.h"

namespace sluice {
namespace {

TEST(GrpcStatusTest, EveryCodeAndMessageSurvivesRoundTrip) {
  for (int code = 1; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "why");
    EXPECT_EQ(FromGrpcStatus(ToGrpcStatus(status)), status);
    EXPECT_EQ(ToGrpcStatus(status).error_code(), code);
  }
  EXPECT_TRUE(FromGrpcStatus(ToGrpcStatus(absl::OkStatus())).ok());
}

TEST(GrpcStatusTest, TruncatesLongMessageToFitInTrailers) {
  const auto sent = [](const std::string& message) {
    return ToGrpcStatus(absl::InternalError(message)).error_message();
  };
  EXPECT_EQ(sent(std::string(100000, 'x')), std::string(6144, 'x'));
  EXPECT_EQ(sent(std::string(6144, 'x')), std::string(6144, 'x'));
  // Sent as three characters each.
  EXPECT_EQ(sent(std::string(100000, '%')), std::string(2048, '%'));
  EXPECT_EQ(sent(std::string(100000, '\n')), std::string(2048, '\n'));
  EXPECT_EQ(sent(std::string(100000, '\x80')), std::string(2048, '\x80'));
}

TEST(GrpcStatusTest, CutsMessageBetweenCharacters) {
  std::string message = "x";
  std::string kept = "x";
  for (int i = 0; i < 4000; ++i) message += "ä";
  for (int i = 0; i < 1023; ++i) kept += "ä";  // six characters each
  EXPECT_EQ(ToGrpcStatus(absl::InternalError(message)).error_message(), kept);
}

// Refuses every call with the given status.
class Refusing : public v1::JobControl::Service {
 public:
  explicit Refusing(absl::Status status) : status_(std::move(status)) {}

  grpc::Status GetProgress(grpc::ServerContext*, const v1::GetProgressRequest*,
                           v1::JobProgress*) override {
    return ToGrpcStatus(status_);
  }

 private:
  absl::Status status_;
};

// The status that a client receives if a server on this machine returns `status`.
absl::Status OverTheWire(const absl::Status& status) {
  Refusing service(status);
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  const auto stub = v1::JobControl::NewStub(grpc::CreateCustomChannel(
      absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials(), arguments));
  grpc::ClientContext context;
  v1::JobProgress progress;
  return FromGrpcStatus(stub->GetProgress(&context, {}, &progress));
}

TEST(GrpcStatusTest, LongestMessagesArriveWithTheirCode) {
  for (const char* character : {"x", "%", "\n", "ä", "漢"}) {
    std::string message;
    while (message.size() < 20000) message += character;
    const absl::Status received = OverTheWire(absl::FailedPreconditionError(message));
    EXPECT_EQ(received.code(), absl::StatusCode::kFailedPrecondition) << received;
    EXPECT_EQ(received.message(), ToGrpcStatus(absl::InternalError(message)).error_message());
    EXPECT_GE(received.message().size(), 2000u);
  }
}

TEST(GrpcStatusTest, MapsUnknownCodeToUnknown) {
  const grpc::Status status(grpc::StatusCode::DO_NOT_USE, "odd");
  EXPECT_EQ(FromGrpcStatus(status), absl::UnknownError("odd"));
}

}  // namespace
}  // namespace sluice
