#include "cli/chaos/socket_owner.h"

#include <unistd.h>

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace sluice::chaos {
namespace {

namespace fs = std::filesystem;

// "st" of /proc/net/tcp
constexpr unsigned kEstablished = 0x01;
constexpr unsigned kListening = 0x0A;

// What /proc/PID/fd shows for the sockets with these ports.
std::set<std::string> SocketsOf(unsigned state, unsigned port, unsigned peer_port) {
  std::set<std::string> sockets;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream lines(table);
    std::string line;
    while (std::getline(lines, line)) {
      unsigned local = 0;
      unsigned peer = 0;
      unsigned found = 0;
      uint64_t inode = 0;
      const int fields = std::sscanf(
          line.c_str(), " %*d: %*[0-9A-F]:%x %*[0-9A-F]:%x %x %*s %*s %*s %*d %*d %" SCNu64, &local,
          &peer, &found, &inode);
      if (fields != 4 || found != state || local != port || peer != peer_port) continue;
      sockets.insert(absl::StrCat("socket:[", inode, "]"));
    }
  }
  return sockets;
}

bool HasOneOf(const fs::path& process, const std::set<std::string>& sockets) {
  std::error_code error;
  for (fs::directory_iterator fd(process / "fd", error), end; !error && fd != end;
       fd.increment(error)) {
    std::error_code gone;
    if (sockets.count(fs::read_symlink(fd->path(), gone).string()) != 0) return true;
  }
  return false;
}

pid_t GroupWith(const std::set<std::string>& sockets) {
  if (sockets.empty()) return 0;
  std::error_code error;
  for (fs::directory_iterator process("/proc", error), end; !error && process != end;
       process.increment(error)) {
    pid_t pid = 0;
    if (!absl::SimpleAtoi(process->path().filename().string(), &pid)) continue;
    // No process of a job calls setsid.
    if (getsid(pid) != getsid(0)) continue;
    if (HasOneOf(process->path(), sockets)) return getpgid(pid);
  }
  return 0;
}

}  // namespace

pid_t GroupThatListens(int port) {
  return GroupWith(SocketsOf(kListening, static_cast<unsigned>(port), 0));
}

pid_t GroupThatConnects(int port, int peer_port) {
  return GroupWith(
      SocketsOf(kEstablished, static_cast<unsigned>(port), static_cast<unsigned>(peer_port)));
}

}  // namespace sluice::chaos
