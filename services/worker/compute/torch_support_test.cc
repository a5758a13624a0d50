#include "services/worker/compute/torch_support.h"

#include <ATen/Context.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/status/status.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

TEST(ParseDeviceTest, EmptyNameIsCpu) {
  EXPECT_EQ(*ParseDevice("model.device", ""), at::Device(at::kCPU));
  EXPECT_EQ(*ParseDevice("model.device", "cpu"), at::Device(at::kCPU));
}

TEST(ParseDeviceTest, UnknownDeviceNamesField) {
  const absl::Status status = ParseDevice("model.stages[1].device", "tpu").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("model.stages[1].device is 'tpu'"));
}

TEST(ParseDeviceTest, MissingGpuSaysWhatIsMissing) {
  const absl::Status status = ParseDevice("model.device", "cuda:63").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("model.device is 'cuda:63'"));
  const char* expected = !at::globalContext().hasCUDART() ? "of this build has no CUDA"
                         : at::getNumGPUs() == 0          ? "finds no GPU"
                                                          : " at most";
  EXPECT_THAT(std::string(status.message()), HasSubstr(expected));
}

TEST(CauseFirstTest, CauseOfAFailedOperationPrecedesItsTraces) {
  const std::string trace =
      "The following operation failed in the TorchScript interpreter.\n"
      "Traceback of TorchScript, serialized code (most recent call last):\n"
      "  File \"code/__torch__.py\", line 9, in forward\n"
      "def forward(self, x):\n"
      "    return torch.linear(x, self.weight)\n"
      "           ~~~~~~~~~~~~ <--- HERE\n\n";
  EXPECT_EQ(CauseFirst(trace + "RuntimeError: shapes: differ\nsecond line\n")
                .find("RuntimeError: shapes: differ\nsecond line\nThe following operation failed"),
            0u);
  EXPECT_EQ(CauseFirst(trace + "builtins.ValueError: too few\n").find("builtins.ValueError: too"),
            0u);
  EXPECT_EQ(CauseFirst(trace), trace);
  EXPECT_EQ(CauseFirst("no trace: as it is"), "no trace: as it is");
}

TEST(WarningsOnceTest, WarningIsPrintedOnlyTheFirstTime) {
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(Catching([] {
                  TORCH_WARN("a warning of each step");
                  return absl::OkStatus();
                }).ok());
  }
  const std::string printed = ::testing::internal::GetCapturedStderr();
  const size_t first = printed.find("a warning of each step");
  ASSERT_NE(first, std::string::npos);
  EXPECT_EQ(printed.find("a warning of each step", first + 1), std::string::npos) << printed;
}

}  // namespace
}  // namespace sluice
