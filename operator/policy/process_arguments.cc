#include "operator/policy/process_arguments.h"

#include "absl/strings/str_cat.h"

namespace sluice::policy {

std::vector<std::string> ArgumentsOf(const Replica& replica, const ProcessArguments& process) {
  std::vector<std::string> arguments;
  const auto add = [&](const char* flag, const auto& value) {
    arguments.push_back(absl::StrCat(flag, "=", value));
  };
  const bool coordinator = replica.role == v1::COORDINATOR;

  add("--job", coordinator ? process.job_file : process.job);
  if (!coordinator) {
    add("--coordinator", process.coordinator);
    add("--index", replica.index);
  }
  if (!process.listen.empty()) add("--listen", process.listen);
  if (!process.advertise.empty()) add("--advertise", process.advertise);
  if (coordinator) {
    add("--storage", process.storage);
  } else {
    add("--threads", process.threads);
  }
  return arguments;
}

}  // namespace sluice::policy
