// A member's link to the coordinator: passes its messages and breaks to the core.

#ifndef SLUICE_SERVICES_SHELL_MEMBER_LINK_H_
#define SLUICE_SERVICES_SHELL_MEMBER_LINK_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/control.pb.h"
#include "services/common/process/logging.h"
#include "services/common/process/metrics.h"
#include "services/common/threads/notification.h"
#include "services/shell/core_shell.h"
#include "services/transport/security/transport_security.h"
#include "services/transport/streams/coordinator_link.h"
#include "services/transport/streams/event_loop.h"

namespace sluice {

// Observes coordinator_latency_seconds, which the role's table of metrics must have. Logs why the
// link broke; of identical failures in a row, the first.
template <typename Core>
class MemberLink {
 public:
  // `shell` and `metrics` must outlive it.
  MemberLink(CoreShell<Core>* shell, Metrics* metrics, Logger logger)
      : shell_(shell),
        latency_(metrics->histogram("coordinator_latency_seconds")),
        logger_(std::move(logger)) {}

  // Begins to connect to the coordinator at `address`. After CoreShell::Start; once. `loop` must
  // outlive the link. Null `security`: plain text.
  void Start(std::string address, EventLoop* loop,
             const std::shared_ptr<const security::TransportSecurity>& security) {
    CoordinatorLink::Options options;
    options.address = std::move(address);
    options.loop = loop;
    options.credentials = security::ChannelCredentialsOf(security);
    options.on_round_trip = [this](absl::Duration duration) {
      latency_.Observe(absl::ToDoubleSeconds(duration));
    };

    link_ = CoordinatorLink::Start(
        std::move(options),
        {.on_connected = [this] { shell_->Event(Call(&Core::OnCoordinatorConnected)); },
         .on_message =
             [this](v1::CoordinatorMessage message) {
               shell_->Event([this, message = std::move(message)](Core& core, absl::Time now) {
                 has_received_ = true;
                 last_break_.clear();
                 core.OnCoordinatorMessage(message, now);
               });
             },
         .on_broken =
             [this](const absl::Status& why) {
               shell_->Event([this, why = why.ToString()](Core& core, absl::Time now) {
                 // Logs only the first of identical failures in a row.
                 if (last_break_ != why) logger_.Info("Control stream closed", {{"why", why}});
                 last_break_ = why;
                 core.OnCoordinatorDisconnected(now);
               });
             }});
    ready_.Notify();
  }

  // As CoordinatorLink's, on the executor.
  void Send(v1::MemberMessage message) {
    ready_.Wait();  // the link calls back while it starts
    link_->Send(std::move(message));
  }
  void Reconnect() {
    ready_.Wait();
    link_->Reconnect();
  }

  // After the end: gives the last messages time to be sent. Not on the executor.
  void Finish() { link_->Finish(absl::Seconds(2)); }

  // After the end: destroys the link. Not on the executor.
  void Stop() { link_.reset(); }

  // Whether the coordinator has sent anything. On the executor.
  bool has_received() const { return has_received_; }
  // Why the link broke; empty once the coordinator has sent something. On the executor.
  const std::string& last_break() const { return last_break_; }

 private:
  CoreShell<Core>* const shell_;
  Histogram latency_;
  const Logger logger_;

  // Used only by the executor's tasks.
  bool has_received_ = false;
  std::string last_break_;

  Notification ready_;  // link_ is set
  std::unique_ptr<CoordinatorLink> link_;
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_SHELL_MEMBER_LINK_H_
