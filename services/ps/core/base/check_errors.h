// Errors of frame_checks.h and coordinator_checks.h.
#ifndef SLUICE_SERVICES_PS_CORE_BASE_CHECK_ERRORS_H_
#define SLUICE_SERVICES_PS_CORE_BASE_CHECK_ERRORS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "services/protocol/interval_set.h"

namespace sluice::ps {

// INVALID_ARGUMENT with the concatenated parts as its message.
template <typename... Parts>
absl::Status Invalid(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

// A half-open range as messages show it: "[0, 64)".
inline std::string Name(const Interval& range) {
  return absl::StrCat("[", range.begin, ", ", range.end, ")");
}

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_CORE_BASE_CHECK_ERRORS_H_
