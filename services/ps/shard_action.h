// What a shard's core wants done, and what it hands over to have it done.
#ifndef SLUICE_SERVICES_PS_SHARD_ACTION_H_
#define SLUICE_SERVICES_PS_SHARD_ACTION_H_

#include <cstdint>
#include <memory>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "proto/checkpoint.pb.h"
#include "proto/control.pb.h"
#include "proto/frame.pb.h"

namespace sluice::ps {

// The shell's name for an accepted stream; never used again for another one.
using StreamId = uint64_t;

// A pinned version of a partition (partition_file.h): immutable, shares its blocks, and may be read
// on any thread.
struct PartitionContent;

// Sends a frame on an accepted stream. A stream that is gone: nothing.
struct SendFrame {
  StreamId stream;
  v1::Header header;
  absl::Cord payload;  // often over block memory, which it keeps alive
};

// Sends a frame to another shard, over one stream per incarnation that the shell opens when it is
// first needed (its Hello comes from MakeHello), keeps, and opens again when it breaks.
struct SendToShard {
  v1::ProcessId shard;
  std::string address;
  v1::Header header;
  absl::Cord payload;
};

// Ends an accepted stream with a final status. No OnStreamClosed follows.
struct CloseStream {
  StreamId stream;
  absl::Status status;
};

struct SendToCoordinator {
  v1::MemberMessage message;
};

// Ends the stream to a coordinator that has been replaced; the shell looks for the coordinator
// again, with backoff.
struct DropCoordinator {
  std::string reason;
};

// Encodes (EncodePartition), writes `folder`/`file_name` durably, and reports OnPartitionWritten. A
// file that exists is not written again: then the shell reports what lies there.
struct WritePartition {
  uint64_t cut;
  uint32_t partition;
  v1::CheckpointRef checkpoint;
  std::string folder;     // as the coordinator named it (OpenCut.folder)
  std::string file_name;  // "partition-00012.safetensors"
  std::shared_ptr<const PartitionContent> content;
};

// Reads `folder`/`file.name` whole and reports OnPartitionLoaded.
struct LoadPartition {
  v1::AskId ask;
  v1::CheckpointRef checkpoint;
  std::string folder;  // as the coordinator named it (Prepare.checkpoint_folder)
  v1::PartitionFile file;
};

// Ends the process, once what was to be sent before has been sent.
struct ExitProcess {
  int code;
  std::string reason;
};

inline constexpr int kExitFinished = 0;
inline constexpr int kExitFailed = 1;
// This life is over, a new process may do better (EX_TEMPFAIL).
inline constexpr int kExitReplaced = 75;
// The coordinator does not accept this shard: it is of another job, or of another version.
inline constexpr int kExitNotAccepted = 76;

using ShardAction = std::variant<SendFrame, SendToShard, CloseStream, SendToCoordinator,
                                 DropCoordinator, WritePartition, LoadPartition, ExitProcess>;

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_SHARD_ACTION_H_
