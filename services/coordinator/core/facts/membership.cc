#include "services/coordinator/core/facts/membership.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/common/check.h"
#include "services/common/text/utf8.h"
#include "services/protocol/ids.h"

namespace sluice::coordinator {
namespace {

v1::Refusal Refuse(v1::Refusal::Code code, std::string reason) {
  v1::Refusal refusal;
  refusal.set_code(code);
  refusal.set_reason(std::move(reason));
  return refusal;
}

constexpr size_t kMaxReasonBytes = 4096;  // of a death

bool SamePlace(const v1::ProcessId& a, const v1::ProcessId& b) {
  return a.role() == b.role() && a.index() == b.index();
}

}  // namespace

void Membership::SetWanted(uint64_t workers, uint64_t shards) {
  options_.workers = workers;
  options_.shards = shards;
}

bool Membership::Connected(StreamId stream, absl::Time now) {
  if (registering_.size() >= kMaxRegistering) return false;
  registering_[stream] = now;
  return true;
}

std::string Membership::CheckRoom(const v1::Register& request) const {
  const v1::ProcessId& id = request.process();
  const bool has_view = id.role() == v1::SHARD && request.newest_view().attempt() > 0;
  const uint64_t wanted = id.role() == v1::SHARD ? options_.shards : options_.workers;
  if (id.index() >= wanted && !has_view) {
    return absl::StrCat("the job wants ", wanted, id.role() == v1::SHARD ? " shards" : " workers",
                        ", and ", ProcessName(id), " is not one of them: it may register when the ",
                        "job is scaled");
  }
  const auto expelled = expelled_of_place_.find({id.role(), id.index()});
  if (expelled != expelled_of_place_.end() && expelled->second >= kMaxExpelledOfPlace) {
    return absl::StrCat(expelled->second, " processes have ended as ", ProcessName(id),
                        ", and no more are admitted (kMaxExpelledOfPlace) until the job has "
                        "another coordinator");
  }
  return "";
}

std::optional<v1::Refusal> Membership::Check(const v1::Register& request) const {
  if (request.job() != options_.job) {
    return Refuse(v1::Refusal::WRONG_JOB, absl::StrCat("this is the coordinator of job ",
                                                       options_.job, ", not ", request.job()));
  }
  if (const WireVersions& spoken = options_.wire_versions;
      !spoken.Contains(request.wire_version())) {
    return Refuse(
        v1::Refusal::WIRE_VERSION,
        absl::StrCat(ProcessName(request.process()), " asks for wire version ",
                     request.wire_version(), "; this coordinator speaks ", spoken.oldest, " to ",
                     spoken.newest, ". If it speaks no other version, start it from the ",
                     "coordinator's release"));
  }
  if (options_.refuse_expelled && expelled_.contains(request.process().incarnation())) {
    return Refuse(v1::Refusal::EXPELLED, "this incarnation was expelled; register with a new one");
  }
  return std::nullopt;
}

Membership::Admission Membership::Register(StreamId stream, const v1::Register& request,
                                           absl::Time now) {
  SLUICE_DCHECK(stream != 0 && OnStream(stream) == nullptr, "a stream registers one process");
  Admission admission;
  registering_.erase(stream);
  if (std::optional<v1::Refusal> refusal = Check(request); refusal.has_value()) {
    admission.refusal = *std::move(refusal);
    return admission;
  }

  const v1::ProcessId& id = request.process();
  auto known = living_.find(id.incarnation());

  if (known != living_.end()) {
    if (!SamePlace(known->second.id, id)) {
      admission.refusal = Refuse(v1::Refusal::DUPLICATE,
                                 absl::StrCat("this incarnation is ", ProcessName(known->second.id),
                                              ", not ", ProcessName(id)));
      return admission;
    }
    admission.kind = Admission::Kind::kReturned;
    admission.closed_stream = known->second.stream;
    by_stream_.erase(known->second.stream);
  } else {
    if (std::string why = CheckRoom(request); !why.empty()) {
      admission.kind = Admission::Kind::kLater;
      admission.why = std::move(why);
      return admission;
    }

    for (const auto& [incarnation, process] : living_) {
      if (!SamePlace(process.id, id)) continue;
      if (!process.suspect()) {
        admission.refusal =
            Refuse(v1::Refusal::DUPLICATE,
                   absl::StrCat("another live process is ", ProcessName(id), " (process id ",
                                process.pid, " on ", process.host, ")"));
        return admission;
      }
      // A parent starts no second process before the first one has ended.
      admission.displaced = Remove(incarnation, /*expelled=*/true, "replaced by a new process");
      break;
    }
    admission.kind = Admission::Kind::kNew;
    ++changes_;
  }

  Process& process = living_[id.incarnation()];
  if (admission.kind == Admission::Kind::kNew) process.reported = now;
  process.id = id;
  process.address = request.address();
  process.host = request.host();
  process.metrics_address = request.metrics_address();
  process.pid = request.pid();
  process.newest_view = request.newest_view();
  process.stream = stream;
  process.last_message = now;
  process.broken = absl::InfiniteFuture();
  process.answered = false;
  by_stream_[stream] = id.incarnation();
  if (id.role() == v1::SHARD) HearShard(now);
  OnStreamsChanged();

  CheckInvariants();
  return admission;
}

Process* Membership::OnStream(StreamId stream) {
  const auto found = by_stream_.find(stream);
  return found == by_stream_.end() ? nullptr : Find(found->second);
}

const Process* Membership::OnStream(StreamId stream) const {
  return const_cast<Membership*>(this)->OnStream(stream);
}

Process* Membership::Find(uint64_t incarnation) {
  const auto found = living_.find(incarnation);
  return found == living_.end() ? nullptr : &found->second;
}

const Process* Membership::Find(uint64_t incarnation) const {
  return const_cast<Membership*>(this)->Find(incarnation);
}

void Membership::OnMessage(StreamId stream, absl::Time now) {
  if (const absl::Duration quiet = link_.OnMessage(now); quiet > absl::ZeroDuration()) {
    ExtendDeadlinesOfQuiet(quiet, /*only_shards=*/false, now);
    quiet_.all += quiet;
  }
  Process* process = OnStream(stream);
  if (process == nullptr) return;
  if (process->id.role() == v1::SHARD) HearShard(now);
  process->last_message = now;
}

void Membership::HearShard(absl::Time now) {
  const absl::Duration quiet = shard_link_.OnMessage(now);
  if (quiet == absl::ZeroDuration()) return;
  ExtendDeadlinesOfQuiet(quiet, /*only_shards=*/true, now);
  quiet_.shards += quiet;
}

void Membership::OnCall(absl::Time now) {
  link_.OnCall(now);
  shard_link_.OnCall(now);
}

absl::Time Membership::JudgedAt(absl::Time limit) const {
  return options_.suspect_itself ? link_.JudgedAt(limit) : limit;
}

absl::Time Membership::JudgedShardAt(absl::Time limit) const {
  if (!options_.suspect_itself || options_.shards < 2) return JudgedAt(limit);
  return std::max(link_.JudgedAt(limit), shard_link_.JudgedAt(limit));
}

void Membership::ExtendDeadlinesOfQuiet(absl::Duration quiet, bool only_shards, absl::Time now) {
  for (auto& [incarnation, process] : living_) {
    if (only_shards && process.id.role() != v1::SHARD) continue;
    process.last_message = std::min(process.last_message + quiet, now);
    // Streams break with the coordinator's link. A new one may take as long as a message that is
    // sent again.
    if (process.suspect()) process.broken = now + options_.heartbeat_timeout - options_.suspect;
  }
}

void Membership::OnStreamsChanged() {
  link_.SetConnected(!by_stream_.empty());
  shard_link_.SetConnected(std::any_of(living_.begin(), living_.end(), [](const auto& entry) {
    return entry.second.id.role() == v1::SHARD && !entry.second.suspect();
  }));
}

void Membership::Answered(uint64_t incarnation, absl::Time now) {
  Process* process = Find(incarnation);
  if (process == nullptr) return;
  SLUICE_DCHECK(!process->suspect(), "a registration is answered on its stream");
  process->answered = true;
  process->last_message = now;
}

absl::Time Membership::Overdue(const Process& process) const {
  absl::Time limit = absl::InfiniteFuture();
  if (process.suspect()) {
    limit = process.broken + options_.suspect;
  } else if (process.answered) {
    limit = process.last_message + options_.heartbeat_timeout;
  }
  return process.id.role() == v1::SHARD ? JudgedShardAt(limit) : JudgedAt(limit);
}

Process* Membership::Disconnected(StreamId stream, absl::Time now) {
  registering_.erase(stream);
  Process* process = OnStream(stream);
  if (process == nullptr) return nullptr;
  by_stream_.erase(stream);
  process->stream = 0;
  process->broken = now;
  OnStreamsChanged();
  CheckInvariants();
  return process;
}

void Membership::RememberExpelled(const v1::ProcessId& id) {
  if (expelled_.insert(id.incarnation()).second) ++expelled_of_place_[{id.role(), id.index()}];
}

Departure Membership::Remove(uint64_t incarnation, bool expelled, std::string reason) {
  auto node = living_.extract(incarnation);
  SLUICE_DCHECK(!node.empty(), "only a process that is alive departs");
  ++changes_;
  Departure departure{std::move(node.mapped()), expelled, std::move(reason)};
  by_stream_.erase(departure.process.stream);
  OnStreamsChanged();
  // An incarnation that left must not register again either.
  RememberExpelled(departure.process.id);
  departures_.push_back(departure);
  if (departures_.size() > kMaxDepartures) departures_.pop_front();
  CheckInvariants();
  return departure;
}

std::optional<Departure> Membership::Leave(uint64_t incarnation) {
  if (Find(incarnation) == nullptr) return std::nullopt;
  return Remove(incarnation, /*expelled=*/false, "left");
}

std::optional<Departure> Membership::Expel(uint64_t incarnation, std::string reason) {
  if (Find(incarnation) == nullptr) return std::nullopt;
  return Remove(incarnation, /*expelled=*/true, std::move(reason));
}

std::optional<Departure> Membership::ReportDeath(const v1::SetDesiredRequest::Death& death) {
  const v1::ProcessId& id = death.process();
  const std::string reason =
      death.reason().empty() ? "died" : CleanUtf8(death.reason(), kMaxReasonBytes);
  if (id.incarnation() != 0) {
    std::optional<Departure> departure = Expel(id.incarnation(), reason);
    RememberExpelled(id);
    return departure;
  }
  for (const auto& [incarnation, process] : living_) {
    if (SamePlace(process.id, id) && process.pid == death.pid()) return Expel(incarnation, reason);
  }
  return std::nullopt;
}

std::vector<Departure> Membership::ExpelOverdue(absl::Time now) {
  std::vector<std::pair<uint64_t, std::string>> overdue;
  for (const auto& [incarnation, process] : living_) {
    if (Overdue(process) > now) continue;
    overdue.emplace_back(
        incarnation,
        process.suspect()
            ? absl::StrCat("its connection broke and it did not reconnect within ",
                           absl::FormatDuration(options_.suspect))
            : absl::StrCat("sent nothing for ", absl::FormatDuration(options_.heartbeat_timeout)));
  }
  std::sort(overdue.begin(), overdue.end());
  std::vector<Departure> departures;
  for (auto& [incarnation, reason] : overdue) {
    departures.push_back(Remove(incarnation, /*expelled=*/true, std::move(reason)));
  }
  return departures;
}

std::vector<StreamId> Membership::TakeOverdueStreams(absl::Time now) {
  std::vector<StreamId> overdue;
  for (const auto& [stream, since] : registering_) {
    if (since + options_.heartbeat_timeout <= now) overdue.push_back(stream);
  }
  std::sort(overdue.begin(), overdue.end());
  for (StreamId stream : overdue) registering_.erase(stream);
  return overdue;
}

void Membership::CheckInvariants() const {
  if (!DebugChecksAreOn()) return;
  size_t connected = 0;
  std::set<std::pair<v1::Role, uint32_t>> places;
  for (const auto& [incarnation, process] : living_) {
    SLUICE_DCHECK(process.incarnation() == incarnation, "a process is found by its incarnation");
    SLUICE_DCHECK(places.insert({process.id.role(), process.id.index()}).second,
                  "one living process has a role and index");
    SLUICE_DCHECK(!options_.refuse_expelled || !expelled_.contains(incarnation),
                  "R7: an expelled process is not alive");
    SLUICE_DCHECK(process.suspect() == (process.broken != absl::InfiniteFuture()),
                  "a process is suspect from the time when it lost its stream");
    if (process.suspect()) continue;
    ++connected;
    const auto found = by_stream_.find(process.stream);
    SLUICE_DCHECK(found != by_stream_.end() && found->second == incarnation,
                  "a connected process is found by its stream");
    SLUICE_DCHECK(!registering_.contains(process.stream),
                  "a stream on which a process registered awaits no other registration");
  }
  SLUICE_DCHECK(by_stream_.size() == connected, "each stream is that of a living process");
  SLUICE_DCHECK(expelled_of_place_.size() <= expelled_.size(),
                "each expelled incarnation is counted at one place");
}

void Membership::ExtendDeadlines(absl::Duration late) {
  SLUICE_DCHECK(late >= absl::ZeroDuration(), "forgiving gives a process more time, never less");
  for (auto& [incarnation, process] : living_) {
    process.last_message += late;
    if (process.suspect()) process.broken += late;
  }
  for (auto& [stream, since] : registering_) since += late;
}

std::vector<const Process*> Membership::Living(v1::Role role) const {
  std::vector<const Process*> processes;
  for (const auto& [incarnation, process] : living_) {
    if (process.id.role() == role) processes.push_back(&process);
  }
  std::sort(processes.begin(), processes.end(), [](const Process* a, const Process* b) {
    return std::make_tuple(a->id.index(), a->incarnation()) <
           std::make_tuple(b->id.index(), b->incarnation());
  });
  return processes;
}

std::vector<const Process*> Membership::LivingAndConnected(v1::Role role) const {
  std::vector<const Process*> processes = Living(role);
  processes.erase(std::remove_if(processes.begin(), processes.end(),
                                 [](const Process* process) { return process->suspect(); }),
                  processes.end());
  return processes;
}

absl::Time Membership::NextDeadline() const {
  absl::Time deadline = absl::InfiniteFuture();
  for (const auto& [incarnation, process] : living_) {
    deadline = std::min(deadline, Overdue(process));
  }
  for (const auto& [stream, since] : registering_) {
    deadline = std::min(deadline, since + options_.heartbeat_timeout);
  }
  return deadline;
}

}  // namespace sluice::coordinator
