// Reads the logs of a job's pods through the API server.
#ifndef SLUICE_CLI_CLUSTER_POD_LOGS_H_
#define SLUICE_CLI_CLUSTER_POD_LOGS_H_

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
#include "operator/reconciler/pod_status.h"
#include "services/common/threads/mutex.h"

namespace sluice::cli {

// Splits a log with the kubelet's timestamps into lines and skips lines that were read before, so
// that a stream that broke continues without a duplicate or missing line. Not thread-safe.
class TimedLines {
 public:
  using OnLine = std::function<void(absl::string_view line)>;

  // Longer lines are cut into pieces.
  static constexpr size_t kMaxLine = 64 << 10;

  // Takes the next bytes of the stream; calls `on_line` for each complete line that is new.
  void Feed(absl::string_view bytes, const OnLine& on_line);
  // The stream ended; the next one may begin anywhere before this point. If the log itself is over,
  // a last line without a newline counts as a line.
  void EndStream(bool over, const OnLine& on_line);
  // The timestamp of the last line, as the server wrote it: request lines since then. Empty before
  // the first line.
  const std::string& last_time() const { return last_time_; }

 private:
  // Passes on a line unless it was read before, and notes its timestamp.
  void Line(absl::string_view line, const OnLine& on_line);

  std::string partial_;
  std::string last_time_;
  size_t lines_at_last_time_ = 0;  // lines read with this timestamp
  size_t to_skip_ = 0;             // of those, how many the new stream repeats
};

// The last lines of a pod's log, at most `count`; OK and empty if there is no log yet.
absl::StatusOr<std::vector<std::string>> TailOfPod(kube::HttpTransport* transport,
                                                   const kube::ObjectKey& pod,
                                                   const std::string& container, size_t count);

// Follows the pods of a job. Each pod that starts, replacements included, is read to its end on its
// own thread. A stream that ends while its pod is running is reopened.
class PodLogs {
 public:
  static constexpr size_t kAll = std::numeric_limits<size_t>::max();
  // At most this many pods are read at a time; Take reports it if there are more.
  static constexpr size_t kMaxStreams = 64;
  // Readers wait while this many lines have not been taken.
  static constexpr size_t kMaxLines = 10000;

  struct Options {
    std::string ns;
    std::string process;  // "worker-1": only its log; empty: all logs
    size_t tail = kAll;   // of pods that exist at the start, how many earlier lines to read
    bool follow = true;
  };
  // A line of a process's log, without the timestamp.
  struct LogLine {
    std::string process;  // "worker-1"
    std::string text;
  };

  // `transport` outlives this.
  PodLogs(kube::HttpTransport* transport, Options options);
  // Cancels the reads in progress and waits for them.
  ~PodLogs();

  // Sets the job's current pods. Call it again from time to time.
  void SetPods(const std::map<std::string, reconciler::PodStatus>& pods);
  // Returns the lines read since the last call; `problems` gets each log that cannot be read, once
  // per pod.
  std::vector<LogLine> Take(std::vector<std::string>* problems);
  // Whether no read is in progress and no line waits to be taken.
  bool Idle() const;
  // Whether any pod was read.
  bool found() const { return found_; }

 private:
  // The read of one pod.
  struct Reader {
    std::thread thread;
    std::shared_ptr<TimedLines> lines;  // only the thread uses it while it runs
    bool done = false;
    absl::Time ended;
  };

  // Starts a thread that reads the pod's log.
  void Start(const reconciler::PodStatus& pod, size_t tail, Reader* reader)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The body of a reader's thread: reads until the log is over, and again after breaks.
  void Read(const std::string& uid, const kube::ObjectKey& pod, const policy::Replica& replica,
            size_t tail, TimedLines* lines);
  // Reads one stream to its end. `answered`: the server has sent something, so that a break counts
  // as the first.
  absl::Status ReadOnce(const kube::ObjectKey& pod, const policy::Replica& replica, size_t tail,
                        TimedLines* lines, bool* answered);
  // Adds a line; waits while kMaxLines have not been taken.
  void Add(const std::string& process, absl::string_view line);
  // A log that cannot be read; returned by Take, once.
  void AddProblem(std::string text);

  kube::HttpTransport* const transport_;
  const Options options_;
  kube::Cancellation cancellation_;
  bool first_ = true;
  bool found_ = false;
  bool reported_limit_ = false;
  mutable Mutex mutex_;
  CondVar changed_;
  std::map<std::string, Reader> readers_ ABSL_GUARDED_BY(mutex_);  // by the pod's uid
  std::deque<LogLine> lines_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> problems_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sluice::cli

#endif  // SLUICE_CLI_CLUSTER_POD_LOGS_H_
