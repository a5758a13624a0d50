// A shard that asks to leave (SIGTERM). It holds the only copy of its partitions, so training stops
// as for a suspension: a view without workers, then a checkpoint of the last version. Then the
// shard may leave, and the next attempt begins with that checkpoint as soon as another shard has
// replaced it. Nothing is lost, and it does not count against backoffLimit.

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/coordinator/core/coordinator_impl.h"
#include "services/protocol/ids.h"

namespace sluice::coordinator {

bool CoordinatorCore::Impl::HoldsState(uint64_t incarnation) const {
  return std::find(facts_.shards.begin(), facts_.shards.end(), incarnation) != facts_.shards.end();
}

// Whether the shard must wait until its state is saved.
bool CoordinatorCore::Impl::AsksToLeave(Process& process, absl::Time now) {
  const bool trains = phase_ == Phase::kRunning && change_.has_install();
  if (process.id.role() != v1::SHARD || !trains || !HoldsState(process.incarnation())) {
    return false;
  }
  if (!process.leaving) {
    Info(absl::StrCat(ProcessName(process.id), " asks to leave: the job saves a checkpoint"), now);
  }
  process.leaving = true;
  return true;
}

bool CoordinatorCore::Impl::ShardLeaves() const {
  return std::any_of(facts_.shards.begin(), facts_.shards.end(), [&](uint64_t incarnation) {
    const Process* shard = membership_.Find(incarnation);
    return shard != nullptr && shard->leaving;
  });
}

// Releases the shards that ask to leave and whose state is saved, or whose attempt is over.
void CoordinatorCore::Impl::LetShardsGo(absl::Time now) {
  std::vector<uint64_t> leaving;
  for (const Process* shard : membership_.Living(v1::SHARD)) {
    if (shard->leaving) leaving.push_back(shard->incarnation());
  }
  for (const uint64_t incarnation : leaving) {
    const Process& shard = *membership_.Find(incarnation);
    v1::CoordinatorMessage message;
    message.mutable_finish()->set_succeeded(true);
    message.mutable_finish()->set_reason("released; the job continues with another shard");
    Send(shard, std::move(message));
    if (!shard.suspect()) actions_.push_back(CloseStream{shard.stream, absl::OkStatus()});
    const Departure departure = *membership_.Leave(incarnation);  // ends `shard`
    meter_.Forget(incarnation);
    Info(absl::StrCat(ProcessName(departure.process.id), " left"), now);
  }
}

// The checkpoint is complete, or took too long.
void CoordinatorCore::Impl::EndHandOver(absl::Time now) {
  LetShardsGo(now);
  BeginNextAttempt(now);
}

// The shard left before its state was saved, or there was nothing to save.
void CoordinatorCore::Impl::GoOnWithout(const std::string& why, absl::Time now) {
  Info(absl::StrCat(why, "; the job continues with another shard"), now);
  if (change_.has_install()) {
    BeginNextAttempt(now);
  } else {
    // Nothing was trained in this attempt: it begins again with the shards that come.
    ForgetAttempt();
    phase_ = Phase::kGathering;
  }
}

}  // namespace sluice::coordinator
