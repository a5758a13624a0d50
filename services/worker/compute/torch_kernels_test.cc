#include "services/worker/compute/torch_kernels.h"

#include <ATen/Context.h>
#include <ATen/Version.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>
#include <string>

namespace sluice {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Spec = v1::TrainingSpec;

const std::set<std::string> kHaswell = {"AVX2", "FMA", "BMI", "BMI2"};

TEST(TorchKernels, ProcessorWithoutInstructionsIsRefused) {
  EXPECT_TRUE(CheckInstructions(Spec::X86_64_V3, kHaswell).ok());

  const absl::Status old = CheckInstructions(Spec::X86_64_V3, {"BMI"});
  EXPECT_EQ(old.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(old.message()),
              AllOf(HasSubstr("x86-64-v3"), HasSubstr("no AVX2, FMA, BMI2"),
                    HasSubstr("`training.kernels` may be Native")));

  const absl::Status no_avx512 = CheckInstructions(Spec::X86_64_V4, kHaswell);
  EXPECT_THAT(std::string(no_avx512.message()),
              AllOf(HasSubstr("no AVX512F, AVX512BW"), HasSubstr("may be x86-64-v3, or Native")));
}

// One test, since LibTorch chooses once in a process. BUILD has set all variables to another level.
TEST(TorchKernels, JobDecidesWhateverTheEnvironmentSays) {
  Spec training;
  EXPECT_TRUE(FixTorchKernels(training).ok());
  EXPECT_STREQ(std::getenv("OPENBLAS_CORETYPE"), "Nehalem");  // not fixed: the user's
  EXPECT_TRUE(at::globalContext().userEnabledMkldnn());

  training.set_bit_exact(true);
  const absl::Status fixed = FixTorchKernels(training);
  if (absl::IsUnimplemented(fixed)) GTEST_SKIP() << fixed;
  ASSERT_TRUE(fixed.ok()) << fixed;
  EXPECT_STREQ(std::getenv("OPENBLAS_CORETYPE"), "Haswell");
  EXPECT_STREQ(std::getenv("ATEN_CPU_CAPABILITY"), "avx2");
  EXPECT_STREQ(std::getenv("MKL_CBWR"), "AVX2,STRICT");  // BUILD has not set it
  EXPECT_THAT(at::show_config(), HasSubstr("CPU capability usage: AVX2"));
  EXPECT_FALSE(at::globalContext().userEnabledMkldnn());
  EXPECT_TRUE(FixTorchKernels(training).ok());

  const v1::Environment environment = TorchEnvironment(training, 2);
  EXPECT_EQ(environment.kernels(), "x86-64-v3");
  EXPECT_THAT(environment.library(), ::testing::StartsWith("LibTorch "));
  EXPECT_EQ(environment.threads(), 2u);

  // Too late for another level.
  training.set_kernels(Spec::X86_64_V4);
  const absl::Status late = FixTorchKernels(training);
  EXPECT_EQ(late.code(), absl::StatusCode::kUnimplemented);

  training.set_kernels(Spec::NATIVE);
  EXPECT_THAT(TorchEnvironment(training, 1).kernels(), HasSubstr("ATen AVX2"));
}

}  // namespace
}  // namespace sluice
