#include "cli/chaos/socket_owner.h"

#include <unistd.h>

#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace sluice::chaos {
namespace {

namespace fs = std::filesystem;

// "st" of /proc/net/tcp
constexpr unsigned kEstablished = 0x01;
constexpr unsigned kListening = 0x0A;

// What /proc/PID/fd shows for a socket -> the places in the list of those that ask for it.
using Places = std::multimap<std::string, size_t>;

Places PlacesOf(const std::vector<TcpSocket>& sockets) {
  std::multimap<std::pair<unsigned, unsigned>, size_t> wanted;
  for (size_t i = 0; i < sockets.size(); ++i) {
    wanted.insert({{sockets[i].port, sockets[i].peer_port}, i});
  }

  Places places;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream lines(table);
    std::string line;
    while (std::getline(lines, line)) {
      unsigned local = 0;
      unsigned peer = 0;
      unsigned state = 0;
      uint64_t inode = 0;
      const int fields = std::sscanf(
          line.c_str(), " %*d: %*[0-9A-F]:%x %*[0-9A-F]:%x %x %*s %*s %*s %*d %*d %" SCNu64, &local,
          &peer, &state, &inode);
      if (fields != 4 || state != (peer == 0 ? kListening : kEstablished)) continue;
      for (auto [at, end] = wanted.equal_range({local, peer}); at != end; ++at) {
        places.insert({absl::StrCat("socket:[", inode, "]"), at->second});
      }
    }
  }
  return places;
}

}  // namespace

std::vector<pid_t> GroupsWith(const std::vector<TcpSocket>& sockets) {
  std::vector<pid_t> groups(sockets.size(), 0);
  const Places places = PlacesOf(sockets);
  if (places.empty()) return groups;

  std::error_code error;
  for (fs::directory_iterator process("/proc", error), end; !error && process != end;
       process.increment(error)) {
    pid_t pid = 0;
    if (!absl::SimpleAtoi(process->path().filename().string(), &pid)) continue;
    // No process of a job calls setsid.
    if (getsid(pid) != getsid(0)) continue;
    std::error_code gone;
    for (fs::directory_iterator fd(process->path() / "fd", gone); !gone && fd != end;
         fd.increment(gone)) {
      std::error_code closed;
      const std::string shown = fs::read_symlink(fd->path(), closed).string();
      for (auto [at, last] = places.equal_range(shown); at != last; ++at) {
        if (groups[at->second] == 0) groups[at->second] = getpgid(pid);
      }
    }
  }
  return groups;
}

}  // namespace sluice::chaos
