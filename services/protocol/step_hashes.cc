#include "services/protocol/step_hashes.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace sluice {
namespace {

constexpr size_t kHashDigits = 16;

}  // namespace

std::string StepHashesText(const std::vector<StepHash>& hashes) {
  return absl::StrJoin(hashes, " ", [](std::string* out, const StepHash& entry) {
    absl::StrAppend(out, entry.step, ":", absl::Hex(entry.hash, absl::kZeroPad16));
  });
}

absl::StatusOr<std::vector<StepHash>> ParseStepHashes(absl::string_view text) {
  std::vector<StepHash> hashes;
  for (absl::string_view entry : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    if (hashes.size() == kMaxStepHashes) {
      return absl::InvalidArgumentError(absl::StrCat("more than ", kMaxStepHashes, " step hashes"));
    }
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(entry, absl::MaxSplits(':', 1));

    StepHash parsed;
    // SimpleHexAtoi also accepts a prefix.
    if (!absl::SimpleAtoi(parts.first, &parsed.step) || parts.second.size() != kHashDigits ||
        !absl::c_all_of(parts.second, absl::ascii_isxdigit) ||
        !absl::SimpleHexAtoi(parts.second, &parsed.hash)) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", absl::CHexEscape(entry.substr(0, 2 * kHashDigits)),
                       "' is not a step and its state hash"));
    }

    if (!hashes.empty() && parsed.step <= hashes.back().step) {
      return absl::InvalidArgumentError(
          absl::StrCat("step ", parsed.step, " follows step ", hashes.back().step));
    }

    hashes.push_back(parsed);
  }
  return hashes;
}

}  // namespace sluice
