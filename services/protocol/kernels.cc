#include "services/protocol/kernels.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "services/common/text/utf8.h"

namespace sluice {
namespace {

constexpr size_t kMaxShownBytes = 200;

absl::string_view LibraryOf(const v1::Environment& environment) {
  absl::string_view library = environment.library();
  absl::ConsumePrefix(&library, "Lib");
  absl::ConsumePrefix(&library, "Py");
  return library;
}

}  // namespace

Kernels KernelsOf(const v1::TrainingSpec& training) {
  if (training.kernels() != v1::TrainingSpec::KERNELS_UNSPECIFIED) return training.kernels();
  return training.bit_exact() ? v1::TrainingSpec::X86_64_V3 : v1::TrainingSpec::NATIVE;
}

int FixedThreads(const v1::TrainingSpec& training) {
  if (training.threads() != 0) return static_cast<int>(training.threads());
  return training.bit_exact() ? 1 : 0;
}

std::string KernelsName(Kernels kernels) {
  switch (kernels) {
    case v1::TrainingSpec::X86_64_V3:
      return "x86-64-v3";
    case v1::TrainingSpec::X86_64_V4:
      return "x86-64-v4";
    default:
      return "Native";
  }
}

Variables KernelVariables(Kernels kernels) {
  // NumPy takes a list of what it must not use; before 2.4 its names were those from AVX512F on.
  switch (kernels) {
    case v1::TrainingSpec::X86_64_V3:
      return {{"OPENBLAS_CORETYPE", "Haswell"},
              {"ATEN_CPU_CAPABILITY", "avx2"},
              {"MKL_CBWR", "AVX2,STRICT"},
              {"NPY_DISABLE_CPU_FEATURES",
               "X86_V4 AVX512_ICL AVX512_SPR AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL"}};
    case v1::TrainingSpec::X86_64_V4:
      return {{"OPENBLAS_CORETYPE", "SkylakeX"},
              {"ATEN_CPU_CAPABILITY", "avx512"},
              {"MKL_CBWR", "AVX512,STRICT"},
              {"NPY_DISABLE_CPU_FEATURES", "AVX512_ICL AVX512_SPR AVX512_CLX AVX512_CNL"}};
    default:
      return {};
  }
}

Variables ProgramVariables(const v1::TrainingSpec& training, int threads) {
  Variables variables = KernelVariables(KernelsOf(training));
  if (variables.empty()) return variables;
  for (const char* name : {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"}) {
    variables.emplace_back(name, absl::StrCat(threads));
  }
  return variables;
}

std::string EnvironmentText(const v1::Environment& environment) {
  std::vector<std::string> parts;
  if (!environment.kernels().empty()) {
    parts.push_back(absl::StrCat("kernels ", CleanUtf8(environment.kernels(), kMaxShownBytes)));
  }
  if (!environment.library().empty()) {
    parts.push_back(CleanUtf8(environment.library(), kMaxShownBytes));
  }

  if (environment.threads() != 0) {
    parts.push_back(
        absl::StrCat(environment.threads(), environment.threads() == 1 ? " thread" : " threads"));
  }
  return absl::StrJoin(parts, "; ");
}

bool SameBits(const v1::Environment& a, const v1::Environment& b) {
  const auto same = [](const auto& one, const auto& other, const auto& unknown) {
    return one == other || one == unknown || other == unknown;
  };
  return same(a.kernels(), b.kernels(), "") && same(LibraryOf(a), LibraryOf(b), "") &&
         same(a.threads(), b.threads(), 0u);
}

}  // namespace sluice
