// Relays the connections between the processes of a job on this machine, and cuts and slows them
// without any privilege.
#ifndef SLUICE_CLI_CHAOS_LINK_RELAY_H_
#define SLUICE_CLI_CHAOS_LINK_RELAY_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/chaos/faults.h"
#include "cli/chaos/socket_owner.h"
#include "cli/local/local_job.h"
#include "services/common/io/listener.h"
#include "services/common/threads/mutex.h"

namespace sluice::chaos {

// Forwards TCP connections. Each server of the job is known to its clients by a port of the relay,
// which connects them to the server. A connection belongs to two processes, which the relay finds
// by their sockets; a disturbed process has all its connections disturbed.
//
// While a connection is cut, no byte passes and its end is not reported either: both sides see
// silence, as when a cable is pulled. Bytes that wait are delivered afterwards, as by TCP.
//
// The relay forwards what a client has sent before it closed, and then ends the connection: no
// process of a job closes one direction and still reads the other.
//
// One thread serves all connections. Another one looks up their processes, because a machine may
// have thousands of sockets; a new connection waits for that, and no other connection does.
// Thread-safe.
class LinkRelay final : public local::Links {
 public:
  // Finds the process groups of sockets; GroupsThatHave in the product.
  using OwnerLookup = std::function<std::vector<pid_t>(const std::vector<SocketPorts>&)>;

  // RESOURCE_EXHAUSTED and other errors: the system has no sockets left.
  // Allows this process, and those that it starts, as many open files as the system permits.
  static absl::StatusOr<std::unique_ptr<LinkRelay>> Start(OwnerLookup lookup = GroupsThatHave);
  // Breaks all connections.
  ~LinkRelay() override;

  // local::Links
  absl::StatusOr<std::string> CoordinatorAddress(int port) override;
  absl::StatusOr<std::string> ShardAddress(uint32_t index, const std::string& port_file) override;

  // Disturbs the connections that processes of this group (a child's pid) have and will have.
  void Disturb(pid_t group, const LinkFault& fault);
  // The group's connections are as they were before; bytes that waited are delivered.
  void Restore(pid_t group);

 private:
  // ---- the relay's parts
  class Connection;
  // A port that clients connect to in a server's place.
  struct Door {
    Fd listener;
    std::function<int()> target_port;  // 0: the server does not listen yet
  };

  // A connection whose processes are to be looked up, or have been: of its client, of its server.
  struct Lookup {
    uint64_t connection;
    SocketPorts sockets[2];
  };
  // The answer of a lookup.
  struct Owners {
    uint64_t connection;
    pid_t groups[2];
  };

  LinkRelay(Fd wake, OwnerLookup lookup);

  // Opens a door for a server and returns its address. Calls `target_port` for each connection: a
  // server that is started again may listen on another port.
  absl::StatusOr<std::string> Open(const std::string& name, std::function<int()> target_port);
  // Wakes the thread that serves connections. Any thread.
  void Wake();
  // The body of the thread that serves connections.
  void Loop();
  // The body of the thread that looks up processes.
  void LookUp();
  // Sets the processes of the connections that have been looked up.
  void NoteOwners();
  // False: the system has no room for another connection now.
  bool Accept(const Door& door);
  // The connection's disturbance now.
  LinkFault FaultOf(const Connection& connection) const;

  const Fd wake_;
  const OwnerLookup lookup_;

  // Used only by the thread that serves connections.
  std::map<uint64_t, std::unique_ptr<Connection>> connections_;
  uint64_t last_connection_ = 0;

  mutable Mutex mutex_;  // protects what follows; leaf
  std::map<std::string, std::shared_ptr<Door>> doors_ ABSL_GUARDED_BY(mutex_);
  std::map<pid_t, LinkFault> faults_ ABSL_GUARDED_BY(mutex_);
  std::vector<Lookup> wanted_ ABSL_GUARDED_BY(mutex_);
  std::vector<Owners> found_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  CondVar wanted_changed_;  // or stopping_

  std::thread thread_;  // these two last, because they use the members above
  std::thread lookups_;
};

}  // namespace sluice::chaos

#endif  // SLUICE_CLI_CHAOS_LINK_RELAY_H_
