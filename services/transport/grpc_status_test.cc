#include "services/transport/grpc_status.h"

#include <gtest/gtest.h>

#include <string>

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
  const grpc::Status status = ToGrpcStatus(absl::InternalError(std::string(100000, 'x')));
  EXPECT_EQ(status.error_message().size(), 4096u);
}

TEST(GrpcStatusTest, MapsUnknownCodeToUnknown) {
  const grpc::Status status(grpc::StatusCode::DO_NOT_USE, "odd");
  EXPECT_EQ(FromGrpcStatus(status), absl::UnknownError("odd"));
}

}  // namespace
}  // namespace sluice
