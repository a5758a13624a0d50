#include "cli/local/local_states.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace sluice::cli {
namespace {

using Tone = ProcessState::Tone;

// The coordinator's status of a process, if it is the instance that runs here.
const v1::ProcessStatus* FindStatus(const v1::JobProgress* progress, const policy::Replica& replica,
                                    pid_t pid) {
  if (progress == nullptr) return nullptr;
  for (const v1::ProcessStatus& status : progress->processes()) {
    if (status.process().role() == replica.role && status.process().index() == replica.index &&
        (status.pid() == 0 || status.pid() == static_cast<uint64_t>(pid))) {
      return &status;
    }
  }
  return nullptr;
}

std::string MemberText(const policy::Replica& replica, const v1::ProcessStatus& status) {
  std::string text = replica.role == v1::SHARD ? "serving" : "training";
  if (status.partitions() > 0) {
    absl::StrAppend(&text, ", ", CountedText(status.partitions(), "partition"));
  }
  if (replica.role == v1::SHARD && status.partitions() == 0 && status.copies() == 0) {
    absl::StrAppend(&text, ", no partitions");
  }

  if (status.copies() > 0) {
    absl::StrAppend(&text, ", ",
                    status.copies() == 1 ? "1 copy" : absl::StrCat(status.copies(), " copies"));
  }

  if (status.samples_per_second() > 0) {
    const auto speed = static_cast<uint64_t>(std::llround(status.samples_per_second()));
    // The speed while it computes; overall it is slower, because it also waits.
    absl::StrAppend(&text, ", computes ", CountText(speed), " samples/s");
  }

  if (status.batch_size() > 0) absl::StrAppend(&text, ", batches of ", status.batch_size());
  return text;
}

// Whether the instance has ended, according to the coordinator.
bool IsDeparted(const v1::ProcessStatus& status) {
  return status.state() == v1::ProcessStatus::LEFT || status.state() == v1::ProcessStatus::EXPELLED;
}

ProcessState ReportedState(const policy::Replica& replica, const v1::ProcessStatus& status) {
  switch (status.state()) {
    case v1::ProcessStatus::CONNECTING:
      return {"connecting", Tone::kWaiting};
    case v1::ProcessStatus::STANDBY:
      return {"waiting to join", Tone::kWaiting};
    case v1::ProcessStatus::MEMBER:
      return {MemberText(replica, status), Tone::kGood};
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

ProcessState StateOf(const v1::JobProgress* progress, const policy::Replica& replica,
                     const local::ProcessInfo& process) {
  if (!process.running) {
    const bool left = process.exit.signal == 0 && process.exit.code == 0;
    if (left) return {"finished", Tone::kDone};
    return {policy::ExitText(process.exit), Tone::kBad};
  }

  if (replica.role == v1::COORDINATOR) {
    return progress != nullptr ? ProcessState{"running", Tone::kGood}
                               : ProcessState{"starting", Tone::kWaiting};
  }

  const v1::ProcessStatus* status = FindStatus(progress, replica, process.pid);
  if (status == nullptr) return {"starting", Tone::kWaiting};
  if (status->state() == v1::ProcessStatus::LEFT) return {"leaving", Tone::kDone};

  return ReportedState(replica, *status);
}

}  // namespace

std::map<policy::Replica, ProcessState> LocalProcessStates(
    const std::map<policy::Replica, local::ProcessInfo>& processes,
    const v1::JobProgress* progress) {
  std::map<policy::Replica, ProcessState> states;
  for (const auto& [replica, process] : processes) {
    ProcessState state = StateOf(progress, replica, process);
    state.restarts = process.restarts;
    states[replica] = std::move(state);
  }
  return states;
}

std::map<policy::Replica, ProcessState> ReportedProcessStates(const v1::JobProgress& progress) {
  std::map<policy::Replica, ProcessState> living;
  std::map<policy::Replica, ProcessState>
      departed;  // the last instance of each replica: older ones come first
  for (const v1::ProcessStatus& status : progress.processes()) {
    const policy::Replica replica = {status.process().role(), status.process().index()};
    (IsDeparted(status) ? departed : living)[replica] = ReportedState(replica, status);
  }
  living.merge(departed);
  return living;
}

}  // namespace sluice::cli
