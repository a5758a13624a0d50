#include "services/ps/streams.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/protocol/ids.h"
#include "services/protocol/wire_version.h"

namespace sluice::ps {

void StreamTable::Open(StreamId id) {
  if (streams_.size() >= state_.options.max_streams) {
    state_.actions.push_back(CloseStream{
        id, absl::ResourceExhaustedError(absl::StrCat("this shard serves at most ",
                                                      state_.options.max_streams, " streams"))});
    return;
  }
  streams_[id].stream.id = id;
}

Stream* StreamTable::Find(StreamId id) {
  const auto found = streams_.find(id);
  return found == streams_.end() ? nullptr : &found->second.stream;
}

Stream* StreamTable::FindPeer(uint64_t incarnation) {
  const auto found = newest_.find(incarnation);
  return found == newest_.end() ? nullptr : Find(found->second);
}

std::vector<StreamId> StreamTable::Ids() const {
  std::vector<StreamId> ids;
  for (const auto& [id, entry] : streams_) {
    if (entry.stream.greeted) ids.push_back(id);
  }
  return ids;
}

absl::Status StreamTable::Greet(Entry& entry, const v1::Hello& hello) {
  const v1::ProcessId& self = state_.options.identity.process();
  if (entry.stream.greeted) return absl::InvalidArgumentError("a second Hello on one stream");
  if (hello.min_wire_version() > kWireVersion || hello.max_wire_version() < kOldestWireVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("this shard speaks wire versions ", kOldestWireVersion, " to ", kWireVersion,
                     ", the peer ", hello.min_wire_version(), " to ", hello.max_wire_version()));
  }
  if (hello.job() != state_.options.identity.job()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "this shard serves job '", state_.options.identity.job(), "', not '", hello.job(), "'"));
  }
  if (hello.shard_incarnation() != self.incarnation()) {
    return absl::NotFoundError("another life of this shard is wanted");
  }
  const v1::Role role = hello.sender().role();
  if (role != v1::WORKER && role != v1::SHARD && role != v1::READER) {
    return absl::PermissionDeniedError("the data plane is for workers, shards and readers");
  }
  if (hello.sender().incarnation() == 0) {
    return absl::InvalidArgumentError("a Hello without an incarnation");
  }
  const auto [place, is_new] = newest_.try_emplace(hello.sender().incarnation(), entry.stream.id);
  if (!is_new) {
    const StreamId old = std::exchange(place->second, entry.stream.id);
    Close(old, absl::AbortedError("the peer has opened a newer stream"));
  }
  entry.stream.greeted = true;
  entry.stream.peer = hello.sender();
  v1::Header reply = state_.NewHeader();
  v1::HelloReply& body = *reply.mutable_hello_reply();
  body.set_wire_version(std::min(kWireVersion, hello.max_wire_version()));
  *body.mutable_shard() = self;
  body.set_window_bytes(state_.options.window_bytes);
  body.set_takes_rows(!state_.ByReference());
  state_.Send(entry.stream.id, std::move(reply));
  return absl::OkStatus();
}

absl::Status StreamTable::Admit(Entry& entry, const v1::Header& header, const absl::Cord& payload) {
  entry.unreturned += payload.size();
  if (entry.unreturned > state_.options.window_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("the peer has ", entry.unreturned,
                                                     " bytes under way; its window is ",
                                                     state_.options.window_bytes));
  }
  if (entry.waiting.size() >= state_.options.max_waiting_frames) {
    return absl::ResourceExhaustedError(
        absl::StrCat("more than ", state_.options.max_waiting_frames, " frames wait"));
  }
  if (header.body_case() == v1::Header::kHello) return Greet(entry, header.hello());
  if (!entry.stream.greeted) return absl::InvalidArgumentError("the first frame must be a Hello");
  return absl::OkStatus();
}

void StreamTable::Receive(StreamId id, const v1::Header& header, const absl::Cord& payload,
                          Handler handler) {
  const auto found = streams_.find(id);
  if (found == streams_.end()) return;
  Entry& entry = found->second;
  if (absl::Status admitted = Admit(entry, header, payload); !admitted.ok()) {
    Close(id, std::move(admitted));
    return;
  }
  if (header.body_case() == v1::Header::kHello) {
    GiveBack(entry, payload.size());
    return;
  }
  if (entry.waiting.empty()) {
    const absl::StatusOr<Handled> handled = handler(entry.stream, header, payload);
    if (!handled.ok()) {
      Close(id, handled.status());
      return;
    }
    // The handler may have closed the stream.
    if (*handled == Handled::kDone) {
      if (streams_.count(id) > 0) GiveBack(entry, payload.size());
      return;
    }
  }
  entry.waiting.push_back({header, payload});
  ++waiting_frames_;
  waiting_bytes_ += payload.size();
}

void StreamTable::Resume(Handler handler) {
  for (const StreamId id : Ids()) {
    for (;;) {
      const auto found = streams_.find(id);
      if (found == streams_.end() || found->second.waiting.empty()) break;
      Entry& entry = found->second;
      const Waiting& head = entry.waiting.front();
      const absl::StatusOr<Handled> handled = handler(entry.stream, head.header, head.payload);
      if (!handled.ok()) {
        Close(id, handled.status());
        break;
      }
      if (*handled == Handled::kWait) break;
      if (streams_.count(id) == 0) break;
      const uint64_t bytes = head.payload.size();
      entry.waiting.pop_front();
      --waiting_frames_;
      waiting_bytes_ -= bytes;
      GiveBack(entry, bytes);
    }
  }
}

void StreamTable::GiveBack(Entry& entry, uint64_t bytes) {
  entry.due += bytes;
  if (entry.due == 0 || entry.due < state_.options.window_bytes / 8) return;
  v1::Header header = state_.NewHeader();
  header.mutable_credit()->set_bytes(entry.due);
  entry.unreturned -= entry.due;
  entry.due = 0;
  state_.Send(entry.stream.id, std::move(header));
}

void StreamTable::Close(StreamId id, absl::Status status) {
  if (streams_.count(id) == 0) return;
  Erase(id);
  state_.actions.push_back(CloseStream{id, std::move(status)});
}

void StreamTable::Erase(StreamId id) {
  const auto found = streams_.find(id);
  if (found == streams_.end()) return;
  for (const Waiting& waiting : found->second.waiting) waiting_bytes_ -= waiting.payload.size();
  waiting_frames_ -= found->second.waiting.size();
  const auto newest = newest_.find(found->second.stream.incarnation());
  if (newest != newest_.end() && newest->second == id) newest_.erase(newest);
  streams_.erase(found);
}

void StreamTable::Refuse(Stream& stream, const std::string& reason) {
  if (state_.view.has_value() && Same(stream.refused_with, state_.view->id())) return;
  RefuseAlways(stream, reason);
}

void StreamTable::RefuseAlways(Stream& stream, const std::string& reason, uint64_t cut) {
  v1::Header header = state_.NewHeader();
  if (state_.view.has_value()) {
    *header.mutable_refused()->mutable_newest() = state_.view->proto();
    stream.refused_with = state_.view->id();
  }
  header.mutable_refused()->set_reason(reason);
  header.mutable_refused()->set_cut(cut);
  state_.Send(stream.id, std::move(header));
}

size_t StreamTable::parked_pulls() const {
  size_t sum = 0;
  for (const auto& [id, entry] : streams_) sum += entry.stream.parked_pulls;
  return sum;
}

}  // namespace sluice::ps
