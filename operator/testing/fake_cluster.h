// A cluster for the operator's tests: an API server in memory, kubelets and coordinators controlled
// by the test, and one clock that only the test moves. No threads.
#ifndef SLUICE_OPERATOR_TESTING_FAKE_CLUSTER_H_
#define SLUICE_OPERATOR_TESTING_FAKE_CLUSTER_H_

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "operator/kube/fake/fake_api_server.h"
#include "operator/kube/http_client.h"
#include "operator/operator.h"
#include "operator/reconciler/coordinators.h"
#include "operator/runtime/events.h"
#include "services/common/time/clock.h"

namespace sluice {

// Gives the answers that the test has prepared, and records the calls.
class FakeCoordinators final : public reconciler::Coordinators {
 public:
  struct CoordinatorPeer {
    std::string instance;
    std::string address;
    std::shared_ptr<grpc::ChannelCredentials> credentials;  // null: plain text
    v1::SetDesiredRequest desired;
    std::vector<v1::SetDesiredRequest::Death> deaths;
  };
  void Sync(const kube::ObjectKey& job, const std::string& instance, const ControlAddress& address,
            const v1::SetDesiredRequest& desired,
            std::vector<v1::SetDesiredRequest::Death> deaths) override;
  void Pause(const kube::ObjectKey& job) override { peers.erase(job); }
  void Forget(const kube::ObjectKey& job) override { peers.erase(job), last_progress.erase(job); }
  reconciler::LastProgress Latest(const kube::ObjectKey& job) const override;

  std::map<kube::ObjectKey, CoordinatorPeer> peers;
  std::map<kube::ObjectKey, reconciler::LastProgress> last_progress;
  std::vector<v1::SetDesiredRequest::Death> deaths;  // all reported deaths
};

class FakeCluster {
 public:
  FakeCluster();

  // ---- the operator. Restart drops it, and starts another with what the API server has.
  void Restart();
  // Runs watches, reconciliations, kubelets (if `kubelets`) and the garbage collector until nothing
  // changes any more. Returns false if that does not end.
  bool Settle();
  // Another operator on the same cluster, which the test runs by hand: one that froze, for example.
  std::unique_ptr<Operator> Another();
  // Moves the clock, then settles.
  void Pass(absl::Duration time);
  bool HasSynced() const { return operator_->HasSynced(); }
  std::vector<std::string> RefusedNamespaces() const { return operator_->refused_namespaces(); }
  // The number of reconciliations so far, including those before a restart.
  int64_t reconciliations = 0;
  bool kubelets = true;

  // ---- jobs
  // A small valid job in namespace "ns"; `patch` is merged into it.
  static kube::Json Job(const std::string& name, const kube::Json& patch = kube::Json::object());
  void Create(const kube::Json& job);
  void PatchJob(const std::string& name, const kube::Json& patch);
  kube::Json GetJob(const std::string& name);  // null: there is none
  kube::Json Status(const std::string& name);
  // "True/Training"; empty: there is no such condition.
  std::string Condition(const std::string& name, const std::string& type);
  // Its message.
  std::string ConditionMessage(const std::string& name, const std::string& type);
  // Creates Job(name, patch), whose coordinator then reports that it trains, at step 10. Returns
  // false if Settle() does not end.
  bool Train(const std::string& name, const kube::Json& patch = kube::Json::object());
  // The coordinator's next report, in its current instance. As in a real cluster, growing steps
  // alone do not wake the operator.
  void Say(const std::string& name, v1::JobProgress::Phase phase, uint64_t step,
           const std::function<void(v1::JobProgress*)>& more = nullptr);

  // ---- pods
  std::vector<std::string> PodNames();
  kube::Json Pod(const std::string& name);  // null: there is none
  std::string UidOf(const std::string& name) { return kube::UidOf(Pod(name)); }
  // The pod's container ends like this. As on a real node, the pod's phase stays Running until the
  // kubelet runs again, so the operator sees the pod in between.
  void EndPod(const std::string& name, int exit_code, const std::string& reason = "Error",
              const std::string& message = "");
  // As kubectl does.
  void DeletePod(const std::string& name);
  void MergeStatus(const std::string& pod, const kube::Json& status);
  // Sets one condition of a pod.
  void SetPodCondition(const std::string& pod, const std::string& type, const std::string& value,
                       const std::string& reason);
  // For pods that the kubelets ignore: they are neither started nor ended.
  std::function<bool(const std::string& pod)> frozen;

  std::vector<kube::Json> Events();
  // Reasons of the events, each once, in order.
  std::vector<std::string> EventReasons();
  // The operator's write requests (without events), in order.
  std::vector<std::string> Writes();
  void ForgetWrites() { writes_.clear(); }
  // "pods create": all of the operator's requests, as roles name them.
  std::set<std::string> verbs;
  // Called before each write of the operator; returns the fault of that request.
  std::function<std::optional<kube::FakeApiServer::Fault>(const kube::HttpRequest&)> on_write;
  // True once the operator was "killed": none of its requests reaches the server any more.
  bool operator_dead = false;

  FakeClock clock{absl::FromUnixSeconds(1700000000)};
  // How far the operator's clock is ahead of the API server's and the kubelets'.
  absl::Duration operator_ahead = absl::ZeroDuration();
  kube::FakeApiServer server;
  FakeCoordinators coordinators;
  reconciler::PodDefaults pod_defaults{"server:1", "worker:1", "logfmt"};
  // As in Operator::Options; used from the next Restart on. With creators, several threads call
  // `on_write`.
  int creators = 0;
  std::vector<std::string> namespaces;
  absl::Duration gather_pod_news = absl::ZeroDuration();

 private:
  // Null: there is none.
  kube::Json FindCondition(const std::string& name, const std::string& type);
  Operator::Options OperatorOptions() const;
  bool RunKubelets();
  void StartPod(const kube::Json& pod);
  bool FinishPod(const kube::Json& pod);

  // The operator's clock.
  class OperatorClock final : public Clock {
   public:
    explicit OperatorClock(const FakeCluster* cluster) : cluster_(cluster) {}
    absl::Time Now() const override { return cluster_->clock.Now() + cluster_->operator_ahead; }

   private:
    const FakeCluster* const cluster_;
  };

  const OperatorClock operator_clock_{this};
  kube::HttpClient admin_;
  std::unique_ptr<kube::HttpTransport> transport_;  // the operator's way to the server
  std::unique_ptr<kube::HttpClient> client_;
  std::unique_ptr<runtime::EventRecorder> events_;
  std::unique_ptr<Operator> operator_;
  std::vector<std::string> writes_;
  int last_ip_ = 0;
};

}  // namespace sluice

#endif  // SLUICE_OPERATOR_TESTING_FAKE_CLUSTER_H_
