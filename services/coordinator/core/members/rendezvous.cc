#include "services/coordinator/core/members/rendezvous.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/common/check.h"
#include "services/common/status_macros.h"
#include "services/protocol/ids.h"

namespace sluice::coordinator {

void Rendezvous::OnView(const v1::View& view) {
  if (Same(view.id(), view_)) return;
  view_ = view.id();
  members_.clear();
  left_.clear();
  bytes_ = 0;
  for (const v1::View::Member& member : view.workers()) {
    if (member.microbatches_size() > 0) members_.push_back(member.process());
  }
}

absl::Status Rendezvous::CheckAddresses(const v1::MeetRequest& request) const {
  if (static_cast<size_t>(request.addresses_size()) != members_.size()) {
    return absl::InvalidArgumentError(absl::StrCat(request.addresses_size(), " addresses, view ",
                                                   ShortName(view_), " has ", members_.size(),
                                                   " members that compute"));
  }
  for (const std::string& address : request.addresses()) {
    if (address.size() <= kMaxAddressBytes) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "an address of ", address.size(), " bytes; at most ", kMaxAddressBytes, " are allowed"));
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::MeetReply> Rendezvous::Meet(const v1::MeetRequest& request) {
  if (!Same(request.view(), view_)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "view ", ShortName(request.view()), " is not the newest: that is ", ShortName(view_)));
  }

  const uint64_t incarnation = request.process().incarnation();
  // Compares the whole identity: a worker may only ask for itself.
  const auto asker =
      std::find_if(members_.begin(), members_.end(), [&](const v1::ProcessId& member) {
        return member.incarnation() == incarnation && member.role() == request.process().role() &&
               member.index() == request.process().index();
      });
  if (asker == members_.end()) {
    return absl::PermissionDeniedError(absl::StrCat(
        ProcessName(request.process()), " computes nothing in view ", ShortName(view_)));
  }

  RETURN_IF_ERROR(CheckAddresses(request));

  Member said{request.plan_hash(), {request.addresses().begin(), request.addresses().end()}};
  const auto before = left_.find(incarnation);
  if (before == left_.end()) {
    size_t bytes = 0;
    for (const std::string& address : said.addresses) bytes += sizeof(address) + address.size();
    if (bytes > kMaxViewBytes - bytes_) {
      return absl::ResourceExhaustedError(absl::StrCat("the addresses of view ", ShortName(view_),
                                                       " have more than ", kMaxViewBytes,
                                                       " bytes (kMaxViewBytes)"));
    }
    bytes_ += bytes;
    left_.emplace(incarnation, std::move(said));
  } else if (!(before->second == said)) {
    return absl::InvalidArgumentError(absl::StrCat(ProcessName(request.process()),
                                                   " has given other addresses in view ",
                                                   ShortName(view_), " before"));
  }

  SLUICE_DCHECK(left_.size() <= members_.size(), "a member leaves its addresses once");
  SLUICE_DCHECK(bytes_ <= kMaxViewBytes, "the addresses of a view are bounded");
  v1::MeetReply reply;
  if (left_.size() < members_.size()) return reply;

  const auto place = static_cast<size_t>(asker - members_.begin());
  for (const v1::ProcessId& member : members_) {
    const Member& other = left_.at(member.incarnation());
    SLUICE_DCHECK(place < other.addresses.size(), "a member has an address for each member");
    v1::MeetReply::Member& entry = *reply.add_members();
    entry.set_incarnation(member.incarnation());
    entry.set_plan_hash(other.plan_hash);
    entry.set_address(other.addresses[place]);
  }
  return reply;
}

}  // namespace sluice::coordinator
