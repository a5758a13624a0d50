#include "tests/simulation/hostile_process.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/simulation/coordinator_process.h"
#include "tests/simulation/worker_process.h"

namespace sluice::simulation {
namespace {

// Above every step, clock and number of the job.
constexpr uint64_t kFar = 1'000'000;

}  // namespace

HostileProcess::HostileProcess(Cluster* cluster, v1::Role role, uint32_t index, bool liar)
    : Member(cluster, absl::StrCat(liar ? "liar-" : "stranger-", index)),
      role_(role),
      index_(index),
      liar_(liar),
      incarnation_(cluster->random().Next() | 1) {
  hostile_ = true;
}

void HostileProcess::Start() {
  if (liar_) until_ = cluster_.scheduler().now() + kLiesFor;
  Act();
}

void HostileProcess::OnCoordinatorMessage(const v1::CoordinatorMessage& message) {
  cluster_.seen().Learn(message);
}

void HostileProcess::Act() {
  if (cluster_.scheduler().now() > until_) {
    for (const StreamRef& stream : data_) cluster_.network().CloseByClient(stream);
    for (const StreamRef& stream : control_) cluster_.network().CloseByClient(stream);
    return;
  }

  Random& random = cluster_.random();
  cluster_.scheduler().After(
      random.Between(absl::Microseconds(200), absl::Milliseconds(liar_ ? 60 : 20)),
      [self = std::static_pointer_cast<HostileProcess>(shared_from_this())] {
        self->Handle([self] { self->Act(); });
      });

  const uint64_t kind = random.Below(100);
  if (kind < 8 || data_.empty()) {
    OpenData();
  } else if (kind < 12) {
    role_ == v1::READER ? OpenSnapshot() : OpenControl();
  } else if (kind < 30 && !control_.empty()) {
    Say(control_[random.Below(control_.size())], MakeMessage());
  } else if (kind < 33) {
    cluster_.network().CloseByClient(data_[random.Below(data_.size())]);
  } else {
    Send(data_[random.Below(data_.size())], MakeFrame());
  }
}

// ---- streams

void HostileProcess::OpenData() {
  const auto shards = cluster_.shards();
  if (data_.size() >= kMaxDataStreams || shards.empty()) return;
  auto self = std::static_pointer_cast<HostileProcess>(shared_from_this());
  const std::shared_ptr<ShardProcess>& shard = shards[cluster_.random().Below(shards.size())];
  cluster_.network().Open(
      self, [shard] { return shard; },
      [](const StreamRef& stream) {
        static_cast<ShardProcess*>(stream->server.process.get())->Accept(stream);
      },
      [self, shard](const StreamRef& stream) {
        self->data_.push_back(stream);
        stream->client.on_closed = [self, stream] {
          self->data_.erase(std::remove(self->data_.begin(), self->data_.end(), stream),
                            self->data_.end());
        };
        stream->on_frame = [self](const v1::Header& header, const absl::Cord&) {
          self->cluster_.seen().Learn(header);
        };
        // Some streams never get a Hello.
        if (!self->cluster_.random().OneIn(6)) self->Send(stream, self->MakeHello(*shard));
      },
      [] {});
}

// Requests a snapshot and never ends the call. The coordinator compares the role with the
// certificate's.
void HostileProcess::OpenSnapshot() {
  std::shared_ptr<CoordinatorProcess> coordinator = cluster_.coordinator();
  if (coordinator == nullptr) return;
  v1::OpenSnapshotRequest request;
  cluster_.seen().Invent(&request);
  request.mutable_reader()->set_role(v1::READER);
  request.mutable_reader()->set_index(index_);
  request.mutable_reader()->set_incarnation(SomeIncarnation());
  coordinator->Handle([coordinator, request] {
    coordinator->OpenSnapshot(request, [](const absl::StatusOr<v1::Snapshot>&) {});
  });
}

// A reader's certificate opens no control stream.
void HostileProcess::OpenControl() {
  if (control_.size() >= kMaxControlStreams) return;
  auto self = std::static_pointer_cast<HostileProcess>(shared_from_this());
  cluster_.network().Open(
      self, [self] { return self->cluster_.FindCoordinator(); },
      [](const StreamRef& stream) {
        static_cast<CoordinatorProcess*>(stream->server.process.get())->Accept(stream);
      },
      [self](const StreamRef& stream) {
        self->control_.push_back(stream);
        stream->client.on_closed = [self, stream] {
          self->control_.erase(std::remove(self->control_.begin(), self->control_.end(), stream),
                               self->control_.end());
        };

        if (self->cluster_.random().OneIn(6)) return;
        v1::MemberMessage message;
        v1::Register& request = *message.mutable_register_();
        request.set_job(self->cluster_.job_name());
        request.set_wire_version(1);
        request.mutable_process()->set_incarnation(self->SomeIncarnation());
        if (self->cluster_.random().OneIn(3)) self->cluster_.seen().Change(&message);
        self->Say(stream, std::move(message));
      },
      [] {});
}

void HostileProcess::Send(const StreamRef& stream, v1::Header header) {
  if (header.has_hello()) {
    header.mutable_hello()->mutable_sender()->set_role(role_);
    header.mutable_hello()->mutable_sender()->set_index(index_);
  }
  if (liar_) LeaveOutOwn(&header);
  absl::Cord payload;
  const auto& blocks = header.push().blocks();
  uint64_t bytes = cluster_.random().OneIn(4) ? cluster_.random().Below(300) : 0;
  for (const v1::BlockHeader& block : blocks)
    bytes += std::min<uint64_t>(block.payload_bytes(), 48);
  payload = absl::Cord(std::string(std::min<uint64_t>(bytes, 400), '\1'));
  ++cluster_.outcome().lies;
  cluster_.TraceMessage(name(), static_cast<Member*>(stream->server.process.get())->name(), header);
  cluster_.network().ToServer(stream, [stream, header = std::move(header), payload] {
    static_cast<ShardProcess*>(stream->server.process.get())->OnFrame(stream, header, payload);
  });
}

void HostileProcess::Say(const StreamRef& stream, v1::MemberMessage message) {
  if (message.has_register_()) {
    message.mutable_register_()->mutable_process()->set_role(role_);
    message.mutable_register_()->mutable_process()->set_index(index_);
  }
  // A member may leave, fail, report ready and ask for the job's end, so a false message of these
  // kinds would count.
  const bool would_count = message.has_leave() || message.has_failure() || message.has_ready() ||
                           message.has_job_request();
  if (liar_ && would_count) return;
  // Nor may it falsify the loss of the samples that it was asked to evaluate.
  if (liar_ && message.has_evaluation_result()) {
    message.mutable_evaluation_result()->set_evaluation(message.evaluation_result().evaluation() +
                                                        kFar);
  }
  ++cluster_.outcome().lies;
  cluster_.TraceMessage(name(), "coordinator", message);
  cluster_.network().ToServer(stream, [stream, message = std::move(message)] {
    static_cast<CoordinatorProcess*>(stream->server.process.get())->OnMessage(stream, message);
  });
}

// ---- messages

uint64_t HostileProcess::OwnIncarnation() {
  if (!liar_) return incarnation_;
  for (const auto& worker : cluster_.workers()) {
    if (worker->index() == index_) return worker->incarnation();
  }
  return incarnation_;
}

uint64_t HostileProcess::SomeIncarnation() {
  if (cluster_.random().OneIn(2)) return OwnIncarnation();
  const auto workers = cluster_.workers();
  const auto shards = cluster_.shards();
  const uint64_t pick = cluster_.random().Below(workers.size() + shards.size());
  return pick < workers.size() ? workers[pick]->incarnation()
                               : shards[pick - workers.size()]->incarnation();
}

v1::Header HostileProcess::MakeHello(const ShardProcess& shard) {
  v1::Header header;
  v1::Hello& hello = *header.mutable_hello();
  hello.set_min_wire_version(1);
  hello.set_max_wire_version(1);
  hello.set_job(cluster_.job_name());
  hello.mutable_sender()->set_incarnation(SomeIncarnation());
  hello.set_shard_incarnation(shard.incarnation());
  if (cluster_.random().OneIn(8)) cluster_.seen().Change(&header);
  return header;
}

v1::Header HostileProcess::MakeFrame() {
  Random& random = cluster_.random();
  const auto& recorded = cluster_.recorded_frames();
  v1::Header header;
  if (recorded.empty() || random.OneIn(3)) {
    cluster_.seen().Invent(&header);
  } else {
    header = recorded[random.Below(recorded.size())];
    if (!random.OneIn(4)) cluster_.seen().Change(&header);
  }
  // Mostly of the current view: shards refuse frames of other views before they check the content.
  if (!recorded.empty() && !random.OneIn(4)) *header.mutable_view() = recorded.back().view();
  return header;
}

v1::MemberMessage HostileProcess::MakeMessage() {
  Random& random = cluster_.random();
  const auto& recorded = cluster_.recorded_messages();
  v1::MemberMessage message;
  if (recorded.empty() || random.OneIn(3)) {
    cluster_.seen().Invent(&message);
    return message;
  }
  message = recorded[random.Below(recorded.size())];
  if (!random.OneIn(4)) cluster_.seen().Change(&message);
  return message;
}

bool HostileProcess::HoldersAreAwaited(const v1::ViewId& view) {
  const v1::TrainingSpec::Stragglers& stragglers = cluster_.scenario().job.training().stragglers();
  const size_t members = cluster_.checker().MembersOf(view);
  const size_t absent =
      stragglers.policy() == v1::TrainingSpec::Stragglers::DROP ? stragglers.backup() : 0;
  return members > absent + 1;
}

// A step, clock or init request that a member may contribute to becomes one that it may not.
void HostileProcess::LeaveOutOwn(v1::Header* header) {
  switch (header->body_case()) {
    case v1::Header::kPush:
      if (header->push().clock() == 0 && cluster_.random().OneIn(2) &&
          HoldersAreAwaited(header->view())) {
        header->mutable_push()->clear_blocks();
        header->mutable_push()->clear_complete();
        header->mutable_push()->set_step(header->push().step() + cluster_.random().Below(2));
        break;
      }

      header->mutable_push()->set_step(header->push().step() + kFar);
      header->mutable_push()->set_clock(header->push().clock() + kFar);
      if (header->push().has_apply()) {
        header->mutable_push()->mutable_apply()->set_clock(header->push().clock());
      }
      break;
    case v1::Header::kApply:
      header->mutable_apply()->set_clock(header->apply().clock() + kFar);
      break;
    case v1::Header::kLeaseRequest:
      header->mutable_lease_request()->set_clock(header->lease_request().clock() + kFar);
      break;
    case v1::Header::kPermitRequest:
      header->mutable_permit_request()->set_clock(header->permit_request().clock() + kFar);
      break;
    case v1::Header::kPull:
      header->mutable_pull()->set_clock(header->pull().clock() + kFar);
      break;
    case v1::Header::kInitPush:
      header->mutable_init_push()->mutable_init_id()->set_number(kFar);
      break;
    default:
      break;
  }
}

}  // namespace sluice::simulation
