#ifndef SLUICE_TESTS_FUZZ_STATUS_CHECK_H_
#define SLUICE_TESTS_FUZZ_STATUS_CHECK_H_

#include "absl/status/status.h"
#include "services/common/check.h"
#include "services/common/text/utf8.h"

namespace sluice::fuzz {

// Checks that an error has a text, and that the text can be put into a message or into JSON,
// whatever it quotes. Returns whether the status is OK.
inline bool CheckedOk(const absl::Status& status) {
  if (status.ok()) return true;
  SLUICE_CHECK(!status.message().empty(), "an error has a text");
  SLUICE_CHECK(IsUtf8(status.message()), "an error's text is UTF-8");
  return false;
}

}  // namespace sluice::fuzz

#endif  // SLUICE_TESTS_FUZZ_STATUS_CHECK_H_
