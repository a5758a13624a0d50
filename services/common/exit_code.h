// How a process of a job says, to whoever started it, why it ended.

#ifndef SLUICE_SERVICES_COMMON_EXIT_CODE_H_
#define SLUICE_SERVICES_COMMON_EXIT_CODE_H_

namespace sluice {

// Codes 10 to 19 are Sluice's own; what is above 128 are signals, as in a shell.
enum ExitCode : int {
  kExitOk = 0,         // finished, or left as it was asked to
  kExitFailed = 1,     // the job failed; starting again would fail alike
  kExitUsage = 2,      // wrong flags or a bad manifest
  kExitExpelled = 10,  // start again as a new incarnation; nobody's fault
  kExitRefused = 11,   // the coordinator does not take this process, or the process cannot take its
                       // job: most often they are of different versions
  kExitRetry = 12,     // something outside failed for now (storage, port, peer): start again later
  kExitMissing = 13,   // data or model are not there, or may not be read: start again once they are
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_COMMON_EXIT_CODE_H_
