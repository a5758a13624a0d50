// The actions that a shard's core requests from its shell, with their arguments.
#ifndef SLUICE_SERVICES_PS_CORE_BASE_ACTION_H_
#define SLUICE_SERVICES_PS_CORE_BASE_ACTION_H_

#include <cstdint>
#include <memory>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "proto/checkpoint.pb.h"
#include "proto/common.pb.h"
#include "proto/control.pb.h"
#include "proto/frame.pb.h"
#include "services/protocol/member_exit.h"

namespace sluice::ps {

// The shell's name for an accepted stream; never reused.
using StreamId = uint64_t;

// A pinned version of a partition (partition_file.h): immutable, shares its blocks, and may be read
// on any thread.
struct PartitionContent;
struct ReceivedCopy;
class ShardModel;
class BlockPool;

// Sends a frame on an accepted stream. Has no effect if the stream is gone.
struct SendFrame {
  StreamId stream;
  v1::Header header;
  absl::Cord payload;  // often over block memory, which it keeps alive
};

// Sends a frame to another shard, over one stream per incarnation. The shell opens the stream when
// it is first needed (its Hello comes from MakeHello), keeps it, and reopens it when it breaks.
struct SendToShard {
  v1::ProcessId shard;
  std::string address;
  v1::Header header;
  absl::Cord payload;
};

// Ends an accepted stream with a final status. No OnDisconnected follows.
struct CloseStream {
  StreamId stream;
  absl::Status status;
};

// Sends a message to the coordinator on the current connection; lost without one. After a
// reconnection the core repeats what the coordinator needs.
struct SendToCoordinator {
  v1::MemberMessage message;
};

// Ends the stream to a coordinator that has been replaced; the shell looks for the coordinator
// again, with backoff.
struct DropCoordinator {
  std::string reason;
};

// Encodes (EncodePartition), writes `directory`/`file_name` durably, and reports
// OnPartitionWritten. A file that exists is not written again; the shell then reports the existing
// file.
struct WritePartition {
  uint64_t snapshot;
  uint32_t partition;
  v1::CheckpointRef checkpoint;
  std::string directory;  // as the coordinator named it (OpenSnapshot.directory)
  std::string file_name;  // "partition-00012.safetensors"
  std::shared_ptr<const PartitionContent> content;
};

// Reads `directory`/`file.name` whole and reports OnPartitionLoaded. The storage checks size and
// CRC-32C, the core checks the content (DecodePartition).
struct LoadPartition {
  v1::InitId init_id;
  v1::CheckpointRef checkpoint;
  std::string directory;  // as the coordinator named it (PrepareState.checkpoint_directory)
  v1::PartitionFile file;
};

// Reads the state of a copy (ReadReceivedCopy) and reports OnCopyRead. On another thread: steps
// must not wait for it. The core ignores the result of a transfer that has ended meanwhile.
struct ReadCopy {
  uint64_t transfer;  // names it in OnCopyRead
  v1::PartitionFile file;
  absl::Cord bytes;
  std::shared_ptr<const ShardModel> model;
  std::shared_ptr<BlockPool> pool;
};

// The shell performs the actions in order. Exit is the last action: the process ends after the
// actions before it have been sent.
using ShardAction = std::variant<SendFrame, SendToShard, CloseStream, SendToCoordinator,
                                 DropCoordinator, WritePartition, LoadPartition, ReadCopy, Exit>;

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_CORE_BASE_ACTION_H_
