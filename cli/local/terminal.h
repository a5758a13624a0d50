// The terminal of this process, if it has one and is in its foreground.
#ifndef SLUICE_CLI_LOCAL_TERMINAL_H_
#define SLUICE_CLI_LOCAL_TERMINAL_H_

#include <sys/types.h>
#include <termios.h>

namespace sluice::local {

// Passes the terminal of standard input to a child's process group and takes it back. Without a
// terminal, or in its background, nothing is passed.
class Terminal {
 public:
  Terminal();

  // In the child, between fork and exec, as the leader of its group. Async-signal-safe. Ctrl-Z has
  // no effect on the child: no shell could continue it.
  void TakeInChild() const;
  // In the parent, when the child has ended: also restores the terminal's settings.
  void TakeBack() const;

 private:
  bool owned_ = false;
  pid_t group_ = 0;
  termios settings_ = {};
};

}  // namespace sluice::local

#endif  // SLUICE_CLI_LOCAL_TERMINAL_H_
