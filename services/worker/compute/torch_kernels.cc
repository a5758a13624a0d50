#include "services/worker/compute/torch_kernels.h"

#include <ATen/Context.h>
#include <ATen/Version.h>
#include <dlfcn.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "services/common/check.h"
#include "services/common/status_macros.h"
#include "services/worker/models/torch_script.h"

namespace sluice {
namespace {

constexpr char kBlasVariable[] = "OPENBLAS_CORETYPE";
constexpr char kTorchVariable[] = "ATEN_CPU_CAPABILITY";

// A place in the environment for a variable that is set later, while other threads may read the
// environment: setenv could move it away under them. By POSIX, a string that was given to putenv is
// part of the environment and may be changed. While it is empty, it is no variable.
class Place {
 public:
  explicit Place(const char* name) : name_(name) {
    const char* const present = std::getenv(name);
    const std::string text = absl::StrCat(name, "=", present == nullptr ? "" : present);
    if (text.size() >= text_.size()) return;  // the user's value stays
    std::memcpy(text_.data(), text.c_str(), text.size() + 1);
    putenv(text_.data());
    if (present == nullptr) text_[0] = '\0';
  }

  // The name is whole before its first letter is there.
  void Set(const std::string& value) {
    const std::string text = absl::StrCat(name_, "=", value);
    SLUICE_CHECK(text.size() < text_.size(), "the value has its place");
    std::memcpy(text_.data() + 1, text.c_str() + 1, text.size());
    text_[0] = text[0];
  }

  const char* name() const { return name_; }

 private:
  const char* const name_;
  std::array<char, 256> text_ = {};
};

// The libraries that LibTorch may be linked with read these. NumPy's is not among them.
std::array<Place, 3>& Places() {
  static std::array<Place, 3> places = {Place(kBlasVariable), Place(kTorchVariable),
                                        Place("MKL_CBWR")};
  return places;
}

// Before main, and so before any thread of this program.
[[maybe_unused]] const auto& places_made_early = Places();

template <typename Function>
Function Symbol(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
}

// "Haswell"; empty: the BLAS is not OpenBLAS.
std::string BlasCore() {
  const auto core = Symbol<const char* (*)()>("openblas_get_corename");
  return core == nullptr ? "" : core();
}

// The text after `title` in LibTorch's description of itself, to the line's end.
std::string ConfigAfter(absl::string_view title) {
  const std::string config = at::show_config();
  const size_t found = config.find(std::string(title));
  if (found == std::string::npos) return "";
  const size_t begin = found + title.size();
  return config.substr(begin, config.find('\n', begin) - begin);
}

// "AVX2". Older releases declare no function of its own for it.
std::string TorchCapability() { return ConfigAfter("CPU capability usage: "); }

// "OpenBLAS 0.3.21", "MKL 2024.2-Product"; empty: another library.
std::string BlasVersion() {
  const std::string mkl = ConfigAfter("Math Kernel Library Version ");
  if (!mkl.empty()) return absl::StrCat("MKL ", mkl.substr(0, mkl.find(' ')));
  const auto config = Symbol<const char* (*)()>("openblas_get_config");
  if (config == nullptr) return "";
  const std::vector<std::string> words = absl::StrSplit(config(), absl::MaxSplits(' ', 2));
  return absl::StrJoin(words.begin(), words.begin() + std::min<size_t>(2, words.size()), " ");
}

// OpenBLAS chose its kernels when it was loaded, which was before main.
void ChooseBlasKernelsAgain() {
  const auto forget = Symbol<void (*)()>("gotoblas_dynamic_quit");
  const auto choose = Symbol<void (*)()>("gotoblas_dynamic_init");
  if (forget == nullptr || choose == nullptr) return;
  forget();
  choose();
}

std::set<std::string> InstructionsOfMachine() {
  std::set<std::string> found;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2")) found.insert("AVX2");
  if (__builtin_cpu_supports("fma")) found.insert("FMA");
  if (__builtin_cpu_supports("bmi")) found.insert("BMI");
  if (__builtin_cpu_supports("bmi2")) found.insert("BMI2");
  if (__builtin_cpu_supports("avx512f")) found.insert("AVX512F");
  if (__builtin_cpu_supports("avx512bw")) found.insert("AVX512BW");
  if (__builtin_cpu_supports("avx512cd")) found.insert("AVX512CD");
  if (__builtin_cpu_supports("avx512dq")) found.insert("AVX512DQ");
  if (__builtin_cpu_supports("avx512vl")) found.insert("AVX512VL");
#endif
  return found;
}

// The remedy for a level that cannot be had, as a clause.
std::string Otherwise(Kernels kernels) {
  return absl::StrCat(kernels == v1::TrainingSpec::X86_64_V4
                          ? "`training.kernels` may be x86-64-v3, or Native"
                          : "`training.kernels` may be Native",
                      ", with which equal bits need processors of one kind");
}

absl::Status CheckInEffect(Kernels kernels, const Variables& wanted) {
  const auto check = [&](absl::string_view library, const std::string& is,
                         const std::string& variable) {
    for (const auto& [name, value] : wanted) {
      if (name != variable || absl::EqualsIgnoreCase(is, value)) continue;
      return absl::UnimplementedError(
          absl::StrCat("training.kernels is ", KernelsName(kernels), ", and ", library,
                       " computes with kernels for ", is, ", not ", value,
                       ", and cannot be changed: ", Otherwise(kernels)));
    }
    return absl::OkStatus();
  };

  if (const std::string core = BlasCore(); !core.empty()) {
    RETURN_IF_ERROR(check("OpenBLAS", core, kBlasVariable));
  }
  return check("LibTorch", TorchCapability(), kTorchVariable);
}

}  // namespace

absl::Status CheckInstructions(Kernels kernels, const std::set<std::string>& instructions) {
  std::vector<std::string> wanted = {"AVX2", "FMA", "BMI", "BMI2"};
  if (kernels == v1::TrainingSpec::X86_64_V4) {
    wanted.insert(wanted.end(), {"AVX512F", "AVX512BW", "AVX512CD", "AVX512DQ", "AVX512VL"});
  }

  std::vector<std::string> missing;
  for (const std::string& instruction : wanted) {
    if (instructions.count(instruction) == 0) missing.push_back(instruction);
  }

  if (missing.empty()) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(
      "training.kernels is ", KernelsName(kernels), ", and the processor of this machine has no ",
      absl::StrJoin(missing, ", "), ": should be a processor that has, or ", Otherwise(kernels)));
}

absl::Status FixTorchKernels(const v1::TrainingSpec& training) {
  const Kernels kernels = KernelsOf(training);
  if (kernels == v1::TrainingSpec::NATIVE) return absl::OkStatus();
  RETURN_IF_ERROR(CheckInstructions(kernels, InstructionsOfMachine()));

  const Variables variables = KernelVariables(kernels);
  for (Place& place : Places()) {
    for (const auto& [name, value] : variables) {
      if (name == place.name()) place.Set(value);
    }
  }
  ChooseBlasKernelsAgain();
  // oneDNN divides its work by the sizes of the processor's caches as well, which no level fixes.
  // And LibTorch gives it 16-bit types where the processor has AVX-512, whatever its level is.
  at::globalContext().setUserEnabledMkldnn(false);
  return CheckInEffect(kernels, variables);
}

v1::Environment TorchEnvironment(const v1::TrainingSpec& training, int threads) {
  v1::Environment environment;
  const Kernels kernels = KernelsOf(training);
  const std::string core = BlasCore();
  const std::string blas = BlasVersion();

  if (kernels == v1::TrainingSpec::NATIVE) {
    environment.set_kernels(absl::StrCat(core.empty() ? "" : absl::StrCat("OpenBLAS ", core, ", "),
                                         "ATen ", TorchCapability()));
  } else {
    environment.set_kernels(KernelsName(kernels));
  }

  environment.set_library(absl::StrCat("LibTorch ", LinkedTorchVersion(),
                                       blas.empty() ? "" : absl::StrCat(", ", blas)));
  environment.set_threads(static_cast<uint32_t>(threads));
  return environment;
}

}  // namespace sluice
