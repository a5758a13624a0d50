// Follows one TrainingJob on a cluster to its end, and shows it like a job of this machine.
//
// Pure: it takes what the API server reported and calls the display; no threads, no sockets.
#ifndef SLUICE_CLI_CLUSTER_JOB_FOLLOWER_H_
#define SLUICE_CLI_CLUSTER_JOB_FOLLOWER_H_

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "cli/cluster/job_text.h"
#include "cli/cluster/job_watch.h"
#include "cli/common/progress_text.h"
#include "cli/common/run_display.h"
#include "operator/kube/object.h"

namespace sluice::cli {

class JobFollower {
 public:
  struct Options {
    std::string uid;  // of the job; another job of the same name is not followed
    // The job was created just now, so all its events are news. Otherwise earlier events are not
    // shown.
    bool is_new = false;
    absl::Time begin;  // when following began
    // If no operator has written the job's status within this time, one warning is shown.
    absl::Duration operator_patience = absl::Seconds(15);
  };

  // `display` outlives this.
  JobFollower(Options options, RunDisplay* display);

  // Takes the news since the last call, and shows the changes. To be called periodically, also
  // without news: warnings depend on the time.
  void Take(JobNews news, absl::Time now);

  // How the job ended, once it has; a deleted job has failed, with that reason.
  const std::optional<policy::Outcome>& outcome() const { return outcome_; }
  // The newest version; null before the first news.
  const kube::Json& job() const { return job_; }
  const PodStatuses& pods() const { return pods_; }  // by name

 private:
  // ---- the parts of the news
  void TakeJob(kube::Json job);
  void TakePods(const std::vector<kube::Json>& pods);
  // Returns true if the event is to be shown now.
  bool TakeEvent(const kube::Json& event, v1::Event* shown);
  void TakeProblems(const std::map<std::string, absl::Status>& problems);
  // Returns true for an evaluation that was not shown yet.
  bool NewEvaluation(v1::Event* shown);
  // Shows one warning if no operator has accepted the job in time.
  void WarnWithoutOperator(absl::Time now);

  const Options options_;
  RunDisplay* const display_;
  kube::Json job_;
  PodStatuses pods_;
  bool pods_known_ = false;
  bool warned_about_operator_ = false;
  std::set<std::string> seen_events_;      // uids; an API server forgets events after an hour
  std::vector<v1::Event> pending_events_;  // to be shown with the job
  std::optional<uint64_t> evaluated_at_;   // the step of the evaluation shown last
  std::optional<policy::Outcome> outcome_;
};

}  // namespace sluice::cli

#endif  // SLUICE_CLI_CLUSTER_JOB_FOLLOWER_H_
