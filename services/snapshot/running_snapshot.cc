#include "services/snapshot/running_snapshot.h"

#include <grpcpp/client_context.h>

#include <map>
#include <memory>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/jobcontrol.grpc.pb.h"
#include "services/checkpoint/checkpoint_reader.h"
#include "services/common/process/process.h"
#include "services/common/status_macros.h"
#include "services/common/threads/mutex.h"
#include "services/protocol/codec/codec.h"
#include "services/protocol/elements.h"
#include "services/protocol/layout.h"
#include "services/protocol/wire_version.h"
#include "services/transport/grpc_settings.h"
#include "services/transport/grpc_status.h"
#include "services/transport/security/gated_credentials.h"
#include "services/transport/security/handshake.h"
#include "services/transport/streams/stream_client.h"

namespace sluice {
namespace {

// Collects the tensors that the shards send.
class Collector {
 public:
  Collector(const v1::Snapshot& snapshot, TensorAssembler assembler)
      : snapshot_(snapshot), assembler_(std::move(assembler)) {
    for (const v1::Block& block : snapshot.layout().blocks()) missing_.insert(block.partition());
  }

  // Called on a stream's thread.
  void OnFrame(const v1::Header& header, const absl::Cord& payload) {
    MutexLock lock(&mutex_);
    if (!status_.ok()) return;

    if (header.has_refused()) {
      status_ = absl::AbortedError("the job changed its view, or released the version; try again");
    } else if (header.has_data()) {
      status_ = AddBlocks(header.data(), payload);
      if (header.data().last()) missing_.erase(header.data().partition());
    }

    changed_.SignalAll();
  }

  void OnBroken(const absl::Status& why) {
    MutexLock lock(&mutex_);
    if (status_.ok() && !missing_.empty()) {
      status_ =
          absl::UnavailableError(absl::StrCat("lost the connection to a shard: ", why.message()));
    }
    changed_.SignalAll();
  }

  void OnSnapshotEnded(const absl::Status& why) {
    MutexLock lock(&mutex_);
    if (status_.ok() && !missing_.empty()) status_ = why;
    changed_.SignalAll();
  }

  absl::StatusOr<std::vector<SafetensorsArray>> Wait(absl::Time deadline) {
    MutexLock lock(&mutex_);
    while (status_.ok() && !missing_.empty()) {
      if (changed_.WaitWithDeadline(&mutex_, deadline)) {
        return absl::DeadlineExceededError("the shards did not send the tensors in time");
      }
    }

    if (!status_.ok()) return status_;
    return assembler_.Take();
  }

 private:
  absl::Status AddBlocks(const v1::Data& data, const absl::Cord& payload)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    uint64_t offset = 0;
    for (const v1::BlockHeader& header : data.blocks()) {
      if (header.block() >= static_cast<uint32_t>(snapshot_.layout().blocks_size()) ||
          header.payload_bytes() > payload.size() - offset) {
        return absl::DataLossError("a shard sent blocks that the job does not have");
      }

      const absl::Cord bytes = payload.Subcord(offset, header.payload_bytes());
      offset += header.payload_bytes();
      RETURN_IF_ERROR(AddBlock(header, bytes));
    }
    return absl::OkStatus();
  }

  absl::Status AddBlock(const v1::BlockHeader& header, const absl::Cord& bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (header.codec() == v1::CODEC_RAW) return assembler_.Add(header.block(), bytes);

    ASSIGN_OR_RETURN(const Codec* const codec, FindCodec(header.codec()));
    const v1::Block& block = snapshot_.layout().blocks(static_cast<int>(header.block()));
    const v1::DataType dtype = snapshot_.table().tensors(static_cast<int>(block.tensor())).dtype();

    // Aligned for every element type.
    std::vector<double> memory((block.count() * ElementBytes(dtype) + 7) / 8);
    RETURN_IF_ERROR(codec->Decode(bytes, Elements(dtype, memory.data(), block.count())));
    return assembler_.Add(header.block(),
                          absl::Cord(absl::string_view(reinterpret_cast<const char*>(memory.data()),
                                                       block.count() * ElementBytes(dtype))));
  }

  const v1::Snapshot& snapshot_;
  Mutex mutex_;
  CondVar changed_;
  TensorAssembler assembler_ ABSL_GUARDED_BY(mutex_);
  std::set<uint32_t> missing_ ABSL_GUARDED_BY(mutex_);  // partitions
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

v1::ProcessId ReaderId(uint64_t incarnation) {
  v1::ProcessId id;
  id.set_role(v1::READER);
  id.set_incarnation(incarnation);
  return id;
}

absl::StatusOr<std::unique_ptr<StreamClient>> StartReader(
    const SnapshotSource& source, const std::string& job, const v1::Snapshot& snapshot,
    const v1::View::Shard& shard, uint64_t incarnation, Collector* collector) {
  StreamClient::Options options;
  options.address = shard.address();
  if (source.shard_address) {
    ASSIGN_OR_RETURN(options.address, source.shard_address(shard));
  }
  options.credentials = source.credentials;
  // An address other than the shard's own forwards to a process on another machine, so no shared
  // memory is offered.
  if (options.address != shard.address() || !source.shared_memory) options.shared_memory_bytes = 0;

  std::unique_ptr<StreamClient> stream = StreamClient::Connect(
      std::move(options),
      {.on_frames =
           [collector](const std::vector<DecodedFrame>& frames) {
             for (const DecodedFrame& frame : frames) {
               collector->OnFrame(frame.header, frame.payload);
             }
           },
       .on_broken = [collector](const absl::Status& why) { collector->OnBroken(why); }});

  v1::Header hello;
  *hello.mutable_view() = snapshot.view().id();
  hello.mutable_hello()->set_min_wire_version(SpokenWireVersions().oldest);
  hello.mutable_hello()->set_max_wire_version(SpokenWireVersions().newest);
  hello.mutable_hello()->set_job(job);
  *hello.mutable_hello()->mutable_sender() = ReaderId(incarnation);
  hello.mutable_hello()->set_shard_incarnation(shard.process().incarnation());
  stream->Send(hello);

  v1::Header pull;
  *pull.mutable_view() = snapshot.view().id();
  pull.mutable_pull()->set_version(snapshot.version());
  pull.mutable_pull()->set_snapshot_id(snapshot.snapshot_id());
  pull.mutable_pull()->set_request(1);
  stream->Send(pull);
  return stream;
}

std::map<std::string, std::string> OwnersOf(const v1::Snapshot& snapshot) {
  std::map<std::string, std::set<uint32_t>> shards;  // shard indices by tensor
  for (const v1::Block& block : snapshot.layout().blocks()) {
    const std::string& name = snapshot.table().tensors(static_cast<int>(block.tensor())).name();
    const uint32_t place = snapshot.view().owner(static_cast<int>(block.partition()));
    shards[name].insert(snapshot.view().shards(static_cast<int>(place)).process().index());
  }

  std::map<std::string, std::string> owners;
  for (const auto& [name, indices] : shards) {
    owners[name] = absl::StrCat("ps-", absl::StrJoin(indices, ", ps-"));
  }
  return owners;
}

// One OpenSnapshot call: the version stays pinned for the life of this object, unless the
// coordinator ends the call earlier.
class OpenedSnapshot {
 public:
  // Blocks until a version is pinned.
  static absl::StatusOr<std::unique_ptr<OpenedSnapshot>> Open(const SnapshotSource& source,
                                                              uint64_t incarnation,
                                                              absl::Time deadline) {
    auto opened =
        std::unique_ptr<OpenedSnapshot>(new OpenedSnapshot(source, incarnation, deadline));
    if (opened->call_->Read(&opened->snapshot_)) return opened;

    const absl::Status why = FromGrpcStatus(opened->call_->Finish());
    opened->call_.reset();
    if (why.ok()) return absl::UnavailableError("the job's coordinator gave no snapshot");

    absl::Status explained = security::ExplainHandshake(
        why, security::SpeaksTls(source.credentials), source.handshake_help);
    if (!absl::IsUnavailable(why) || explained != why) return explained;
    return absl::UnavailableError(
        "the job's coordinator is not responding: the job is starting, stopping or recovering; try "
        "again");
  }

  ~OpenedSnapshot() {
    context_.TryCancel();
    if (waiting_.joinable()) waiting_.join();
  }

  const v1::Snapshot& snapshot() const { return snapshot_; }

  // Notifies the collector when the call ends. Call it once; the collector must outlive this.
  void Watch(Collector* collector) {
    waiting_ = std::thread([this, collector] {
      v1::Snapshot none;
      while (call_->Read(&none)) {
      }

      const absl::Status why = FromGrpcStatus(call_->Finish());
      collector->OnSnapshotEnded(
          why.ok() ? absl::AbortedError("the job's coordinator ended the snapshot") : why);
    });
  }

 private:
  OpenedSnapshot(const SnapshotSource& source, uint64_t incarnation, absl::Time deadline)
      : stub_(v1::JobControl::NewStub(
            MakeChannel({.address = source.coordinator, .credentials = source.credentials}))) {
    context_.set_deadline(absl::ToChronoTime(deadline));
    v1::OpenSnapshotRequest request;
    request.set_hold_seconds(absl::ToDoubleSeconds(deadline - absl::Now()));
    *request.mutable_reader() = ReaderId(incarnation);
    call_ = stub_->OpenSnapshot(&context_, request);
  }

  const std::unique_ptr<v1::JobControl::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::Snapshot>> call_;
  v1::Snapshot snapshot_;
  std::thread waiting_;
};

absl::StatusOr<RunningSnapshot> PullOnce(const SnapshotSource& source, const std::string& job,
                                         absl::Time deadline) {
  const uint64_t incarnation = RandomIncarnation();
  ASSIGN_OR_RETURN(std::unique_ptr<OpenedSnapshot> opened,
                   OpenedSnapshot::Open(source, incarnation, deadline));
  const v1::Snapshot& snapshot = opened->snapshot();

  ASSIGN_OR_RETURN(TensorAssembler assembler,
                   TensorAssembler::Create(snapshot.table(), snapshot.layout()));
  Collector collector(snapshot, std::move(assembler));

  std::vector<std::unique_ptr<StreamClient>> streams;
  for (const v1::View::Shard& shard : snapshot.view().shards()) {
    ASSIGN_OR_RETURN(std::unique_ptr<StreamClient> stream,
                     StartReader(source, job, snapshot, shard, incarnation, &collector));
    streams.push_back(std::move(stream));
  }

  opened->Watch(&collector);
  absl::StatusOr<std::vector<SafetensorsArray>> tensors = collector.Wait(deadline);
  streams.clear();

  RunningSnapshot result;
  if (tensors.ok()) {
    result = RunningSnapshot{snapshot.version(), *std::move(tensors), OwnersOf(snapshot)};
  }
  opened.reset();  // before the collector, which it notifies
  RETURN_IF_ERROR(tensors.status());
  return result;
}

}  // namespace

absl::StatusOr<RunningSnapshot> PullSnapshot(const SnapshotSource& source, const std::string& job,
                                             absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (true) {
    absl::StatusOr<RunningSnapshot> pulled = PullOnce(source, job, deadline);
    // The job released the version for a checkpoint, or changed its view: pin the next version.
    if (!absl::IsAborted(pulled.status()) || absl::Now() >= deadline) return pulled;
  }
}

}  // namespace sluice
