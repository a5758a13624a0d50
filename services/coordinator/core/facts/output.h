// The output of the coordinator's core: actions for the shell, in their order, and events for
// people.

#ifndef SLUICE_SERVICES_COORDINATOR_CORE_FACTS_OUTPUT_H_
#define SLUICE_SERVICES_COORDINATOR_CORE_FACTS_OUTPUT_H_

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/control.pb.h"
#include "proto/jobcontrol.pb.h"
#include "services/common/check.h"
#include "services/coordinator/core/base/actions.h"
#include "services/coordinator/core/facts/facts.h"
#include "services/coordinator/core/facts/progress.h"

namespace sluice::coordinator {

class Output {
 public:
  // `facts` must outlive it.
  explicit Output(const Facts& facts) : facts_(facts) {}

  void Add(Action action) {
    SLUICE_DCHECK(actions_.empty() || !std::holds_alternative<Exit>(actions_.back()),
                  "Exit is the last action");
    actions_.push_back(std::move(action));
  }
  void Close(StreamId stream, absl::Status status) { Add(CloseStream{stream, std::move(status)}); }
  // A suspect is sent nothing: it receives what it has missed when it returns.
  void Send(const Process& process, v1::CoordinatorMessage message) {
    SLUICE_DCHECK(message.body_case() != v1::CoordinatorMessage::BODY_NOT_SET,
                  "a message says something");
    if (!process.suspect()) Add(coordinator::Send{process.stream, std::move(message)});
  }
  // To all shards of the attempt that are alive.
  void SendToShards(const v1::CoordinatorMessage& message) {
    for (const uint64_t shard : facts_.attempt.facts().shards) {
      if (const Process* process = facts_.members.Find(shard); process != nullptr) {
        Send(*process, message);
      }
    }
  }

  void Info(std::string message, absl::Time now) {
    events_.Add(v1::Event::INFO, std::move(message), now);
  }
  void Warn(std::string message, absl::Time now) {
    events_.Add(v1::Event::WARNING, std::move(message), now);
  }
  EventLog& events() { return events_; }
  const EventLog& events() const { return events_; }

  std::vector<Action> TakeActions() { return std::exchange(actions_, {}); }

 private:
  const Facts& facts_;
  std::vector<Action> actions_;
  EventLog events_;
};

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_CORE_FACTS_OUTPUT_H_
