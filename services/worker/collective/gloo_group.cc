#include "services/worker/collective/gloo_group.h"

#include <gloo/transport/context.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "services/common/status_macros.h"
#include "services/common/threads/mutex.h"
#include "services/common/threads/serial_executor.h"
#include "services/common/time/backoff.h"
#include "services/worker/collective/connection_options.h"
#include "services/worker/collective/part_sum.h"

namespace sluice::worker {
namespace {

namespace transport = gloo::transport;

// gloo has no infinite timeout. A wait ends with the connection, or when the group is given up.
constexpr std::chrono::milliseconds kForever = std::chrono::hours(24 * 365);
// gloo waits for a connection five times as long as it is configured to.
constexpr int kConnectFactor = 5;

absl::Status GaveUp() { return absl::CancelledError("the view has ended"); }

}  // namespace

class GlooGroup::Impl {
 public:
  explicit Impl(Options options)
      : options_(std::move(options)),
        plan_(*options_.plan),
        sum_(options_.plan.get()),
        thread_({.name = "gloo"}) {
    thread_.Post([this] { status_ = Guarded([this] { return Form(); }); });
  }

  ~Impl() {
    {
      MutexLock lock(&mutex_);
      given_up_ = true;
      changed_.SignalAll();
      for (const std::unique_ptr<Peer>& peer : peers_) {
        peer->out->abortWaitSend();
        peer->in->abortWaitRecv();
      }
    }

    thread_.Stop();
    Drop();
  }

  void Reduce(uint64_t step, DenseGradients gradients) {
    thread_.Post([this, step, gradients = std::move(gradients)] {
      ReducedPart part;
      if (status_.ok()) {
        status_ = Guarded([&] { return Exchange(step, gradients, &part); });
      }

      // The other members learn from their connections that the group has ended.
      if (!status_.ok()) Drop();

      if (GivenUp()) return;
      if (status_.ok()) {
        options_.done(step, std::move(part));
      } else {
        options_.done(step, status_);
      }
    });
  }

  uint64_t sent_bytes() const { return sent_bytes_; }

 private:
  // Another member, and its two messages of a step.
  struct Peer {
    uint32_t rank = 0;
    std::vector<uint64_t> out_memory, in_memory;
    std::unique_ptr<transport::UnboundBuffer> out, in;
  };

  bool GivenUp() {
    MutexLock lock(&mutex_);
    return given_up_;
  }

  // Turns gloo's exceptions into a status.
  template <typename F>
  absl::Status Guarded(F work) {
    try {
      return work();
    } catch (const std::exception& error) {
      if (GivenUp()) return GaveUp();
      return absl::UnavailableError(absl::StrCat("the connections among workers: ", error.what()));
    }
  }

  // ---- forming

  absl::Status Form() {
    const auto size = static_cast<int>(plan_.members.size());
    const auto rank = static_cast<int>(plan_.rank);
    if (size == 1) return absl::OkStatus();

    ASSIGN_OR_RETURN(const std::string host, options_.host(), absl::UnavailableError(_.message()));

    transport::tcp::attr attributes(host.c_str());
    device_ = transport::tcp::CreateDevice(attributes);
    context_ = device_->createContext(rank, size);
    context_->setTimeout(std::chrono::milliseconds(
        absl::ToInt64Milliseconds(options_.connect_timeout) / kConnectFactor));

    std::vector<std::string> own;
    for (int other = 0; other < size; ++other) {
      std::vector<char> address;
      if (other != rank) address = context_->createPair(other)->address().bytes();
      own.emplace_back(address.begin(), address.end());
    }

    ASSIGN_OR_RETURN(const std::vector<MetMember> all, Meet(own));
    RETURN_IF_ERROR(CheckAlike(all));
    return Connect(own, all);
  }

  absl::StatusOr<std::vector<MetMember>> Meet(const std::vector<std::string>& own) {
    Backoff backoff({.initial = absl::Milliseconds(4), .max = absl::Milliseconds(200)});
    absl::BitGen random;
    while (true) {
      auto met = options_.meet(plan_.hash, own);
      if (!met.ok() && !absl::IsUnavailable(met.status())) {
        return absl::UnavailableError(
            absl::StrCat("the workers' addresses: ", met.status().message()));
      }
      if (met.ok() && met->has_value()) return **std::move(met);

      const absl::Time until = absl::Now() + backoff.Next(random);
      MutexLock lock(&mutex_);
      while (!given_up_ && absl::Now() < until) changed_.WaitWithDeadline(&mutex_, until);
      if (given_up_) return GaveUp();
    }
  }

  absl::Status CheckAlike(const std::vector<MetMember>& all) const {
    if (all.size() != plan_.members.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat(all.size(), " workers met, the view has ", plan_.members.size()));
    }

    for (size_t other = 0; other < all.size(); ++other) {
      if (all[other].plan_hash == plan_.hash) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("worker ", other, " of ", all.size(),
                       " divides the gradients differently from this worker: use the same version "
                       "of Sluice for all workers"));
    }
    return absl::OkStatus();
  }

  absl::Status Connect(const std::vector<std::string>& own, const std::vector<MetMember>& all) {
    std::vector<Connection> connections;
    for (uint32_t other = 0; other < all.size(); ++other) {
      if (other == plan_.rank) continue;
      if (GivenUp()) return GaveUp();
      const std::string& address = all[other].address;
      // The address comes from a peer: gloo accepts any bytes of the right length.
      if (address.size() != own[other].size()) {
        return absl::InvalidArgumentError("a worker sent an invalid address");
      }
      context_->getPair(static_cast<int>(other))
          ->connect(std::vector<char>(address.begin(), address.end()));
      connections.push_back({own[other], address});
    }

    RETURN_IF_ERROR(EndWhenSilent(connections, options_.idle_timeout));

    MutexLock lock(&mutex_);
    for (uint32_t other = 0; other < all.size(); ++other) {
      if (other != plan_.rank) peers_.push_back(MakePeer(other));
    }
    return given_up_ ? GaveUp() : absl::OkStatus();
  }

  std::unique_ptr<Peer> MakePeer(uint32_t rank) {
    auto peer = std::make_unique<Peer>();
    peer->rank = rank;
    peer->out_memory.resize(MessageBytes(plan_, plan_.parts[rank]) / 8);
    peer->in_memory.resize(MessageBytes(plan_, plan_.own()) / 8);
    peer->out = context_->createUnboundBuffer(peer->out_memory.data(), peer->out_memory.size() * 8);
    peer->in = context_->createUnboundBuffer(peer->in_memory.data(), peer->in_memory.size() * 8);
    return peer;
  }

  // Closes the connections, with the context.
  void Drop() {
    std::vector<std::unique_ptr<Peer>> peers;
    {
      MutexLock lock(&mutex_);
      peers.swap(peers_);
    }
    peers.clear();
    context_.reset();
    device_.reset();
  }

  // ---- a step

  static absl::Span<char> BytesOf(std::vector<uint64_t>& memory) {
    return {reinterpret_cast<char*>(memory.data()), memory.size() * 8};
  }

  absl::Status Exchange(uint64_t step, const DenseGradients& gradients, ReducedPart* part) {
    for (const std::unique_ptr<Peer>& peer : peers_) {
      peer->in->recv(static_cast<int>(peer->rank), step);
    }
    for (const std::unique_ptr<Peer>& peer : peers_) {
      WriteMessage(plan_, plan_.parts[peer->rank], gradients, BytesOf(peer->out_memory));
      peer->out->send(static_cast<int>(peer->rank), step);
      sent_bytes_ += peer->out->size;
    }

    sum_.Begin();
    auto peer = peers_.begin();
    for (uint32_t rank = 0; rank < plan_.members.size(); ++rank) {
      if (rank == plan_.rank) {
        own_memory_.resize(MessageBytes(plan_, plan_.own()) / 8);
        WriteMessage(plan_, plan_.own(), gradients, BytesOf(own_memory_));
        sum_.Add(BytesOf(own_memory_));
        continue;
      }
      if (!(*peer)->in->waitRecv(nullptr, kForever)) return GaveUp();
      sum_.Add(BytesOf((*peer)->in_memory));
      ++peer;
    }

    for (const std::unique_ptr<Peer>& other : peers_) {
      if (!other->out->waitSend(nullptr, kForever)) return GaveUp();
    }
    *part = sum_.Take();
    return absl::OkStatus();
  }

  const Options options_;
  const ReductionPlan& plan_;
  std::atomic<uint64_t> sent_bytes_{0};

  // Used by the group's thread only, and by the destructor when that thread has ended.
  absl::Status status_;
  std::shared_ptr<transport::Device> device_;
  std::shared_ptr<transport::Context> context_;
  PartSum sum_;
  std::vector<uint64_t> own_memory_;

  Mutex mutex_;  // protects given_up_; the group's thread changes peers_ with it held
  CondVar changed_;
  bool given_up_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::unique_ptr<Peer>> peers_;  // by rank

  SerialExecutor thread_;  // last: its thread uses all of the above
};

GlooGroup::GlooGroup(Options options) : impl_(std::make_unique<Impl>(std::move(options))) {}
GlooGroup::~GlooGroup() = default;
void GlooGroup::Reduce(uint64_t step, DenseGradients gradients) {
  impl_->Reduce(step, std::move(gradients));
}
uint64_t GlooGroup::sent_bytes() const { return impl_->sent_bytes(); }

}  // namespace sluice::worker
