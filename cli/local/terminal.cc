#include "cli/local/terminal.h"

#include <pthread.h>
#include <unistd.h>

#include <csignal>

namespace sluice::local {
namespace {

// A process in the background that takes the terminal is stopped by SIGTTOU, unless it blocks it.
void Take(pid_t group, const termios* settings) {
  sigset_t signals, before;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTTOU);
  pthread_sigmask(SIG_BLOCK, &signals, &before);
  tcsetpgrp(STDIN_FILENO, group);
  if (settings != nullptr) tcsetattr(STDIN_FILENO, TCSADRAIN, settings);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace

Terminal::Terminal()
    : owned_(tcgetpgrp(STDIN_FILENO) == getpgrp() && tcgetattr(STDIN_FILENO, &settings_) == 0),
      group_(getpgrp()) {}

void Terminal::TakeInChild() const {
  if (!owned_) return;
  Take(getpid(), nullptr);
  signal(SIGTSTP, SIG_IGN);
}

void Terminal::TakeBack() const {
  if (owned_) Take(group_, &settings_);
}

}  // namespace sluice::local
