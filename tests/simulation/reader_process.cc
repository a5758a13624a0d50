#include "tests/simulation/reader_process.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/protocol/layout.h"
#include "tests/simulation/shard_process.h"

namespace sluice::simulation {

ReaderProcess::ReaderProcess(Cluster* cluster, uint32_t index, uint64_t incarnation)
    : Member(cluster, absl::StrCat("reader-", index)),
      index_(index),
      incarnation_(incarnation),
      tensors_(cluster->scenario().tensors) {}

void ReaderProcess::Start() {
  asked_ = cluster_.coordinator();
  if (asked_ == nullptr) return;
  v1::OpenSnapshotRequest request;
  request.set_hold_seconds(1.0 + static_cast<double>(cluster_.random().Below(3)));
  request.mutable_reader()->set_role(v1::READER);
  request.mutable_reader()->set_index(index_);
  request.mutable_reader()->set_incarnation(incarnation_);
  auto self = std::static_pointer_cast<ReaderProcess>(shared_from_this());
  cluster_.scheduler().After(
      cluster_.random().Between(absl::Microseconds(100), absl::Milliseconds(5)), [self, request] {
        self->asked_->Handle([self, request] {
          self->call_ = self->asked_->OpenSnapshot(
              request, [self](const absl::StatusOr<v1::Snapshot>& snapshot) {
                self->Handle([self, snapshot] { self->OnSnapshot(snapshot); });
              });
        });
      });
}

void ReaderProcess::OnSnapshot(absl::StatusOr<v1::Snapshot> snapshot) {
  if (!snapshot.ok()) return Close();
  snapshot_ = *std::move(snapshot);
  const LayoutIndex index(snapshot_.table(), snapshot_.layout());
  for (uint32_t partition = 0; partition < index.partitions(); ++partition) {
    if (!index.IsEmpty(partition)) missing_.insert(partition);
  }
  for (const v1::View::Shard& shard : snapshot_.view().shards()) Open(shard);
}

void ReaderProcess::Open(const v1::View::Shard& shard) {
  auto self = std::static_pointer_cast<ReaderProcess>(shared_from_this());
  cluster_.network().Open(
      self, [self, address = shard.address()] { return self->cluster_.FindShard(address); },
      [](const StreamRef& stream) {
        static_cast<ShardProcess*>(stream->server.process.get())->Accept(stream);
      },
      [self, shard](const StreamRef& stream) {
        self->streams_.push_back(stream);
        stream->client.on_closed = [self] { self->Close(); };
        stream->on_frame = [self, stream](const v1::Header& header, const absl::Cord& payload) {
          self->OnFrame(stream, header, payload);
        };

        v1::Header header;
        v1::Hello& hello = *header.mutable_hello();
        hello.set_min_wire_version(1);
        hello.set_max_wire_version(1);
        hello.set_job(self->cluster_.job_name());
        hello.mutable_sender()->set_role(v1::READER);
        hello.mutable_sender()->set_index(self->index_);
        hello.mutable_sender()->set_incarnation(self->incarnation_);
        hello.set_shard_incarnation(shard.process().incarnation());

        v1::Header pull;
        pull.mutable_pull()->set_snapshot_id(self->snapshot_.snapshot_id());
        for (const v1::Header& frame : {header, pull}) {
          self->cluster_.network().ToServer(stream, [stream, frame] {
            static_cast<ShardProcess*>(stream->server.process.get())
                ->OnFrame(stream, frame, absl::Cord());
          });
        }
      },
      [self] { self->Close(); });
}

void ReaderProcess::OnFrame(const StreamRef&, const v1::Header& header, const absl::Cord& payload) {
  if (header.has_refused()) return Close();  // the snapshot has ended
  if (!header.has_data() || header.data().snapshot_id() != snapshot_.snapshot_id()) return;
  Take(header.data(), payload);
  if (header.data().last()) missing_.erase(header.data().partition());
  if (!missing_.empty()) return;
  ++cluster_.outcome().snapshots;
  cluster_.checker().OnSnapshot(snapshot_, tensors_);
  Close();
}

void ReaderProcess::Take(const v1::Data& data, const absl::Cord& payload) {
  size_t offset = 0;
  for (const v1::BlockHeader& block : data.blocks()) {
    const uint32_t tensor = snapshot_.layout().blocks(static_cast<int>(block.block())).tensor();
    tensors_[tensor] = FromCord(payload.Subcord(offset, block.payload_bytes()));
    offset += block.payload_bytes();
  }
}

void ReaderProcess::Close() {
  if (!alive()) return;
  // The call ends when the reader ends.
  cluster_.scheduler().After(
      cluster_.random().Between(absl::Microseconds(100), absl::Milliseconds(5)),
      [asked = asked_, call = call_] {
        asked->Handle([asked, call] { asked->EndSnapshotCall(call); });
      });
  for (const StreamRef& stream : streams_) cluster_.network().CloseByClient(stream);
  streams_.clear();
  Die();
}

}  // namespace sluice::simulation
