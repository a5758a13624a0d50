#ifndef SLUICE_SERVICES_COMMON_VERSION_H_
#define SLUICE_SERVICES_COMMON_VERSION_H_

#include "absl/strings/string_view.h"

namespace sluice {

// The release, e.g. "0.1.0".
absl::string_view Version();

// Release, compiler and instruction set. Checkpoints record them, since results depend on them to
// the bit.
absl::string_view BuildDescription();

}  // namespace sluice

#endif  // SLUICE_SERVICES_COMMON_VERSION_H_
