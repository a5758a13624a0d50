// Registration: which processes are admitted, and what they and the shards learn of it.
//
// Intuition. A process opens a control stream and registers on it. It is refused for good, or
// postponed, or admitted. It is answered with the term, the job and the newest attempt. Shards
// accept data streams only of processes that this coordinator has admitted: they are sent the list
// of all workers and readers each time it changes, and before a process learns their addresses.
//
// It writes Facts::members, as far as streams and registrations are concerned.

#ifndef SLUICE_SERVICES_COORDINATOR_CORE_MEMBERS_REGISTRAR_H_
#define SLUICE_SERVICES_COORDINATOR_CORE_MEMBERS_REGISTRAR_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "proto/control.pb.h"
#include "services/coordinator/core/base/actions.h"
#include "services/coordinator/core/facts/facts.h"
#include "services/coordinator/core/facts/membership.h"
#include "services/coordinator/core/facts/output.h"
#include "services/coordinator/core/snapshots/readers.h"

namespace sluice::coordinator {

class Registrar {
 public:
  // All must outlive it.
  Registrar(const Facts& facts, Membership* members, const Readers& readers, Output* output)
      : facts_(facts), members_(*members), readers_(readers), output_(*output) {}

  // A process has opened a stream. It is closed if too many await a registration.
  void OnConnected(StreamId stream, absl::Time now);

  struct Admission {
    bool admitted = false;
    std::optional<Departure> displaced;  // a suspect of the same role and index, now expelled
  };
  // A request that CheckRegister accepts, on a stream without a process. If the process is not
  // admitted, it learns why. `end`: why the job has ended, if it has.
  Admission OnRegister(StreamId stream, const v1::Register& request, const std::string& end,
                       absl::Time now);
  // (R4) Whether a shard that has just registered knows a view of the attempt, and is not in the
  // newest one: it holds an old state.
  bool IsLeftBehind(const Process& shard) const;
  // Answers a process that is admitted and connected. Requires a term. `attempt`: the highest one
  // that is known to be claimed.
  void Answer(const Process& process, uint64_t attempt, absl::Time now);
  // The process will not be admitted with this incarnation. Closes the stream.
  void Refuse(StreamId stream, v1::Refusal refusal);

  // Sends the list of workers and readers to all shards that have their answer, if it has changed.
  // Until an attempt begins no process opens a data stream, so none is sent before; the first list
  // then names all workers that have registered.
  void SendAdmitted();

  // Registrations that were refused or postponed.
  uint64_t refused() const { return refused_; }

 private:
  std::optional<v1::Refusal> Check(const v1::ProcessId& id, const std::string& end) const;
  v1::CoordinatorMessage AdmittedMessage() const;

  const Facts& facts_;
  Membership& members_;
  const Readers& readers_;
  Output& output_;
  uint64_t sent_changes_ = 0;  // of the members and readers that shards were sent
  uint64_t refused_ = 0;
};

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_CORE_MEMBERS_REGISTRAR_H_
