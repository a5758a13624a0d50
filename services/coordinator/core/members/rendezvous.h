// Exchanges addresses between the members of a view that sum gradients among each other
// (docs/protocol.md 7.12).
//
// It stores the newest view only and discards the addresses of older views, so it stores each
// member's addresses at most once. Pure; not thread-safe.
#ifndef SLUICE_SERVICES_COORDINATOR_CORE_MEMBERS_RENDEZVOUS_H_
#define SLUICE_SERVICES_COORDINATOR_CORE_MEMBERS_RENDEZVOUS_H_

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
  static constexpr size_t kMaxViewBytes = size_t{256} << 20;  // of the stored addresses

  // Sets the newest view. Addresses of another view are dropped.
  void OnView(const v1::View& view);

  // Stores the sender's addresses, and returns those that are meant for it once all members have
  // sent theirs. Errors as in proto/rendezvous.proto; an error changes nothing.
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

#endif  // SLUICE_SERVICES_COORDINATOR_CORE_MEMBERS_RENDEZVOUS_H_
