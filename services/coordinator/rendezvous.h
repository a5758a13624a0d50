// Where the members of a view that sum gradients among each other (docs/protocol.md 7.12) leave
// each other's addresses.
//
// It knows the newest view alone: with each new one it begins anew, so it holds the addresses of
// each member at most once. Pure; for one thread.
#ifndef SLUICE_SERVICES_COORDINATOR_RENDEZVOUS_H_
#define SLUICE_SERVICES_COORDINATOR_RENDEZVOUS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/control.pb.h"
#include "proto/rendezvous.pb.h"

namespace sluice::coordinator {

class Rendezvous {
 public:
  static constexpr size_t kMaxAddressBytes = 512;
  static constexpr size_t kMaxViewBytes = size_t{256} << 20;  // of the addresses that are kept

  // The newest view. What was left in another one is dropped.
  void OnView(const v1::View& view);

  // Keeps the sender's addresses, and gives those that are meant for it once all are there. Errors
  // as proto/rendezvous.proto says them; nothing is changed then.
  absl::StatusOr<v1::MeetReply> Meet(const v1::MeetRequest& request);

 private:
  struct Member {
    uint64_t plan_hash = 0;
    std::vector<std::string> addresses;  // for each of members_

    bool operator==(const Member& other) const {
      return plan_hash == other.plan_hash && addresses == other.addresses;
    }
  };

  absl::Status CheckAddresses(const v1::MeetRequest& request) const;

  v1::ViewId view_;
  std::vector<v1::ProcessId> members_;  // those that have microbatches, in the view's order
  std::map<uint64_t, Member> left_;     // by incarnation
  size_t bytes_ = 0;                    // of the addresses in left_
};

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_RENDEZVOUS_H_
