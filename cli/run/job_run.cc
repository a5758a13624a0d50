#include "cli/run/job_run.h"

#include <utility>
#include <vector>

#include "cli/common/exit_codes.h"
#include "cli/run/preparation.h"

namespace sluice::cli {

JobRun::JobRun(const Environment& environment, const RunFlags& flags,
               const local::Programs& programs, api::TrainingJob job,
               local::JobDirectory* directory)
    : environment_(environment),
      flags_(flags),
      directory_(directory),
      name_(job.spec.name()),
      display_(MakeDisplay(environment, flags.output, DisplayOptionsOf(flags, job.spec))),
      options_(JobOptionsOf(flags, programs, std::move(job))) {}

std::optional<LogFollower> JobRun::Logs() const {
  std::optional<LogFollower> logs;
  if (flags_.verbose) logs.emplace(directory_->logs(), "", 0);
  return logs;
}

local::LocalJob* JobRun::Open(DisplayListener* listener) {
  listener_ = listener;
  start_ = environment_.clock->Now();
  return &job_.emplace(std::move(options_), environment_.files, directory_, listener,
                       environment_.clock);
}

const JobResult& JobRun::Run(Interrupt interrupt) {
  environment_.set_interrupt_handler([&](int count) {
    listener_->Stopping();
    if (count == 1 && interrupt == Interrupt::kSuspend) {
      job_->Suspend();
    } else {
      job_->StopNow();
    }
  });
  result_ = job_->Run();
  environment_.set_interrupt_handler(nullptr);

  policy::Outcome& outcome = result_.outcome;
  if (outcome.kind == policy::OutcomeKind::kFailed && !outcome.blamed.has_value()) {
    outcome.blamed = listener_->Blamed(outcome.reason);
  }
  return result_;
}

int JobRun::Finish(const std::string& export_command) {
  SummaryFacts facts;
  facts.result = result_;
  facts.name = name_;
  facts.logs = directory_->logs();
  facts.export_command = export_command;
  facts.elapsed = result_.ended - start_;
  listener_->FillIn(&facts);

  const policy::Outcome& outcome = result_.outcome;
  std::vector<std::string> log_lines;
  if (outcome.kind == policy::OutcomeKind::kFailed) {
    log_lines = job_->LastLogLines(*outcome.blamed, kFailureLogLines);
  }
  const int code = ExitCodeOf(outcome.kind);
  display_->Finish(facts, code, log_lines);
  return code;
}

}  // namespace sluice::cli
