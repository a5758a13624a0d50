// How a call of the C interface ends.
#ifndef SLUICE_SERVICES_WORKER_LIBRARY_CALL_RESULT_H_
#define SLUICE_SERVICES_WORKER_LIBRARY_CALL_RESULT_H_

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "include/sluice/worker.h"

namespace sluice::worker {

// A code of the C interface and its sentence for sluice_last_error; OK has no text.
struct CallResult {
  sluice_code code = SLUICE_OK;
  std::string text;

  bool ok() const { return code == SLUICE_OK; }
};

// The two errors that are the caller's own fault. The parts are joined as by StrCat, into one
// sentence without a full stop.
template <typename... Parts>
CallResult Invalid(const Parts&... parts) {
  return {SLUICE_INVALID_ARGUMENT, absl::StrCat(parts...)};
}

template <typename... Parts>
CallResult WrongState(const Parts&... parts) {
  return {SLUICE_WRONG_STATE, absl::StrCat(parts...)};
}

}  // namespace sluice::worker

#endif  // SLUICE_SERVICES_WORKER_LIBRARY_CALL_RESULT_H_
