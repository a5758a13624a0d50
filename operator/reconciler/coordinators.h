// The operator's conversations with coordinators.
#ifndef SLUICE_OPERATOR_RECONCILER_COORDINATORS_H_
#define SLUICE_OPERATOR_RECONCILER_COORDINATORS_H_

#include <grpcpp/security/credentials.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "operator/kube/object.h"
#include "operator/kube/write_gate.h"
#include "proto/jobcontrol.pb.h"

namespace sluice::reconciler {

struct ControlAddress {
  std::string host_and_port;
  std::shared_ptr<grpc::ChannelCredentials> credentials;  // null: plain text
};

struct Heard {
  std::string life;                                 // of the coordinator that said it
  std::shared_ptr<const v1::JobProgress> progress;  // null: nothing yet
  absl::Time at = absl::InfinitePast();             // when it said that
};

// Any thread; never blocks.
class Coordinators {
 public:
  virtual ~Coordinators() = default;
  // From now on the job's coordinator is this life of it, at this address; it is to be
  // told `desired` until it has heard it, and asked for its progress. Deaths are said once; those
  // that it has no time for are dropped after a moment, for it sees them by itself.
  virtual void Converse(const kube::ObjectKey& job, const std::string& life,
                        const ControlAddress& address, const v1::SetDesiredRequest& desired,
                        std::vector<v1::SetDesiredRequest::Death> deaths) = 0;
  // Nobody is spoken with any more; what was heard is kept.
  virtual void Pause(const kube::ObjectKey& job) = 0;
  virtual void Forget(const kube::ObjectKey& job) = 0;
  virtual Heard Latest(const kube::ObjectKey& job) const = 0;
};

// By gRPC. All calls are asynchronous and have deadlines, so that coordinators that hang cost
// neither a thread nor anybody's time.
class GrpcCoordinators final : public Coordinators {
 public:
  struct Options {
    absl::Duration poll_interval = absl::Seconds(1);
    absl::Duration call_timeout = absl::Seconds(2);
    absl::Duration deaths_last = absl::Seconds(3);
    // Asked right before anybody is told anything, as before each write: a leader that froze, and
    // wakes up, must not tell what was wanted when it led. Whoever is refused only listens. Null:
    // always allowed. Outlives this.
    kube::WriteGate* gate = nullptr;
  };

  // `on_news` hears, on some thread and without locks, of a job whose coordinator said something
  // else than that its steps and samples have grown.
  GrpcCoordinators(Options options, std::function<void(const kube::ObjectKey&)> on_news);
  // Cancels what is under way, and waits for it.
  ~GrpcCoordinators() override;

  void Converse(const kube::ObjectKey& job, const std::string& life, const ControlAddress& address,
                const v1::SetDesiredRequest& desired,
                std::vector<v1::SetDesiredRequest::Death> deaths) override;
  void Pause(const kube::ObjectKey& job) override;
  void Forget(const kube::ObjectKey& job) override;
  Heard Latest(const kube::ObjectKey& job) const override;

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

// Progress without what changes all the time: steps, samples, rates, ages.
std::string Gist(const v1::JobProgress& progress);

}  // namespace sluice::reconciler

#endif  // SLUICE_OPERATOR_RECONCILER_COORDINATORS_H_
