#include "services/coordinator/rendezvous.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "services/protocol/ids.h"

namespace sluice::coordinator {

void Rendezvous::OnView(const v1::View& view) {
  if (Same(view.id(), view_)) return;
  view_ = view.id();
  members_.clear();
  messages_.clear();
  for (const v1::View::Member& member : view.workers()) {
    if (member.microbatches_size() > 0) members_.push_back(member.process().incarnation());
  }
}

absl::StatusOr<v1::MeetReply> Rendezvous::Meet(const v1::MeetRequest& request) {
  if (!Same(request.view(), view_)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "view ", ShortName(request.view()), " is not the newest: that is ", ShortName(view_)));
  }
  const uint64_t incarnation = request.process().incarnation();
  if (std::find(members_.begin(), members_.end(), incarnation) == members_.end()) {
    return absl::PermissionDeniedError(absl::StrCat(
        ProcessName(request.process()), " computes nothing in view ", ShortName(view_)));
  }
  if (request.message().size() > kMaxMessageBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a message of ", request.message().size(),
                                                   " bytes, at most ", kMaxMessageBytes,
                                                   " may be left"));
  }
  const auto [left, is_new] = messages_.try_emplace(incarnation, request.message());
  if (!is_new && left->second != request.message()) {
    return absl::InvalidArgumentError(absl::StrCat(ProcessName(request.process()),
                                                   " has left another message in view ",
                                                   ShortName(view_), " before"));
  }
  v1::MeetReply reply;
  if (messages_.size() < members_.size()) return reply;
  for (uint64_t member : members_) {
    v1::MeetReply::Member& said = *reply.add_members();
    said.set_incarnation(member);
    said.set_message(messages_.at(member));
  }
  return reply;
}

}  // namespace sluice::coordinator
