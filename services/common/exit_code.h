// Exit codes, by which a process of a job reports why it ended.

#ifndef SLUICE_SERVICES_COMMON_EXIT_CODE_H_
#define SLUICE_SERVICES_COMMON_EXIT_CODE_H_

namespace sluice {

// Codes 10 to 19 are Sluice's own; codes above 128 are signals, as in a shell. The operator and
// `sluice run`, possibly of another release, decide by them whether to start a process again: the
// numbers do not change.
enum ExitCode : int {
  kExitOk = 0,         // finished, or left on request
  kExitFailed = 1,     // the job failed; a restart would fail too
  kExitUsage = 2,      // wrong flags or a bad manifest
  kExitExpelled = 10,  // restart as a new incarnation; not a fault
  kExitRefused = 11,   // the coordinator refuses this process, or the process cannot run its job:
                       // most often their versions differ
  kExitRetry = 12,     // something outside failed for now (storage, port, peer): restart later
  kExitMissing =
      13,  // data or model do not exist or may not be read: restart once they can be read
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_COMMON_EXIT_CODE_H_
