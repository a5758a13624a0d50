#ifndef SLUICE_SERVICES_COMMON_VERSION_H_
#define SLUICE_SERVICES_COMMON_VERSION_H_

#include "absl/strings/string_view.h"

namespace sluice {

// The release, e.g. "0.1.0".
absl::string_view Version();

// Release, compiler and instruction set: what checkpoints record, since bits depend on them.
absl::string_view BuildDescription();

}  // namespace sluice

#endif  // SLUICE_SERVICES_COMMON_VERSION_H_
