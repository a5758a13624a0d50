// Relays the connections between the processes of a job on this machine, and cuts and slows them
// without any privilege.
#ifndef SLUICE_CLI_CHAOS_LINK_RELAY_H_
#define SLUICE_CLI_CHAOS_LINK_RELAY_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <list>
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
#include "services/common/listener.h"
#include "services/common/mutex.h"

namespace sluice::chaos {

// Forwards TCP connections. Each server of the job is known to its clients by a port of the relay,
// which connects them to the server. A connection belongs to two processes, which the relay finds
// by their sockets; a disturbed process has all its connections disturbed.
//
// While a connection is cut, no byte passes and its end is not reported either: both sides see
// silence, as when a cable is pulled. Bytes that wait are delivered afterwards, as by TCP.
//
// One thread serves all connections. Another one finds the processes at their ends, which takes
// long on a machine with many sockets: until then no byte passes a new connection. Thread-safe.
class LinkRelay final : public local::Links {
 public:
  // For each socket the process group that has it, or 0. Called on a thread of its own.
  using FindGroups = std::function<std::vector<pid_t>(const std::vector<TcpSocket>&)>;

  // RESOURCE_EXHAUSTED and other errors: the system has no sockets left.
  static absl::StatusOr<std::unique_ptr<LinkRelay>> Start(FindGroups find = GroupsWith);
  // Breaks all connections.
  ~LinkRelay() override;

  // local::Links
  absl::StatusOr<std::string> CoordinatorAddress(int port) override;
  absl::StatusOr<std::string> ShardAddress(uint32_t index, const std::string& port_file) override;

  // Disturbs the connections that processes of this group (a child's pid) have and will have.
  void Disturb(pid_t group, const LinkFault& fault);
  void Restore(pid_t group);

 private:
  class Connection;
  // The processes at the two ends of a connection.
  struct Ends {
    const std::vector<TcpSocket> sockets;
    bool found = false;
    std::vector<pid_t> groups;  // of the sockets; 0: unknown
  };
  struct Door {
    Fd listener;
    std::function<int()> target_port;  // 0: the server does not listen yet
  };

  LinkRelay(Fd wake, FindGroups find);

  absl::StatusOr<std::string> Open(const std::string& name, std::function<int()> target_port);
  void Wake();
  void Loop();
  void FindLoop();
  // Accepts a few connections; poll reports the door again if more wait.
  void Accept(const Door& door);
  // The connection's disturbance now.
  LinkFault FaultOf(const Connection& connection) const;

  const Fd wake_;
  const FindGroups find_;
  std::list<std::unique_ptr<Connection>> connections_;  // of the thread

  mutable Mutex mutex_;  // protects what follows; leaf
  std::map<std::string, std::shared_ptr<Door>> doors_ ABSL_GUARDED_BY(mutex_);
  std::map<pid_t, LinkFault> faults_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Ends>> unknown_ ABSL_GUARDED_BY(mutex_);  // to be found
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  CondVar find_something_;  // stopping, or not all ends are known

  // Last, because they use the members above.
  std::thread finder_;
  std::thread thread_;
};

}  // namespace sluice::chaos

#endif  // SLUICE_CLI_CHAOS_LINK_RELAY_H_
