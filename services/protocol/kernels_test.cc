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

}  // namespace
}  // namespace sluice
