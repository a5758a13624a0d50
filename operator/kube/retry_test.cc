#include "operator/kube/retry.h"

#include <gtest/gtest.h>

#include "operator/kube/api_error.h"

namespace sluice::kube {
namespace {

absl::Status Http(int code, const std::string& retry_after) {
  return ApiErrorFromResponse(code, "", retry_after).ToStatus();
}

TEST(RetryTest, RetriesAnyCallAfter429WithRetryAfter) {
  EXPECT_EQ(RetryDelay({}, Http(429, "3"), false, 1), absl::Seconds(3));
  EXPECT_EQ(RetryDelay({}, Http(429, "3"), true, 1), absl::Seconds(3));
}

TEST(RetryTest, Leaves429WithoutRetryAfterToTheCaller) {
  EXPECT_EQ(RetryDelay({}, Http(429, ""), true, 1), std::nullopt);
}

TEST(RetryTest, RetriesServerErrorsOnlyOfIdempotentCalls) {
  for (int code : {500, 502, 503, 504}) {
    EXPECT_NE(RetryDelay({}, Http(code, ""), true, 1), std::nullopt) << code;
    EXPECT_EQ(RetryDelay({}, Http(code, ""), false, 1), std::nullopt) << code;
    EXPECT_EQ(RetryDelay({}, Http(code, "1"), false, 1), std::nullopt) << code;
  }
  EXPECT_NE(RetryDelay({}, absl::UnavailableError("reset"), true, 1), std::nullopt);
  EXPECT_EQ(RetryDelay({}, absl::DeadlineExceededError("slow"), false, 1), std::nullopt);
}

TEST(RetryTest, DoesNotRetryErrorsThatWouldRecur) {
  for (int code : {400, 401, 403, 404, 405, 409, 410, 413, 422, 501}) {
    EXPECT_EQ(RetryDelay({}, Http(code, ""), true, 1), std::nullopt) << code;
  }
  EXPECT_EQ(RetryDelay({}, absl::FailedPreconditionError("gate"), true, 1), std::nullopt);
  EXPECT_EQ(RetryDelay({}, absl::OkStatus(), true, 1), std::nullopt);
}

TEST(RetryTest, DelaysGrowToABoundAndTriesAreLimited) {
  const RetryPolicy policy{5, absl::Milliseconds(100), absl::Milliseconds(350)};
  const absl::Status status = absl::UnavailableError("reset");
  EXPECT_EQ(RetryDelay(policy, status, true, 1), absl::Milliseconds(100));
  EXPECT_EQ(RetryDelay(policy, status, true, 2), absl::Milliseconds(200));
  EXPECT_EQ(RetryDelay(policy, status, true, 3), absl::Milliseconds(350));
  EXPECT_EQ(RetryDelay(policy, status, true, 5), std::nullopt);
}

TEST(RetryTest, LeavesDelaysAboveTheBoundToTheCaller) {
  EXPECT_EQ(RetryDelay({}, Http(429, "3600"), true, 1), std::nullopt);
}

}  // namespace
}  // namespace sluice::kube
