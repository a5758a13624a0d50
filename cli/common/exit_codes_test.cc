#include "cli/common/exit_codes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <sstream>

namespace sluice::cli {
namespace {

using ::testing::HasSubstr;

TEST(ExitCodesTest, FollowTheOutcomeOfTheJob) {
  EXPECT_EQ(ExitCodeOf(policy::OutcomeKind::kSucceeded), 0);
  EXPECT_EQ(ExitCodeOf(policy::OutcomeKind::kFailed), 1);
  EXPECT_EQ(ExitCodeOf(policy::OutcomeKind::kSuspended), 130);
}

TEST(ExitCodesTest, RequestThatTheUserMustChangeHasCode2) {
  for (const absl::Status& error :
       {absl::InvalidArgumentError(""), absl::NotFoundError(""), absl::AlreadyExistsError(""),
        absl::FailedPreconditionError("")}) {
    EXPECT_EQ(ExitCodeOf(error), 2) << error;
  }
  for (const absl::Status& error :
       {absl::UnavailableError(""), absl::DeadlineExceededError(""), absl::InternalError(""),
        absl::PermissionDeniedError(""), absl::DataLossError("")}) {
    EXPECT_EQ(ExitCodeOf(error), 1) << error;
  }
}

TEST(ExitCodesTest, HelpListsEveryCodeOnce) {
  std::set<int> codes;
  for (const auto& [code, meaning] : kExitCodes) {
    EXPECT_TRUE(codes.insert(code).second) << code;
    EXPECT_THAT(ExitCodesText(), HasSubstr(meaning));
  }
  EXPECT_EQ(codes, (std::set<int>{0, 1, 2, 130}));
}

TEST(ExitCodesTest, ErrorIsPrintedWithTheCommandsName) {
  std::ostringstream err;
  Environment environment;
  environment.err = &err;
  EXPECT_EQ(PrintError(environment, absl::UnavailableError("the server is away")), 1);
  EXPECT_EQ(err.str(), "sluice: the server is away\n");
}

}  // namespace
}  // namespace sluice::cli
