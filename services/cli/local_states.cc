#include "services/cli/local_states.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace sluice::cli {
namespace {

using Tone = ProcessState::Tone;

// The coordinator's status of a process, if it is the life that runs here.
const v1::ProcessStatus* FindStatus(const v1::JobProgress* progress, const policy::Slot& slot,
                                    pid_t pid) {
  if (progress == nullptr) return nullptr;
  for (const v1::ProcessStatus& status : progress->processes()) {
    if (status.process().role() == slot.role && status.process().index() == slot.index &&
        (status.pid() == 0 || status.pid() == static_cast<uint64_t>(pid))) {
      return &status;
    }
  }
  return nullptr;
}

std::string MemberText(const policy::Slot& slot, const v1::ProcessStatus& status) {
  std::string text = slot.role == v1::SHARD ? "serving" : "training";
  if (status.partitions() > 0) {
    absl::StrAppend(&text, ", ", CountedText(status.partitions(), "partition"));
  }
  if (status.samples_per_second() > 0) {
    const auto speed = static_cast<uint64_t>(std::llround(status.samples_per_second()));
    // The speed while it computes; overall it is slower, because it also waits.
    absl::StrAppend(&text, ", computes ", CountText(speed), " samples/s");
  }
  if (status.batch_size() > 0) absl::StrAppend(&text, ", batches of ", status.batch_size());
  return text;
}

// Whether the life is over, as far as the coordinator knows.
bool IsDeparted(const v1::ProcessStatus& status) {
  return status.state() == v1::ProcessStatus::LEFT || status.state() == v1::ProcessStatus::EXPELLED;
}

ProcessState ReportedState(const policy::Slot& slot, const v1::ProcessStatus& status) {
  switch (status.state()) {
    case v1::ProcessStatus::CONNECTING:
      return {"connecting", Tone::kWaiting};
    case v1::ProcessStatus::STANDBY:
      return {"waiting to join", Tone::kWaiting};
    case v1::ProcessStatus::MEMBER:
      return {MemberText(slot, status), Tone::kGood};
    case v1::ProcessStatus::SUSPECT:
      return {"not responding", Tone::kBad};
    case v1::ProcessStatus::LEFT:
      return {"left", Tone::kDone};
    case v1::ProcessStatus::EXPELLED:
      return {"expelled", Tone::kBad};
    default:
      return {"unknown", Tone::kWaiting};
  }
}

ProcessState StateOf(const v1::JobProgress* progress, const policy::Slot& slot,
                     const local::ProcessView& process) {
  if (!process.running) {
    const bool left = process.exit.signal == 0 && process.exit.code == 0;
    if (left) return {"finished", Tone::kDone};
    return {policy::ExitText(process.exit), Tone::kBad};
  }
  if (slot.role == v1::COORDINATOR) {
    return progress != nullptr ? ProcessState{"running", Tone::kGood}
                               : ProcessState{"starting", Tone::kWaiting};
  }
  const v1::ProcessStatus* status = FindStatus(progress, slot, process.pid);
  if (status == nullptr) return {"starting", Tone::kWaiting};
  if (status->state() == v1::ProcessStatus::LEFT) return {"leaving", Tone::kDone};
  return ReportedState(slot, *status);
}

}  // namespace

std::map<policy::Slot, ProcessState> LocalProcessStates(
    const std::map<policy::Slot, local::ProcessView>& processes, const v1::JobProgress* progress) {
  std::map<policy::Slot, ProcessState> states;
  for (const auto& [slot, process] : processes) {
    ProcessState state = StateOf(progress, slot, process);
    state.restarts = process.restarts;
    states[slot] = std::move(state);
  }
  return states;
}

std::map<policy::Slot, ProcessState> ReportedProcessStates(const v1::JobProgress& progress) {
  std::map<policy::Slot, ProcessState> living;
  std::map<policy::Slot, ProcessState>
      departed;  // the last life of each slot: older ones come first
  for (const v1::ProcessStatus& status : progress.processes()) {
    const policy::Slot slot = {status.process().role(), status.process().index()};
    (IsDeparted(status) ? departed : living)[slot] = ReportedState(slot, status);
  }
  living.merge(departed);
  return living;
}

}  // namespace sluice::cli
