#include "cli/cluster/pod_logs.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "operator/kube/api_error.h"
#include "operator/reconciler/names.h"
#include "services/common/status_macros.h"

namespace sluice::cli {
namespace {

// A broken stream is retried after this pause; after kMaxFailures failures in a row the pod's log
// is not read any more.
constexpr absl::Duration kPause = absl::Seconds(1);
constexpr int kMaxFailures = 10;
// If a log ends while its pod seems to be running, it is read again after this pause.
constexpr absl::Duration kRestart = absl::Seconds(2);

std::string LogTarget(const kube::ObjectKey& pod, absl::string_view container) {
  return absl::StrCat(kube::ResourcePath(reconciler::Pods(), pod, "log"),
                      "?container=", kube::PercentEncode(container));
}

absl::Status RefusalOf(const kube::HttpResponse& response) {
  return kube::ApiErrorFromResponse(response.code, response.body, "").ToStatus();
}

// The kubelet reports that the container has not started yet.
bool IsTooEarly(const absl::Status& status) {
  return absl::IsInvalidArgument(status) &&
         (absl::StrContains(status.message(), "waiting to start") ||
          absl::StrContains(status.message(), "ContainerCreating") ||
          absl::StrContains(status.message(), "PodInitializing"));
}

}  // namespace

void TimedLines::Feed(absl::string_view bytes, const OnLine& on_line) {
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    const size_t length =
        std::min(end == absl::string_view::npos ? bytes.size() : end, kMaxLine - partial_.size());

    partial_.append(bytes.data(), length);
    const bool whole = length < bytes.size() && bytes[length] == '\n';
    bytes.remove_prefix(length + (whole ? 1 : 0));
    if (!whole && partial_.size() < kMaxLine) return;

    Line(partial_, on_line);
    partial_.clear();
  }
}

void TimedLines::EndStream(bool over, const OnLine& on_line) {
  if (over && !partial_.empty()) Line(partial_, on_line);
  partial_.clear();
  to_skip_ = lines_at_last_time_;
}

void TimedLines::Line(absl::string_view line, const OnLine& on_line) {
  // "2026-11-21T04:00:00.123456789Z text"; the kubelet writes nanoseconds and leaves out trailing
  // zeros, so the texts do not sort like the times.
  const size_t space = line.find(' ');
  const absl::string_view time = line.substr(0, space);
  const bool timed =
      space != absl::string_view::npos && kube::DecodeTime(time) != absl::InfinitePast();
  if (!timed) return on_line(line);

  const absl::Time at = kube::DecodeTime(time);
  const absl::Time last = last_time_.empty() ? absl::InfinitePast() : kube::DecodeTime(last_time_);
  if (at < last) return;  // sinceTime has a resolution of one second
  if (at == last) {
    if (to_skip_ > 0) {
      --to_skip_;
      return;
    }
    ++lines_at_last_time_;
  } else {
    last_time_ = std::string(time);
    lines_at_last_time_ = 1;
    to_skip_ = 0;
  }

  on_line(line.substr(space + 1));
}

absl::StatusOr<std::vector<std::string>> TailOfPod(kube::HttpTransport* transport,
                                                   const kube::ObjectKey& pod,
                                                   const std::string& container, size_t count) {
  kube::HttpRequest request;
  request.method = "GET";
  request.target = absl::StrCat(LogTarget(pod, container), "&tailLines=", count);

  ASSIGN_OR_RETURN(const kube::HttpResponse response, transport->Do(request));
  if (response.code != 200) {
    const absl::Status status = RefusalOf(response);
    if (IsTooEarly(status)) return std::vector<std::string>();
    return status;
  }

  std::vector<std::string> lines = absl::StrSplit(response.body, '\n', absl::SkipEmpty());
  if (lines.size() > count) lines.erase(lines.begin(), lines.end() - static_cast<ptrdiff_t>(count));
  return lines;
}

PodLogs::PodLogs(kube::HttpTransport* transport, Options options)
    : transport_(transport), options_(std::move(options)) {}

PodLogs::~PodLogs() {
  cancellation_.Cancel();

  std::map<std::string, Reader> readers;
  {
    MutexLock lock(&mutex_);
    lines_.clear();
    changed_.SignalAll();
    readers.swap(readers_);
  }

  for (auto& [uid, reader] : readers) {
    if (reader.thread.joinable()) reader.thread.join();
  }
}

void PodLogs::SetPods(const std::map<std::string, reconciler::PodStatus>& pods) {
  const bool first = std::exchange(first_, false);
  MutexLock lock(&mutex_);

  size_t running = 0;
  for (auto& [uid, reader] : readers_) {
    if (reader.done && reader.thread.joinable()) reader.thread.join();
    running += reader.done ? 0 : 1;
  }

  const absl::Time now = absl::Now();
  for (const auto& [name, pod] : pods) {
    if (!options_.process.empty() && options_.process != policy::ReplicaName(pod.replica)) continue;
    if (!pod.begun) continue;

    const auto known = readers_.find(pod.uid);
    const bool cut = known != readers_.end() && known->second.done && options_.follow &&
                     !pod.ended && now >= known->second.ended + kRestart;
    if (known != readers_.end() && !cut) continue;

    if (running >= kMaxStreams) {
      if (!std::exchange(reported_limit_, true)) {
        problems_.push_back(absl::StrCat(
            "only ", kMaxStreams, " logs are read at a time; name a process to see its log"));
      }
      return;
    }

    ++running;
    found_ = true;
    Start(pod, first ? options_.tail : kAll, &readers_[pod.uid]);
  }
}

void PodLogs::Start(const reconciler::PodStatus& pod, size_t tail, Reader* reader) {
  if (reader->lines == nullptr) reader->lines = std::make_shared<TimedLines>();
  reader->done = false;
  const kube::ObjectKey key{options_.ns, pod.name};
  reader->thread =
      std::thread([this, uid = pod.uid, key, replica = pod.replica, tail, lines = reader->lines] {
        Read(uid, key, replica, tail, lines.get());
      });
}

void PodLogs::Read(const std::string& uid, const kube::ObjectKey& pod,
                   const policy::Replica& replica, size_t tail, TimedLines* lines) {
  for (int failures = 0; failures < kMaxFailures && !cancellation_.cancelled();) {
    bool answered = false;
    const absl::Status status = ReadOnce(pod, replica, tail, lines, &answered);
    if (status.ok() || absl::IsCancelled(status) || absl::IsNotFound(status)) break;
    const bool final = absl::IsPermissionDenied(status) || absl::IsUnauthenticated(status);

    failures = answered ? 1 : failures + 1;
    if (final || failures == kMaxFailures) {
      AddProblem(absl::StrCat(pod.name, ": ", status.message()));
      break;
    }
    if (cancellation_.WaitFor(kPause)) break;
  }

  MutexLock lock(&mutex_);
  const auto reader = readers_.find(uid);
  if (reader != readers_.end()) {
    reader->second.done = true;
    reader->second.ended = absl::Now();
  }
  changed_.SignalAll();
}

absl::Status PodLogs::ReadOnce(const kube::ObjectKey& pod, const policy::Replica& replica,
                               size_t tail, TimedLines* lines, bool* answered) {
  kube::HttpRequest request;
  request.method = "GET";
  request.target = absl::StrCat(LogTarget(pod, reconciler::RoleName(replica.role)),
                                "&timestamps=true&follow=", options_.follow ? "true" : "false");

  if (!lines->last_time().empty()) {
    absl::StrAppend(&request.target, "&sinceTime=", kube::PercentEncode(lines->last_time()));
  } else if (tail != kAll) {
    absl::StrAppend(&request.target, "&tailLines=", tail);
  }

  // A process may log nothing for hours, and the response's head arrives with its first line.
  request.timeout = options_.follow ? absl::InfiniteDuration() : absl::Seconds(30);
  request.idle_timeout = request.timeout;

  const std::string process = policy::ReplicaName(replica);
  const auto on_line = [&](absl::string_view line) { Add(process, line); };
  const absl::StatusOr<kube::HttpResponse> response = transport_->Stream(
      request,
      [&](absl::string_view bytes) {
        *answered = true;
        lines->Feed(bytes, on_line);
        return cancellation_.cancelled() ? absl::CancelledError("") : absl::OkStatus();
      },
      &cancellation_);

  const bool over = response.ok() && response->code == 200;
  lines->EndStream(over, on_line);
  RETURN_IF_ERROR(response.status());
  return over ? absl::OkStatus() : RefusalOf(*response);
}

void PodLogs::Add(const std::string& process, absl::string_view line) {
  MutexLock lock(&mutex_);
  while (lines_.size() >= kMaxLines && !cancellation_.cancelled()) changed_.Wait(&mutex_);
  lines_.push_back({process, std::string(line)});
  changed_.SignalAll();
}

void PodLogs::AddProblem(std::string text) {
  MutexLock lock(&mutex_);
  problems_.push_back(std::move(text));
}

std::vector<PodLogs::LogLine> PodLogs::Take(std::vector<std::string>* problems) {
  MutexLock lock(&mutex_);
  problems->swap(problems_);
  problems_.clear();
  std::vector<LogLine> lines(std::make_move_iterator(lines_.begin()),
                             std::make_move_iterator(lines_.end()));
  lines_.clear();
  changed_.SignalAll();
  return lines;
}

bool PodLogs::Idle() const {
  MutexLock lock(&mutex_);
  if (!lines_.empty()) return false;
  return std::all_of(readers_.begin(), readers_.end(),
                     [](const auto& reader) { return reader.second.done; });
}

}  // namespace sluice::cli
