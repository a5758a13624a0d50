#include "operator/runtime/events.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "operator/kube/api_error.h"
#include "services/common/check.h"

namespace sluice::runtime {

using kube::Json;

namespace {

constexpr size_t kMaxNote = 1024;
constexpr size_t kMaxName = 253;

const kube::ResourceType& EventType() {
  static const auto* const type =
      new kube::ResourceType{"events.k8s.io", "v1", "events", "Event", true};
  return *type;
}

const char* TypeName(EventRecord::Type type) {
  return type == EventRecord::Type::kNormal ? "Normal" : "Warning";
}

// Truncates to `limit` bytes, at a border between UTF-8 characters.
std::string Cut(const std::string& text, size_t limit) {
  if (text.size() <= limit) return text;
  constexpr char kDots[] = "...";
  size_t end = limit - (sizeof(kDots) - 1);
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end) + kDots;
}

// Whether a retry may succeed: after every error but a refusal of this particular event.
bool IsWorthARetry(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsResourceExhausted(status) || absl::IsUnauthenticated(status);
}

}  // namespace

EventRecorder::EventRecorder(Options options, const Clock* clock)
    : options_(std::move(options)), clock_(clock) {}

bool EventRecorder::TakeToken(const std::string& uid, double reserve, absl::Time now) {
  Bucket& bucket = buckets_.try_emplace(uid, Bucket{options_.burst, now}).first->second;
  bucket.tokens = std::min(
      options_.burst, bucket.tokens + absl::FDivDuration(now - bucket.at, options_.token_every));
  bucket.at = now;
  if (bucket.tokens < 1 + reserve) return false;
  bucket.tokens -= 1;
  return true;
}

void EventRecorder::Expire(absl::Time now) {
  for (auto at = series_.begin(); at != series_.end();) {
    const Series& series = at->second;
    const bool over =
        series.sent_count == series.count && now >= series.last + options_.series_window;
    at = over ? series_.erase(at) : std::next(at);
  }

  // A full bucket equals a new one.
  const absl::Duration full = options_.token_every * options_.burst;
  for (auto at = buckets_.begin(); at != buckets_.end();) {
    at = now >= at->second.at + full ? buckets_.erase(at) : std::next(at);
  }
}

Json EventRecorder::MakeObject(const Json& regarding, const EventRecord& record,
                               const std::string& name, const std::string& ns,
                               absl::Time now) const {
  Json reference = {{"apiVersion", kube::GetString(regarding, {"apiVersion"})},
                    {"kind", kube::GetString(regarding, {"kind"})},
                    {"name", kube::KeyOf(regarding).name},
                    {"uid", kube::UidOf(regarding)},
                    {"resourceVersion", kube::ResourceVersionOf(regarding)}};
  if (!kube::KeyOf(regarding).ns.empty()) reference["namespace"] = kube::KeyOf(regarding).ns;

  Json event = {{"metadata", {{"name", name}, {"namespace", ns}}},
                {"eventTime", kube::EncodeMicroTime(now)},
                {"reportingController", options_.controller},
                {"reportingInstance", Cut(options_.instance, 128)},
                {"action", record.action},
                {"reason", record.reason},
                {"regarding", std::move(reference)},
                {"note", Cut(record.note, kMaxNote)},
                {"type", TypeName(record.type)}};

  if (!record.pod.empty()) {
    event["related"] = {
        {"apiVersion", "v1"}, {"kind", "Pod"}, {"namespace", ns}, {"name", record.pod}};
  }
  return event;
}

void EventRecorder::Record(const Json& regarding, const EventRecord& record) {
  const absl::Time now = clock_->Now();
  const std::string uid = kube::UidOf(regarding);
  const std::string same =
      absl::StrCat(uid, "\n", kube::KeyOf(regarding).ToString(), "\n", TypeName(record.type), "\n",
                   record.reason, "\n", record.action, "\n", record.pod, "\n",
                   record.pod.empty() ? record.note : "");

  MutexLock lock(&mutex_);
  Expire(now);

  const auto found = series_.find(same);
  if (found != series_.end() && now < found->second.last + options_.series_window) {
    ++found->second.count;
    found->second.last = now;
    return;
  }

  if (!TakeToken(uid, record.pod.empty() ? 0 : options_.reserve, now)) {
    ++dropped_;
    return;
  }

  if (found != series_.end()) series_.erase(found);
  if (series_.size() >= options_.max_pending) {
    const auto oldest = std::min_element(
        series_.begin(), series_.end(),
        [](const auto& a, const auto& b) { return a.second.last < b.second.last; });
    if (oldest->second.sent_count != oldest->second.count) ++dropped_;
    series_.erase(oldest);
  }

  Series series;
  const std::string suffix =
      absl::StrFormat(".%x%04x", absl::ToUnixMicros(now), ++last_number_ & 0xFFFF);
  series.name = kube::KeyOf(regarding).name.substr(0, kMaxName - suffix.size()) + suffix;

  // Events of cluster-scoped objects are in "default".
  series.ns = kube::KeyOf(regarding).ns.empty() ? "default" : kube::KeyOf(regarding).ns;

  series.last = now;
  series.object = MakeObject(regarding, record, series.name, series.ns, now);
  series_.emplace(same, std::move(series));
  SLUICE_DCHECK(series_.size() <= options_.max_pending, "the events that wait are bounded");
}

absl::Status EventRecorder::SendOne(kube::Client* client, const Series& series) {
  const Json repeats = {{"count", series.count},
                        {"lastObservedTime", kube::EncodeMicroTime(series.last)}};

  if (series.sent_count > 0) {
    const absl::Status status = client
                                    ->Patch(EventType(), {series.ns, series.name},
                                            kube::PatchKind::kMerge, {{"series", repeats}}, {})
                                    .status();
    // Events are deleted after an hour; a series may last longer.
    if (!absl::IsNotFound(status)) return status;
  }

  Json object = series.object;
  if (series.count > 1) object["series"] = repeats;
  const absl::Status status = client->Create(EventType(), series.ns, object, {}).status();
  // Only this process uses these names: the event exists from an earlier try whose answer was lost.
  return absl::IsAlreadyExists(status) ? absl::OkStatus() : status;
}

absl::Status EventRecorder::Send(kube::Client* client, bool all) {
  std::vector<std::pair<std::string, Series>> due;
  {
    const absl::Time now = clock_->Now();
    MutexLock lock(&mutex_);
    for (const auto& [same, series] : series_) {
      if (series.sent_count == series.count) continue;
      // The first repetition creates the series, and is sent at once.
      if (all || series.sent_count < 2 || now >= series.sent_at + options_.series_period) {
        due.emplace_back(same, series);
      }
    }
  }

  std::stable_sort(due.begin(), due.end(),
                   [](const auto& a, const auto& b) { return a.second.last < b.second.last; });

  for (const auto& [same, series] : due) {
    const absl::Status status = SendOne(client, series);
    if (!status.ok() && IsWorthARetry(status)) return status;

    MutexLock lock(&mutex_);
    if (!status.ok()) ++dropped_;
    const auto found = series_.find(same);
    if (found == series_.end() || found->second.name != series.name) continue;
    found->second.sent_count = series.count;
    found->second.sent_at = clock_->Now();
  }
  return absl::OkStatus();
}

absl::Status EventRecorder::SendPending(kube::Client* client) { return Send(client, false); }

absl::Status EventRecorder::Flush(kube::Client* client) { return Send(client, true); }

int64_t EventRecorder::dropped() const {
  MutexLock lock(&mutex_);
  return dropped_;
}

}  // namespace sluice::runtime
