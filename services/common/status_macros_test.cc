#include "services/common/status_macros.h"

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

const absl::Status kError = absl::NotFoundError("no such file");

absl::StatusOr<int> Number(bool ok) {
  if (!ok) return kError;
  return 7;
}

template <typename Key, typename Value>
absl::StatusOr<std::map<Key, Value>> MapOf(Key key, Value value) {
  std::map<Key, Value> map;
  map[key] = value;
  return map;
}

absl::Status Annotate(const absl::Status& status, const std::string& path) {
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

TEST(ReturnIfErrorTest, ReturnsErrorAndContinuesWithoutOne) {
  bool continued = false;
  const auto run = [&](const absl::Status& status) -> absl::Status {
    continued = false;
    RETURN_IF_ERROR(status);
    continued = true;
    return absl::OkStatus();
  };

  EXPECT_EQ(run(kError), kError);
  EXPECT_FALSE(continued);
  EXPECT_EQ(run(absl::OkStatus()), absl::OkStatus());
  EXPECT_TRUE(continued);
}

TEST(ReturnIfErrorTest, EvaluatesExpressionOnce) {
  int calls = 0;
  const auto run = [&]() -> absl::Status {
    RETURN_IF_ERROR((++calls, kError));
    return absl::OkStatus();
  };

  EXPECT_EQ(run(), kError);
  EXPECT_EQ(calls, 1);
}

TEST(ReturnIfErrorTest, ReturnsErrorFromFunctionThatReturnsStatusOr) {
  const auto run = [](const absl::Status& status) -> absl::StatusOr<std::string> {
    RETURN_IF_ERROR(status);
    return "done";
  };

  EXPECT_EQ(run(kError).status(), kError);
  EXPECT_EQ(*run(absl::OkStatus()), "done");
}

TEST(ReturnIfErrorTest, ReturnsLastArgumentInPlaceOfError) {
  const auto annotated = [](const absl::Status& status) -> absl::Status {
    RETURN_IF_ERROR(status, Annotate(_, "job.yaml"));
    return absl::OkStatus();
  };
  const auto exit_code = [](const absl::Status& status) {
    RETURN_IF_ERROR(status, _.message().empty() ? 1 : 2);
    return 0;
  };

  EXPECT_EQ(annotated(kError), absl::NotFoundError("job.yaml: no such file"));
  EXPECT_EQ(annotated(absl::OkStatus()), absl::OkStatus());
  EXPECT_EQ(exit_code(kError), 2);
  EXPECT_EQ(exit_code(absl::OkStatus()), 0);
}

TEST(ReturnIfErrorTest, EvaluatesLastArgumentOnlyForError) {
  int calls = 0;
  const auto run = [&](const absl::Status& status) -> absl::Status {
    RETURN_IF_ERROR(status, (++calls, _));
    return absl::OkStatus();
  };

  EXPECT_EQ(run(absl::OkStatus()), absl::OkStatus());
  EXPECT_EQ(calls, 0);
  EXPECT_EQ(run(kError), kError);
  EXPECT_EQ(calls, 1);
}

TEST(ReturnIfErrorTest, IsOneStatement) {
  const auto run = [](bool check, const absl::Status& status) -> absl::Status {
    if (check)
      RETURN_IF_ERROR(status);
    else
      return absl::CancelledError("not checked");
    return absl::OkStatus();
  };

  EXPECT_EQ(run(true, kError), kError);
  EXPECT_EQ(run(true, absl::OkStatus()), absl::OkStatus());
  EXPECT_EQ(run(false, kError), absl::CancelledError("not checked"));
}

TEST(AssignOrReturnTest, DeclaresVariableOrReturnsError) {
  const auto twice = [](bool ok) -> absl::StatusOr<int> {
    ASSIGN_OR_RETURN(const int number, Number(ok));
    return 2 * number;
  };

  EXPECT_EQ(*twice(true), 14);
  EXPECT_EQ(twice(false).status(), kError);
}

TEST(AssignOrReturnTest, AssignsToExistingVariableAndLeavesItUnchangedOnError) {
  std::pair<int, int> numbers;
  const auto run = [&](bool ok) -> absl::Status {
    ASSIGN_OR_RETURN(numbers.first, Number(true));
    ASSIGN_OR_RETURN(numbers.second, Number(ok));
    return absl::OkStatus();
  };

  EXPECT_EQ(run(false), kError);
  EXPECT_EQ(numbers, std::make_pair(7, 0));
  EXPECT_EQ(run(true), absl::OkStatus());
  EXPECT_EQ(numbers, std::make_pair(7, 7));
}

TEST(AssignOrReturnTest, MovesValueThatCannotBeCopied) {
  const auto make = []() -> absl::StatusOr<std::unique_ptr<int>> {
    return std::make_unique<int>(7);
  };
  const auto run = [&]() -> absl::StatusOr<std::shared_ptr<const int>> {
    ASSIGN_OR_RETURN(std::shared_ptr<const int> number, make());
    return number;
  };

  EXPECT_EQ(**run(), 7);
}

TEST(AssignOrReturnTest, TakesExpressionWithCommasInParentheses) {
  const auto run = []() -> absl::StatusOr<int> {
    ASSIGN_OR_RETURN(const auto numbers, (MapOf<int, int>(1, 2)));
    return numbers.at(1);
  };

  EXPECT_EQ(*run(), 2);
}

TEST(AssignOrReturnTest, ReturnsLastArgumentInPlaceOfError) {
  const auto annotated = [](bool ok) -> absl::StatusOr<int> {
    ASSIGN_OR_RETURN(const int number, Number(ok), Annotate(_, "job.yaml"));
    return number;
  };

  EXPECT_EQ(*annotated(true), 7);
  EXPECT_EQ(annotated(false).status(), absl::NotFoundError("job.yaml: no such file"));
}

}  // namespace
}  // namespace sluice
