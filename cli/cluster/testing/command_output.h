// Helpers for tests of commands on a cluster, besides the API server in memory.
#ifndef SLUICE_CLI_CLUSTER_TESTING_COMMAND_OUTPUT_H_
#define SLUICE_CLI_CLUSTER_TESTING_COMMAND_OUTPUT_H_

#include <atomic>
#include <map>
#include <streambuf>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "operator/kube/cancellation.h"
#include "operator/kube/fake/fake_api_server.h"
#include "operator/kube/http.h"
#include "services/common/status_macros.h"
#include "services/common/threads/mutex.h"

namespace sluice::cli {

// Collects a command's output; a thread can wait for more.
class SharedText final : public std::streambuf {
 public:
  std::string text() const {
    MutexLock lock(&mutex_);
    return text_;
  }
  // Whether the part appears within this time.
  bool WaitFor(const std::string& part, absl::Duration patience = absl::Seconds(60)) const {
    const absl::Time deadline = absl::Now() + patience;
    MutexLock lock(&mutex_);
    while (!absl::StrContains(text_, part)) {
      if (changed_.WaitWithDeadline(&mutex_, deadline)) return false;
    }
    return true;
  }

 protected:
  int overflow(int c) override {
    const char character = static_cast<char>(c);
    return xsputn(&character, 1) == 1 ? c : EOF;
  }
  std::streamsize xsputn(const char* data, std::streamsize count) override {
    MutexLock lock(&mutex_);
    text_.append(data, static_cast<size_t>(count));
    changed_.SignalAll();
    return count;
  }

 private:
  mutable Mutex mutex_;
  mutable CondVar changed_;
  std::string text_ ABSL_GUARDED_BY(mutex_);
};

// The fake API server's transport; adds the logs of pods, which the fake server does not have.
class LogTransport final : public kube::HttpTransport {
 public:
  LogTransport(kube::FakeApiServer* server, const std::map<std::string, std::string>* logs,
               const std::atomic<bool>* logs_end)
      : server_(server), logs_(logs), logs_end_(logs_end) {}

  absl::StatusOr<kube::HttpResponse> Do(const kube::HttpRequest& request) override {
    if (!IsLog(request)) return server_->Do(request);
    return LogOf(request);
  }
  absl::StatusOr<kube::HttpResponse> Stream(const kube::HttpRequest& request, const BodySink& sink,
                                            kube::Cancellation* cancellation) override {
    if (!IsLog(request)) return server_->Stream(request, sink, cancellation);
    kube::HttpResponse response = LogOf(request);
    if (response.code != 200) return response;
    RETURN_IF_ERROR(sink(response.body));
    response.body.clear();
    while (absl::StrContains(request.target, "follow=true") && !*logs_end_) {
      if (cancellation->WaitFor(absl::Milliseconds(5))) return absl::CancelledError("cancelled");
    }
    return response;
  }

 private:
  static bool IsLog(const kube::HttpRequest& request) {
    return absl::StrContains(request.target, "/log?");
  }
  kube::HttpResponse LogOf(const kube::HttpRequest& request) const {
    for (const auto& [pod, text] : *logs_) {
      if (!absl::StrContains(request.target, absl::StrCat("/pods/", pod, "/log?"))) continue;
      kube::HttpResponse response;
      response.code = 200;
      const bool timed = absl::StrContains(request.target, "timestamps=true");
      for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
        absl::StrAppend(&response.body, timed ? "2026-01-01T00:00:00Z " : "", line, "\n");
      }
      return response;
    }
    kube::HttpResponse response;
    response.code = 404;
    return response;
  }

  kube::FakeApiServer* const server_;
  const std::map<std::string, std::string>* const logs_;
  const std::atomic<bool>* const logs_end_;
};

}  // namespace sluice::cli

#endif  // SLUICE_CLI_CLUSTER_TESTING_COMMAND_OUTPUT_H_
