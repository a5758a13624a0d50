#include "services/protocol/kernels.h"

#include "gmock/gmock.h"

namespace sluice {
namespace {

using testing::Contains;
using testing::IsEmpty;
using testing::Pair;
using Spec = v1::TrainingSpec;

Spec Training(bool bit_exact, Kernels kernels) {
  Spec training;
  training.set_bit_exact(bit_exact);
  training.set_kernels(kernels);
  return training;
}

TEST(Kernels, AreFixedByDefaultWithBitExactOnly) {
  EXPECT_EQ(KernelsOf(Training(true, Spec::KERNELS_UNSPECIFIED)), Spec::X86_64_V3);
  EXPECT_EQ(KernelsOf(Training(false, Spec::KERNELS_UNSPECIFIED)), Spec::NATIVE);
  EXPECT_EQ(KernelsOf(Training(true, Spec::NATIVE)), Spec::NATIVE);
  EXPECT_EQ(KernelsOf(Training(false, Spec::X86_64_V4)), Spec::X86_64_V4);
}

TEST(FixedThreads, AreOneByDefaultWithBitExactOnly) {
  Spec training;
  EXPECT_EQ(FixedThreads(training), 0);
  training.set_bit_exact(true);
  EXPECT_EQ(FixedThreads(training), 1);
  training.set_threads(3);
  EXPECT_EQ(FixedThreads(training), 3);
  training.set_bit_exact(false);
  EXPECT_EQ(FixedThreads(training), 3);
}

TEST(Kernels, EveryLibraryIsToldTheLevel) {
  const Variables v3 = ProgramVariables(Training(true, Spec::KERNELS_UNSPECIFIED), 1);
  const Variables v4 = ProgramVariables(Training(true, Spec::X86_64_V4), 3);
  EXPECT_THAT(v3, Contains(Pair("OPENBLAS_CORETYPE", "Haswell")));
  EXPECT_THAT(v3, Contains(Pair("OMP_NUM_THREADS", "1")));
  EXPECT_THAT(v4, Contains(Pair("OPENBLAS_CORETYPE", "SkylakeX")));
  EXPECT_THAT(v4, Contains(Pair("OPENBLAS_NUM_THREADS", "3")));
  ASSERT_EQ(v3.size(), v4.size());
  for (size_t i = 0; i < v3.size(); ++i) EXPECT_EQ(v3[i].first, v4[i].first);
}

TEST(Kernels, NothingIsSetForNativeKernels) {
  EXPECT_THAT(ProgramVariables(Training(true, Spec::NATIVE), 1), IsEmpty());
  EXPECT_THAT(ProgramVariables(Training(false, Spec::KERNELS_UNSPECIFIED), 4), IsEmpty());
}

v1::Environment Env(const char* kernels, const char* library, uint32_t threads) {
  v1::Environment environment;
  environment.set_kernels(kernels);
  environment.set_library(library);
  environment.set_threads(threads);
  return environment;
}

TEST(SameBits, ComparesWhatIsKnown) {
  const v1::Environment one = Env("x86-64-v3", "LibTorch 2.6.0, MKL 2024.2", 1);
  EXPECT_TRUE(SameBits(one, one));
  EXPECT_TRUE(SameBits(one, Env("x86-64-v3", "PyTorch 2.6.0, MKL 2024.2", 1)));
  EXPECT_TRUE(SameBits(one, Env("", "", 0)));
  EXPECT_FALSE(SameBits(one, Env("x86-64-v4", "", 0)));
  EXPECT_FALSE(SameBits(one, Env("", "PyTorch 2.7.0, MKL 2024.2", 0)));
  EXPECT_FALSE(SameBits(one, Env("x86-64-v3", "LibTorch 2.6.0, MKL 2024.2", 2)));
}

TEST(EnvironmentText, NamesWhatIsKnown) {
  EXPECT_EQ(EnvironmentText(Env("x86-64-v3", "LibTorch 1.13.1", 1)),
            "kernels x86-64-v3; LibTorch 1.13.1; 1 thread");
  EXPECT_EQ(EnvironmentText(Env("", "", 2)), "2 threads");
  EXPECT_EQ(EnvironmentText({}), "");
  EXPECT_LT(EnvironmentText(Env(std::string(5000, 'x').c_str(), "", 0)).size(), 300u);
}

}  // namespace
}  // namespace sluice
