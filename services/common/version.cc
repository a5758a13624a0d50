#include "services/common/version.h"

#include "services/common/version_number.h"

namespace sluice {
namespace {

#if defined(__AVX512F__)
#define SLUICE_ISA "avx512"
#elif defined(__AVX2__)
#define SLUICE_ISA "avx2"
#elif defined(__x86_64__)
#define SLUICE_ISA "x86-64"
#elif defined(__aarch64__)
#define SLUICE_ISA "aarch64"
#else
#define SLUICE_ISA "unknown"
#endif

}  // namespace

absl::string_view Version() { return SLUICE_VERSION; }

absl::string_view BuildDescription() {
#if defined(__clang__)
  return "sluice " SLUICE_VERSION " (clang " __clang_version__ ", " SLUICE_ISA ")";
#else
  return "sluice " SLUICE_VERSION " (gcc " __VERSION__ ", " SLUICE_ISA ")";
#endif
}

}  // namespace sluice
