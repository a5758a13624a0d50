#include "services/ps/core/session/streams.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/common/check.h"
#include "services/common/status_macros.h"
#include "services/protocol/ids.h"
#include "services/protocol/wire_version.h"
#include "services/ps/core/session/frame_checks.h"

namespace sluice::ps {

void StreamTable::Open(StreamId id) {
  const ShardOptions& options = state_.options();
  const bool many_silent = silent_.size() >= options.max_silent_streams;
  const Bound bound = many_silent ? Bound::kSilentStreams : Bound::kStreams;
  if (many_silent || streams_.size() >= options.max_streams) {
    if (silent_.empty()) {
      out_.Add(CloseStream{id, out_.Full(bound, absl::StrCat("this shard serves at most ",
                                                             options.max_streams, " streams"))});
      return;
    }
    Close(silent_.begin()->second,
          out_.Full(bound, "a stream without a Hello was closed to make room for a new one"));
  }
  SLUICE_DCHECK(streams_.count(id) == 0, "the shell names each stream once");

  Entry& entry = streams_[id];
  entry.stream.id = id;
  entry.deadline = state_.now() + options.hello_timeout;
  silent_.insert({entry.deadline, id});
}

void StreamTable::SetAdmitted(const v1::Admitted& admitted) {
  admitted_.clear();
  for (const v1::ProcessId& process : admitted.processes()) {
    const bool known = process.role() == v1::WORKER || process.role() == v1::READER;
    if (!known || process.incarnation() == 0) continue;
    if (admitted_.size() >= state_.options().max_admitted_processes) {
      out_.Reached(Bound::kAdmittedProcesses);
      break;
    }
    admitted_[PeerKey{process.role(), process.incarnation()}] = process.index();
  }

  GreetAdmitted();
}

void StreamTable::SetShards(const google::protobuf::RepeatedPtrField<v1::View::Shard>& prepared) {
  prepared_shards_.clear();
  for (const v1::View::Shard& shard : prepared) prepared_shards_.push_back(shard.process());
  GreetAdmitted();
}

void StreamTable::GreetAdmitted() {
  const Deadlines waiting = unadmitted_;
  for (const auto& [deadline, id] : waiting) {
    const auto found = streams_.find(id);
    if (found == streams_.end()) continue;  // closed by a newer stream of the same process

    Entry& entry = found->second;
    absl::StatusOr<bool> admitted = Admits(entry.stream.peer);
    if (admitted.ok() && !*admitted) continue;
    absl::Status greeted = admitted.ok() ? Greet(entry) : admitted.status();
    if (!greeted.ok()) Close(id, std::move(greeted));
  }
}

void StreamTable::Expire() {
  while (!silent_.empty() && silent_.begin()->first <= state_.now()) {
    SLUICE_DCHECK(streams_.count(silent_.begin()->second) > 0, "a deadline is that of a stream");
    Close(silent_.begin()->second, absl::DeadlineExceededError(absl::StrCat(
                                       "hello_timeout: no Hello within ",
                                       absl::FormatDuration(state_.options().hello_timeout))));
  }
  while (!unadmitted_.empty() && unadmitted_.begin()->first <= state_.now()) {
    const StreamId id = unadmitted_.begin()->second;
    SLUICE_DCHECK(streams_.count(id) > 0, "a deadline is that of a stream");
    const v1::ProcessId& peer = streams_.at(id).stream.peer;
    Close(id, absl::PermissionDeniedError(absl::StrCat(
                  ProcessName(peer), " with incarnation ", absl::Hex(peer.incarnation()),
                  " is not one that the coordinator has admitted (admission_timeout: ",
                  absl::FormatDuration(state_.options().admission_timeout), ")")));
  }
}

absl::Time StreamTable::NextExpiry() const {
  absl::Time next = absl::InfiniteFuture();
  if (!silent_.empty()) next = silent_.begin()->first;
  if (!unadmitted_.empty()) next = std::min(next, unadmitted_.begin()->first);
  return next;
}

Stream* StreamTable::Find(StreamId id) {
  const auto found = streams_.find(id);
  return found == streams_.end() ? nullptr : &found->second.stream;
}

Stream* StreamTable::Find(v1::Role role, uint64_t incarnation) {
  const auto found = newest_.find(PeerKey{role, incarnation});
  return found == newest_.end() ? nullptr : Find(found->second);
}

std::vector<StreamId> StreamTable::Ids() const {
  std::vector<StreamId> ids;
  for (const auto& [id, entry] : streams_) {
    if (entry.stream.greeted) ids.push_back(id);
  }
  return ids;
}

absl::Status StreamTable::OnHello(Entry& entry, const v1::Hello& hello, const absl::Cord& payload) {
  if (entry.said_hello) return absl::InvalidArgumentError("a second Hello on one stream");
  RETURN_IF_ERROR(CheckHello(state_, hello));
  if (!payload.empty()) return absl::InvalidArgumentError("a Hello with a payload");

  entry.said_hello = true;
  entry.wire_version = std::min(SpokenWireVersions().newest, hello.max_wire_version());
  entry.stream.peer.set_role(hello.sender().role());
  entry.stream.peer.set_index(hello.sender().index());
  entry.stream.peer.set_incarnation(hello.sender().incarnation());
  silent_.erase({entry.deadline, entry.stream.id});

  ASSIGN_OR_RETURN(const bool admitted, Admits(entry.stream.peer));
  if (admitted) return Greet(entry);
  if (unadmitted_.size() >= state_.options().max_unadmitted_streams) {
    return out_.Full(Bound::kUnadmittedStreams,
                     "too many processes wait for the coordinator to admit them");
  }

  entry.deadline = state_.now() + state_.options().admission_timeout;
  unadmitted_.insert({entry.deadline, entry.stream.id});
  return absl::OkStatus();
}

absl::StatusOr<bool> StreamTable::Admits(const v1::ProcessId& process) const {
  if (process.role() != v1::SHARD) {
    const auto found = admitted_.find(PeerKey{process.role(), process.incarnation()});
    return found != admitted_.end() && found->second == process.index();
  }

  const auto same = [&](const v1::ProcessId& shard) {
    return shard.incarnation() == process.incarnation() && shard.index() == process.index();
  };
  if (!state_.view().has_value()) {
    return std::any_of(prepared_shards_.begin(), prepared_shards_.end(), same);
  }

  const auto& shards = state_.view()->proto().shards();
  if (std::any_of(shards.begin(), shards.end(),
                  [&](const v1::View::Shard& shard) { return same(shard.process()); })) {
    return true;
  }
  return absl::PermissionDeniedError("the sender is not a shard of the view");
}

absl::Status StreamTable::Greet(Entry& entry) {
  SLUICE_DCHECK(entry.said_hello && !entry.stream.greeted, "a Hello is answered once");
  unadmitted_.erase({entry.deadline, entry.stream.id});
  const PeerKey key{entry.stream.peer.role(), entry.stream.incarnation()};
  if (const auto old = newest_.find(key); old != newest_.end()) {
    Close(old->second, absl::AbortedError("the peer has opened a newer stream"));
  }

  if (key.first == v1::READER && readers_ >= state_.options().max_reader_streams) {
    return out_.Full(Bound::kReaderStreams,
                     absl::StrCat("this shard serves at most ", state_.options().max_reader_streams,
                                  " readers"));
  }
  SLUICE_DCHECK(newest_.count(key) == 0, "R9: a process has one stream, the newest");

  newest_[key] = entry.stream.id;
  if (key.first == v1::READER) ++readers_;
  entry.stream.greeted = true;

  v1::Header reply = state_.NewHeader();
  v1::HelloReply& body = *reply.mutable_hello_reply();
  body.set_wire_version(entry.wire_version);
  *body.mutable_shard() = state_.options().identity.process();
  body.set_window_bytes(state_.options().window_bytes);
  body.set_takes_rows(!state_.ByReference());
  out_.Send(entry.stream.id, std::move(reply));
  return absl::OkStatus();
}

absl::Status StreamTable::Accept(Entry& entry, const v1::Header& header,
                                 const absl::Cord& payload) {
  entry.unreturned += payload.size();
  if (entry.unreturned > state_.options().window_bytes) {
    return out_.Full(Bound::kWindowBytes, absl::StrCat("the peer has ", entry.unreturned,
                                                       " bytes in flight; its window is ",
                                                       state_.options().window_bytes));
  }

  if (header.body_case() == v1::Header::kHello) return OnHello(entry, header.hello(), payload);
  if (!entry.said_hello) return absl::InvalidArgumentError("the first frame must be a Hello");
  return CheckSender(entry.stream.peer.role(), header);
}

absl::Status StreamTable::Keep(Entry& entry, const v1::Header& header, const absl::Cord& payload) {
  // A few bytes of a payload would keep the whole received message in memory.
  constexpr size_t kCopiedPayload = 16 << 10;
  const ShardOptions& options = state_.options();
  if (entry.waiting.size() >= options.max_waiting_frames) {
    return out_.Full(Bound::kWaitingFrames,
                     absl::StrCat("more than ", options.max_waiting_frames, " frames wait"));
  }

  Waiting kept;
  kept.header_bytes = header.SpaceUsedLong();
  if (entry.waiting_header_bytes + kept.header_bytes > options.max_waiting_header_bytes) {
    return out_.Full(Bound::kWaitingHeaderBytes,
                     absl::StrCat("headers of waiting frames take more than ",
                                  options.max_waiting_header_bytes, " bytes"));
  }

  const bool member = entry.stream.greeted && state_.view().has_value() &&
                      entry.stream.peer.role() != v1::READER &&
                      (state_.view()->MemberIndex(entry.stream.incarnation()).has_value() ||
                       entry.stream.peer.role() == v1::SHARD);
  if (!member) {
    kept.shared_bytes = kept.header_bytes + payload.size();
    if (shared_waiting_bytes_ + kept.shared_bytes > options.max_waiting_bytes) {
      return out_.Full(Bound::kWaitingBytes,
                       absl::StrCat("frames of peers that are not members take more than ",
                                    options.max_waiting_bytes, " bytes"));
    }
  }

  kept.header = header;
  kept.payload = payload.size() <= kCopiedPayload ? absl::Cord(std::string(payload)) : payload;
  ++waiting_frames_;
  waiting_bytes_ += payload.size();
  shared_waiting_bytes_ += kept.shared_bytes;
  entry.waiting_header_bytes += kept.header_bytes;
  entry.waiting.push_back(std::move(kept));
  return absl::OkStatus();
}

void StreamTable::DropFirst(Entry& entry) {
  const Waiting& first = entry.waiting.front();
  SLUICE_DCHECK(waiting_frames_ > 0 && waiting_bytes_ >= first.payload.size(),
                "waiting frames are counted");
  SLUICE_DCHECK(shared_waiting_bytes_ >= first.shared_bytes &&
                    entry.waiting_header_bytes >= first.header_bytes,
                "the memory of waiting frames is counted");
  --waiting_frames_;
  waiting_bytes_ -= first.payload.size();
  shared_waiting_bytes_ -= first.shared_bytes;
  entry.waiting_header_bytes -= first.header_bytes;
  entry.waiting.pop_front();
}

std::optional<ReadyFrame> StreamTable::Receive(StreamId id, const v1::Header& header,
                                               const absl::Cord& payload) {
  const auto found = streams_.find(id);
  if (found == streams_.end()) return std::nullopt;
  Entry& entry = found->second;
  if (absl::Status accepted = Accept(entry, header, payload); !accepted.ok()) {
    Close(id, std::move(accepted));
    return std::nullopt;
  }

  if (header.body_case() == v1::Header::kHello) return std::nullopt;
  if (entry.stream.greeted && entry.waiting.empty()) {
    return ReadyFrame{id, entry.stream, header, payload, /*waited=*/false};
  }
  if (absl::Status kept = Keep(entry, header, payload); !kept.ok()) Close(id, std::move(kept));
  return std::nullopt;
}

std::optional<ReadyFrame> StreamTable::Next(StreamId id) {
  const auto found = streams_.find(id);
  if (found == streams_.end()) return std::nullopt;
  Entry& entry = found->second;
  if (!entry.stream.greeted || entry.waiting.empty()) return std::nullopt;
  const Waiting& first = entry.waiting.front();
  return ReadyFrame{id, entry.stream, first.header, first.payload, /*waited=*/true};
}

bool StreamTable::OnHandled(const ReadyFrame& frame, const absl::StatusOr<Handled>& handled) {
  if (!handled.ok()) {
    Close(frame.id, handled.status());
    return false;
  }
  const auto found = streams_.find(frame.id);
  if (found == streams_.end()) return false;  // closed meanwhile

  Entry& entry = found->second;
  if (*handled == Handled::kWait) {
    if (frame.waited) return false;
    absl::Status kept = Keep(entry, frame.header, frame.payload);
    if (!kept.ok()) Close(frame.id, std::move(kept));
    return false;
  }

  const uint64_t bytes = frame.payload.size();
  if (frame.waited) DropFirst(entry);
  GiveBack(entry, bytes);
  return true;
}

void StreamTable::GiveBack(Entry& entry, uint64_t bytes) {
  entry.due += bytes;
  if (entry.due == 0 || entry.due < state_.options().window_bytes / 8) return;
  SLUICE_DCHECK(entry.due <= entry.unreturned, "credit is given back once");

  v1::Header header = state_.NewHeader();
  header.mutable_credit()->set_bytes(entry.due);
  entry.unreturned -= entry.due;
  entry.due = 0;
  out_.Send(entry.stream.id, std::move(header));
}

void StreamTable::Close(StreamId id, absl::Status status) {
  if (streams_.count(id) == 0) return;
  Erase(id);
  out_.Add(CloseStream{id, std::move(status)});
}

void StreamTable::Erase(StreamId id) {
  const auto found = streams_.find(id);
  if (found == streams_.end()) return;
  Entry& entry = found->second;

  while (!entry.waiting.empty()) DropFirst(entry);
  silent_.erase({entry.deadline, id});
  unadmitted_.erase({entry.deadline, id});

  if (entry.stream.greeted) {
    const PeerKey key{entry.stream.peer.role(), entry.stream.incarnation()};
    SLUICE_DCHECK(newest_.count(key) > 0 && newest_.at(key) == id,
                  "R9: a process has one stream, the newest");
    SLUICE_DCHECK(key.first != v1::READER || readers_ > 0, "the streams of readers are counted");
    if (key.first == v1::READER) --readers_;
    newest_.erase(key);
  }
  streams_.erase(found);
}

void StreamTable::Refuse(Stream& stream, const std::string& reason) {
  if (state_.view().has_value() && Same(stream.refused_with, state_.view()->id())) return;
  RefuseAlways(stream, reason);
}

void StreamTable::RefuseAlways(Stream& stream, const std::string& reason, uint64_t snapshot) {
  v1::Header header = state_.NewHeader();
  if (state_.view().has_value()) {
    *header.mutable_refused()->mutable_newest() = state_.view()->proto();
    stream.refused_with = state_.view()->id();
  }

  header.mutable_refused()->set_reason(reason);
  header.mutable_refused()->set_snapshot_id(snapshot);
  out_.Send(stream.id, std::move(header));
}

void StreamTable::RefuseParked(const std::vector<StreamId>& streams, const std::string& reason) {
  for (StreamId id : streams) {
    Stream* const waiting = Find(id);
    if (waiting == nullptr) continue;
    Refuse(*waiting, reason);
  }
}

size_t StreamTable::parked_pulls() const {
  size_t sum = 0;
  for (const auto& [id, entry] : streams_) sum += *entry.stream.parked_pulls;
  return sum;
}

void StreamTable::FillBounds(BoundUses* uses) const {
  SLUICE_DCHECK(silent_.size() + unadmitted_.size() + newest_.size() == streams_.size(),
                "a stream is silent, waits for its admission, or is greeted");
  const ShardOptions& options = state_.options();
  const auto set = [uses](Bound bound, uint64_t limit, uint64_t used) {
    BoundUse& use = (*uses)[static_cast<size_t>(bound)];
    use.limit = limit;
    use.used = std::max(use.used, used);
  };

  set(Bound::kStreams, options.max_streams, streams_.size());
  set(Bound::kSilentStreams, options.max_silent_streams, silent_.size());
  set(Bound::kUnadmittedStreams, options.max_unadmitted_streams, unadmitted_.size());
  set(Bound::kReaderStreams, options.max_reader_streams, readers_);
  set(Bound::kAdmittedProcesses, options.max_admitted_processes, admitted_.size());
  set(Bound::kWaitingBytes, options.max_waiting_bytes, shared_waiting_bytes_);
  set(Bound::kWindowBytes, options.window_bytes, 0);
  set(Bound::kWaitingFrames, options.max_waiting_frames, 0);
  set(Bound::kWaitingHeaderBytes, options.max_waiting_header_bytes, 0);
  set(Bound::kParkedPulls, options.max_parked_pulls, 0);
  set(Bound::kParkedBytes, options.max_parked_bytes, 0);

  for (const auto& [id, entry] : streams_) {
    set(Bound::kWindowBytes, options.window_bytes, entry.unreturned);
    set(Bound::kWaitingFrames, options.max_waiting_frames, entry.waiting.size());
    set(Bound::kWaitingHeaderBytes, options.max_waiting_header_bytes, entry.waiting_header_bytes);
    set(Bound::kParkedPulls, options.max_parked_pulls, *entry.stream.parked_pulls);
    set(Bound::kParkedBytes, options.max_parked_bytes, *entry.stream.parked_bytes);
  }
}

}  // namespace sluice::ps
