#include "services/worker/collective/reducer.h"

#include <grpcpp/client_context.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/rendezvous.grpc.pb.h"
#include "services/common/threads/serial_executor.h"
#include "services/transport/grpc_settings.h"
#include "services/transport/grpc_status.h"
#include "services/worker/collective/gloo_group.h"

namespace sluice::worker {
namespace {

// One request to the coordinator.
absl::StatusOr<std::optional<std::vector<MetMember>>> Ask(v1::Rendezvous::Stub& stub,
                                                          const v1::MeetRequest& request) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(2));
  v1::MeetReply reply;

  absl::Status status = FromGrpcStatus(stub.Meet(&context, request, &reply));
  if (absl::IsDeadlineExceeded(status)) return absl::UnavailableError(status.message());
  if (!status.ok()) return status;
  if (reply.members().empty()) return std::nullopt;

  std::vector<MetMember> members;
  for (v1::MeetReply::Member& member : *reply.mutable_members()) {
    members.push_back({member.plan_hash(), std::move(*member.mutable_address())});
  }
  return members;
}

}  // namespace

class Reducer::Impl {
 public:
  explicit Impl(Options options) : options_(std::move(options)), closing_({.name = "groups"}) {}

  ~Impl() { Leave(); }

  void Join(const v1::ViewId& view, std::shared_ptr<const ReductionPlan> plan,
            absl::Duration idle_timeout) {
    Leave();
    if (stub_ == nullptr) {
      stub_ = v1::Rendezvous::NewStub(MakeChannel({.address = options_.coordinator,
                                                   .kind = ChannelKind::kControl,
                                                   .credentials = options_.credentials}));
    }

    // The group calls `meet` on its own thread, so it gets copies of everything.
    v1::MeetRequest request;
    *request.mutable_view() = view;
    *request.mutable_process() = options_.process;

    GlooGroup::Options group;
    group.plan = std::move(plan);
    group.host = [host = options_.advertised_host,
                  coordinator = options_.coordinator]() -> absl::StatusOr<std::string> {
      if (!host.empty()) return host;
      return AddressTowards(coordinator);
    };
    group.meet = [stub = stub_, request](uint64_t plan_hash,
                                         const std::vector<std::string>& addresses) mutable {
      request.set_plan_hash(plan_hash);
      request.mutable_addresses()->Assign(addresses.begin(), addresses.end());
      return Ask(*stub, request);
    };
    group.done = [done = options_.done, view](uint64_t step, absl::StatusOr<ReducedPart> part) {
      done(view, step, std::move(part));
    };
    group.idle_timeout = idle_timeout;
    group_ = std::make_unique<GlooGroup>(std::move(group));
  }

  // Ending a group may take some time.
  void Leave() {
    if (group_ == nullptr) return;
    sent_bytes_ += group_->sent_bytes();
    closing_.Post([group = std::move(group_)] {});
  }

  void Reduce(uint64_t step, DenseGradients gradients) {
    if (group_ != nullptr) group_->Reduce(step, std::move(gradients));
  }

  uint64_t sent_bytes() const {
    return sent_bytes_ + (group_ == nullptr ? 0 : group_->sent_bytes());
  }

 private:
  const Options options_;
  std::shared_ptr<v1::Rendezvous::Stub> stub_;
  std::unique_ptr<GlooGroup> group_;
  uint64_t sent_bytes_ = 0;  // of older groups
  SerialExecutor closing_;
};

Reducer::Reducer(Options options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Reducer::~Reducer() = default;
void Reducer::Join(const v1::ViewId& view, std::shared_ptr<const ReductionPlan> plan,
                   absl::Duration idle_timeout) {
  impl_->Join(view, std::move(plan), idle_timeout);
}
void Reducer::Leave() { impl_->Leave(); }
void Reducer::Reduce(uint64_t step, DenseGradients gradients) {
  impl_->Reduce(step, std::move(gradients));
}
uint64_t Reducer::sent_bytes() const { return impl_->sent_bytes(); }

absl::StatusOr<std::string> AddressTowards(const std::string& endpoint) {
  const size_t colon = endpoint.rfind(':');
  std::string host = endpoint.substr(0, colon);
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  const std::string port = colon == std::string::npos ? "1" : endpoint.substr(colon + 1);

  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found); error != 0) {
    return absl::UnavailableError(absl::StrCat("the address of ", host, ": ", gai_strerror(error)));
  }

  char name[NI_MAXHOST] = {};
  for (const addrinfo* way = found; way != nullptr && name[0] == '\0'; way = way->ai_next) {
    const int fd = socket(way->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    sockaddr_storage own = {};
    socklen_t size = sizeof(own);
    auto* const plain = reinterpret_cast<sockaddr*>(&own);
    // A datagram socket: only the route is looked up.
    if (connect(fd, way->ai_addr, way->ai_addrlen) == 0 && getsockname(fd, plain, &size) == 0) {
      getnameinfo(plain, size, name, sizeof(name), nullptr, 0, NI_NUMERICHOST);
    }
    close(fd);
  }

  freeaddrinfo(found);
  if (name[0] != '\0') return std::string(name);
  return absl::UnavailableError(absl::StrCat("there is no route to ", endpoint));
}

}  // namespace sluice::worker
