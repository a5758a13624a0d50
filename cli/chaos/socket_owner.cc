#include "cli/chaos/socket_owner.h"

#include <unistd.h>

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "absl/strings/numbers.h"

namespace sluice::chaos {
namespace {

namespace fs = std::filesystem;

// "st" of /proc/net/tcp
constexpr unsigned kEstablished = 0x01;
constexpr unsigned kListening = 0x0A;

using Ports = std::pair<unsigned, unsigned>;  // local, peer
using Places = std::vector<size_t>;           // in the list of sockets
using Inodes = std::unordered_map<uint64_t, Places>;

Inodes InodesOf(const std::vector<SocketPorts>& sockets) {
  std::map<Ports, Places> wanted;
  for (size_t i = 0; i < sockets.size(); ++i) {
    wanted[{sockets[i].port, sockets[i].peer_port}].push_back(i);
  }

  Inodes inodes;
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

      const auto found = wanted.find({local, peer});
      if (found == wanted.end()) continue;

      Places& places = inodes[inode];
      places.insert(places.end(), found->second.begin(), found->second.end());
    }
  }
  return inodes;
}

// Removes the sockets that the process has from `inodes`.
void FindIn(const fs::path& process, pid_t group, Inodes* inodes, std::vector<pid_t>* groups) {
  std::error_code error;
  for (fs::directory_iterator fd(process / "fd", error), end; !error && fd != end;
       fd.increment(error)) {
    std::error_code gone;
    const std::string target = fs::read_symlink(fd->path(), gone).string();
    uint64_t inode = 0;
    if (std::sscanf(target.c_str(), "socket:[%" SCNu64, &inode) != 1) continue;

    const auto found = inodes->find(inode);
    if (found == inodes->end()) continue;
    for (const size_t place : found->second) (*groups)[place] = group;
    inodes->erase(found);
  }
}

}  // namespace

std::vector<pid_t> GroupsThatHave(const std::vector<SocketPorts>& sockets) {
  std::vector<pid_t> groups(sockets.size(), 0);
  Inodes inodes = InodesOf(sockets);

  std::error_code error;
  for (fs::directory_iterator process("/proc", error), end;
       !error && process != end && !inodes.empty(); process.increment(error)) {
    pid_t pid = 0;
    if (!absl::SimpleAtoi(process->path().filename().string(), &pid)) continue;

    // No process of a job calls setsid.
    if (getsid(pid) == getsid(0)) FindIn(process->path(), getpgid(pid), &inodes, &groups);
  }
  return groups;
}

}  // namespace sluice::chaos
