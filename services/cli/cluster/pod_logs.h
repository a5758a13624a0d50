// The logs of a job's pods, by way of the API server.
#ifndef SLUICE_SERVICES_CLI_CLUSTER_POD_LOGS_H_
#define SLUICE_SERVICES_CLI_CLUSTER_POD_LOGS_H_

#include <cstddef>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "operator/kube/cancellation.h"
#include "operator/kube/http.h"
#include "operator/kube/object.h"
#include "operator/reconciler/pod_view.h"
#include "services/common/mutex.h"

namespace sluice::cli {

// Cuts a log with the kubelet's timestamps into lines, and leaves out what was read before: a
// stream that broke goes on without a line twice or missing. Not thread-safe.
class TimedLines {
 public:
  using OnLine = std::function<void(absl::string_view line)>;

  // A line that is longer is cut in pieces.
  static constexpr size_t kMaxLine = 64 << 10;

  void Feed(absl::string_view bytes, const OnLine& on_line);
  // The stream ended; what comes next may begin anywhere before the end. A rest without a line end
  // is a line where the log itself is over.
  void EndStream(bool over, const OnLine& on_line);
  // Of the last line, as the server wrote it: ask for lines since then. Empty before the first.
  const std::string& last_time() const { return last_time_; }

 private:
  void Line(absl::string_view line, const OnLine& on_line);

  std::string partial_;
  std::string last_time_;
  size_t lines_at_last_time_ = 0;  // so many lines had it
  size_t to_skip_ = 0;             // of those, when the stream began anew
};

// The last lines of a pod's log, at most `count`; OK and empty where there is none yet.
absl::StatusOr<std::vector<std::string>> TailOfPod(kube::HttpTransport* transport,
                                                   const kube::ObjectKey& pod,
                                                   const std::string& container, size_t count);

// Follows the pods of a job: each that begins, the replacements too, is read to its end on a thread
// of its own. A stream that ends while its pod goes on is taken up again.
class PodLogs {
 public:
  static constexpr size_t kAll = std::numeric_limits<size_t>::max();
  // More pods than these are not read at a time; Take says so.
  static constexpr size_t kMaxStreams = 64;
  // Readers wait while so many lines were not taken.
  static constexpr size_t kMaxLines = 10000;

  struct Options {
    std::string ns;
    std::string process;  // of one only: "worker-1"; empty: of all
    size_t tail = kAll;   // of pods that are there when it begins, so many lines at first
    bool follow = true;
  };
  struct LogLine {
    std::string process;  // "worker-1"
    std::string text;
  };

  // `transport` outlives this.
  PodLogs(kube::HttpTransport* transport, Options options);
  // Cancels what is being read, and waits.
  ~PodLogs();

  // These are all pods there are. To be called again now and then.
  void SetPods(const std::map<std::string, reconciler::PodView>& pods);
  // What was read since; and what could not be read, once for each pod.
  std::vector<LogLine> Take(std::vector<std::string>* problems);
  // Whether nothing is being read, and nothing waits to be taken.
  bool Idle() const;
  // Whether any pod was read.
  bool found() const { return found_; }

 private:
  struct Reader {
    std::thread thread;
    std::shared_ptr<TimedLines> lines;  // of the thread while it runs
    bool done = false;
    absl::Time ended;
  };

  void Start(const reconciler::PodView& pod, size_t tail, Reader* reader)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Read(const std::string& uid, const kube::ObjectKey& pod, const policy::Slot& slot,
            size_t tail, TimedLines* lines);
  absl::Status ReadOnce(const kube::ObjectKey& pod, const policy::Slot& slot, size_t tail,
                        TimedLines* lines, bool* answered);
  void Add(const std::string& process, absl::string_view line);
  void AddProblem(std::string text);

  kube::HttpTransport* const transport_;
  const Options options_;
  kube::Cancellation cancellation_;
  bool first_ = true;
  bool found_ = false;
  bool told_of_bound_ = false;
  mutable Mutex mutex_;
  CondVar changed_;
  std::map<std::string, Reader> readers_ ABSL_GUARDED_BY(mutex_);  // by the pod's uid
  std::deque<LogLine> lines_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> problems_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sluice::cli

#endif  // SLUICE_SERVICES_CLI_CLUSTER_POD_LOGS_H_
