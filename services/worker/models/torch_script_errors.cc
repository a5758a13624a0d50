#include <torch/version.h>

#include <algorithm>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "services/worker/models/operator_releases.h"
#include "services/worker/models/torch_script.h"

namespace sluice {
namespace {

// The word that follows `before`, if it can be an operator's name.
std::string WordAfter(absl::string_view text, absl::string_view before) {
  const size_t found = text.find(before);
  if (found == absl::string_view::npos) return "";
  text.remove_prefix(found + before.size());
  const size_t end =
      text.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_:.");
  text = text.substr(0, end);
  while (!text.empty() && (text.back() == '.' || text.back() == ':')) text.remove_suffix(1);
  return std::string(text);
}

// How to change a call that a newer PyTorch takes.
absl::string_view ArgumentRemedy(absl::string_view op) {
  absl::ConsumePrefix(&op, "aten::");
  op = op.substr(0, op.find('.'));
  if (op == "any" || op == "all" || op == "squeeze") return "; give it one dimension at a time";
  if (absl::StartsWith(op, "std") || absl::StartsWith(op, "var")) {
    return "; give its correction as an integer";
  }
  return "";
}

}  // namespace

std::string LinkedTorchVersion() { return TORCH_VERSION; }

std::string FirstLine(absl::string_view what) {
  what.remove_prefix(std::min(what.find_first_not_of('\n'), what.size()));
  return std::string(what.substr(0, what.find('\n')));
}

absl::Status TorchScriptLoadError(const std::string& path, absl::string_view what) {
  std::string unknown = WordAfter(what, "Unknown builtin op: ");
  if (unknown.empty()) unknown = WordAfter(what, "Unknown operator: ");
  if (!unknown.empty()) {
    const OperatorRelease known = ReleaseOf(unknown);
    return absl::UnimplementedError(
        absl::StrCat(path, ": uses the operator ", unknown, ", which LibTorch ",
                     LinkedTorchVersion(), " (this build's) does not have; ",
                     known.remedy.empty() ? "write the model without it" : known.remedy,
                     ", or use a build with ",
                     known.release.empty()
                         ? "the LibTorch that saved the file"
                         : absl::StrCat("LibTorch ", known.release, " or later, which has it")));
  }

  std::string type = WordAfter(what, "unknown torch global, 'torch.");
  if (!type.empty()) {
    type = std::string(absl::StripSuffix(type, "Storage"));
    return absl::UnimplementedError(
        absl::StrCat(path, ": has a tensor of type ", type, ", which LibTorch ",
                     LinkedTorchVersion(), " (this build's) does not have; use another type"));
  }

  if (absl::StrContains(what, "Arguments for call are not valid")) {
    const std::string op = WordAfter(what, "The following variants are available:\n  \n  ");
    return absl::UnimplementedError(absl::StrCat(
        path, ": calls the operator ", op.empty() ? "named below" : op,
        " with arguments that LibTorch ", LinkedTorchVersion(), " (this build's) does not take",
        ArgumentRemedy(op), ": ", what.substr(0, 400)));
  }

  if (absl::StrContains(what, "version") && absl::StrContains(what, "support")) {
    return absl::UnimplementedError(absl::StrCat(path, ": was saved by a LibTorch too far from ",
                                                 LinkedTorchVersion(), ": ", FirstLine(what)));
  }

  // torch.jit.save writes this record and torch.save does not.
  const bool saved_by_torch = absl::StrContains(what, "constants.pkl");
  return absl::InvalidArgumentError(absl::StrCat(
      path, ": is not a TorchScript file, as torch.jit.script(model).save(path) writes it",
      saved_by_torch ? "; it looks like torch.save of a state_dict, which has values and no model "
                     : " ",
      "(", FirstLine(what), ")"));
}

}  // namespace sluice
