// How a run of a job begins, decided from what its directory and its checkpoint storage have. Pure.
#ifndef SLUICE_CLI_RUN_START_H_
#define SLUICE_CLI_RUN_START_H_

#include <optional>

#include "services/checkpoint/existing_job.h"

namespace sluice::cli {

enum class Start {
  kFirst,     // no earlier run counts: there is none, or --fresh removes it
  kResume,    // the job continues, with the uid that it has
  kAnother,   // the job has trained; it trains on with a new uid, as checkpoint.onExisting says
  kOver,      // the job has trained nothing: what its earlier run left is removed
  kFinished,  // the job has trained all that it asks for; nothing is to be done
};

struct StartFacts {
  bool fresh = false;     // --fresh
  bool recorded = false;  // the directory has the manifest with which the job was last started

  // Of a recorded job:
  bool fixed_changed = false;   // a field differs that a job that has trained may not change
  bool length_changed = false;  // the length of training differs
  bool takes_existing = false;  // checkpoint.onExisting is Resume or Replace
  bool trained = false;         // there is a checkpoint, or a finished run
  bool finished = false;        // the last run trained to its end
  // What another activation of the job finds in the checkpoint storage. Reading it takes long, so
  // it is read only if DecideStart returns kAnother without it.
  std::optional<ExistingJob::Kind> existing;
};

// nullopt: refused, because the job has trained with other settings.
std::optional<Start> DecideStart(const StartFacts& facts);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_RUN_START_H_
