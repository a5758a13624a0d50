#include "operator/reconciler/expectations.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

namespace sluice::reconciler {

using kube::Json;

void Expectations::NoteJob(const Json& before, Json written) {
  superseded_.push_back(kube::ResourceVersionOf(before));
  written_ = std::move(written);
}

Json Expectations::NewestJob(const Json& cached) {
  const std::string version = kube::ResourceVersionOf(cached);
  if (std::find(superseded_.begin(), superseded_.end(), version) != superseded_.end()) {
    return written_;
  }
  superseded_.clear();
  written_ = Json();
  return cached;
}

void Expectations::NoteCreated(const std::string& pod, Json object, absl::Time now) {
  created_[pod] = {std::move(object), now};
}

void Expectations::NoteDeleted(const std::string& pod, const std::string& uid, bool forced,
                               absl::Time now) {
  deleted_[uid] = {forced, now};
  created_.erase(pod);
}

void Expectations::UseOwnClock(absl::Time now, PodStatus* pod) {
  const absl::Time timestamp = pod->gone_by;
  const absl::Time gone_by = now + (timestamp - *pod->deletion_asked);
  Leaving& leaving = leaving_.try_emplace(pod->uid, Leaving{timestamp, now, gone_by}).first->second;

  // A second deletion has shortened the grace period.
  if (leaving.timestamp != timestamp) {
    leaving.timestamp = timestamp;
    leaving.gone_by = std::min(leaving.gone_by, gone_by);
  }

  pod->deletion_asked = leaving.asked;
  pod->gone_by = leaving.gone_by;
  pod->slow_from += leaving.gone_by - timestamp;
}

std::vector<PodStatus> Expectations::Pods(const std::vector<runtime::ObjectPtr>& cached,
                                          absl::Time now) {
  std::vector<PodStatus> pods;
  std::map<std::string, Leaving> leaving;
  for (const runtime::ObjectPtr& object : cached) {
    std::optional<PodStatus> pod = ReadPod(*object);
    if (!pod.has_value()) continue;

    created_.erase(pod->name);
    const auto deleted = deleted_.find(pod->uid);
    if (pod->deletion_asked.has_value()) {
      UseOwnClock(now, &*pod);
      leaving.insert(leaving_.extract(pod->uid));
    } else if (deleted != deleted_.end()) {
      pod->deletion_asked = pod->gone_by = deleted->second.at;
    }

    if (deleted != deleted_.end() && deleted->second.forced) pod->forced = true;
    pods.push_back(*std::move(pod));
  }
  leaving_ = std::move(leaving);  // drops the pods that are gone

  for (auto it = created_.begin(); it != created_.end();) {
    if (now - it->second.at > kWriteLag) {
      it = created_.erase(it);
      continue;
    }
    if (std::optional<PodStatus> pod = ReadPod(it->second.object); pod.has_value()) {
      pods.push_back(*std::move(pod));
    }
    ++it;
  }

  for (auto it = deleted_.begin(); it != deleted_.end();) {
    it = now - it->second.at > kWriteLag ? deleted_.erase(it) : std::next(it);
  }

  return pods;
}

void Expectations::NoteApplied(const std::string& name, const Json& object, absl::Time now) {
  Applied& applied = applied_[name];
  const int times = applied.object == object ? applied.times + 1 : 1;
  applied = {object, now, times, false};
}

void Expectations::NoteShown(const std::string& name, absl::Time now) {
  const auto applied = applied_.find(name);
  if (applied == applied_.end()) return;
  applied->second.shown = true;
  // The write has lasted.
  if (now - applied->second.at >= 2 * WriteLag(applied->second.times)) applied_.erase(applied);
}

bool Expectations::MayApply(const std::string& name, const Json& wanted, absl::Time now) {
  const auto found = applied_.find(name);
  if (found == applied_.end() || found->second.object != wanted) return true;

  // The first edit by another client is reverted at once; later ones with growing delays.
  Applied& applied = found->second;
  const bool first_edit = applied.shown && applied.times == 1;
  if (first_edit || now - applied.at >= WriteLag(applied.times)) return true;

  applied.shown = false;
  return false;
}

absl::Duration Expectations::WriteLag(int times) const {
  return std::min(kWriteLag * (int64_t{1} << std::min(times - 1, 20)), kLongestWriteLag);
}

absl::Time Expectations::NextCheck(bool of_objects) const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [name, created] : created_) next = std::min(next, created.at + WriteLag(1));
  for (const auto& [uid, deleted] : deleted_) next = std::min(next, deleted.at + WriteLag(1));
  for (const auto& [name, applied] : applied_) {
    if (of_objects && !applied.shown) next = std::min(next, applied.at + WriteLag(applied.times));
  }
  return next + absl::Milliseconds(1);
}

}  // namespace sluice::reconciler
