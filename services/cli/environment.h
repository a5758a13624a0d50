// What `sluice` takes from the process that it is: made in main, or by a test.
#ifndef SLUICE_SERVICES_CLI_ENVIRONMENT_H_
#define SLUICE_SERVICES_CLI_ENVIRONMENT_H_

#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include "services/common/clock.h"
#include "services/common/file_util.h"

namespace sluice::cli {

struct Environment {
  std::istream* in = nullptr;
  std::ostream* out = nullptr;
  std::ostream* err = nullptr;
  bool in_is_terminal = false;
  // Whether `out` understands cursor movements; and colours.
  bool live = false;
  bool color = false;
  // Width of the terminal, in characters; it may change.
  std::function<int()> columns = [] { return 80; };
  // Where the programs of a job may be, best first.
  std::vector<std::string> program_directories;
  FileSystem* files = nullptr;
  const Clock* clock = nullptr;
  // From now on `handler(n)` is called for the n-th SIGINT or SIGTERM, on a thread of its own. An
  // empty handler: nobody is told.
  std::function<void(std::function<void(int)>)> set_interrupt_handler =
      [](const std::function<void(int)>&) {};
};

}  // namespace sluice::cli

#endif  // SLUICE_SERVICES_CLI_ENVIRONMENT_H_
