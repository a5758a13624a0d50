// Where the members of a view that sum gradients among each other (docs/protocol.md 7.12) leave
// each other's addresses.
//
// It knows the newest view alone: with each new one it begins anew, so it holds one message of each
// member at most. Pure; for one thread.
#ifndef SLUICE_SERVICES_COORDINATOR_RENDEZVOUS_H_
#define SLUICE_SERVICES_COORDINATOR_RENDEZVOUS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/control.pb.h"
#include "proto/rendezvous.pb.h"

namespace sluice::coordinator {

class Rendezvous {
 public:
  static constexpr size_t kMaxMessageBytes = size_t{256} << 10;

  // The newest view. What was left in another one is dropped.
  void OnView(const v1::View& view);

  // Keeps the message, and gives those of all once all are there. Errors as proto/rendezvous.proto
  // says them; nothing is changed then.
  absl::StatusOr<v1::MeetReply> Meet(const v1::MeetRequest& request);

 private:
  v1::ViewId view_;
  std::vector<uint64_t> members_;             // who has microbatches, in the view's order
  std::map<uint64_t, std::string> messages_;  // by incarnation
};

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_RENDEZVOUS_H_
