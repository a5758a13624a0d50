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

#define SLUICE_QUOTE(text) #text
#define SLUICE_NUMBER(macro) SLUICE_QUOTE(macro)
#if defined(__clang__)
#define SLUICE_COMPILER "clang " SLUICE_NUMBER(__clang_major__)
#else
#define SLUICE_COMPILER "gcc " __VERSION__
#endif

}  // namespace

absl::string_view Version() { return SLUICE_VERSION; }

absl::string_view BuildDescription() {
  return "sluice " SLUICE_VERSION " (" SLUICE_COMPILER ", " SLUICE_ISA ")";
}

}  // namespace sluice
