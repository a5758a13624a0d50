#ifndef SLUICE_SERVICES_PS_CORE_BASE_OPTIONS_H_
#define SLUICE_SERVICES_PS_CORE_BASE_OPTIONS_H_

#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"
#include "proto/control.pb.h"
#include "services/ps/optimizer/optimizer.h"

namespace sluice::ps {

class References;

struct ShardOptions {
  // The fields with which the shard registers: process (role SHARD, index, incarnation), job,
  // address, host, pid, metrics_address. The core fills in wire_version, newest_view and obeyed.
  v1::Register identity;

  // ---- bounds (bounds.h). A bound "of a stream" applies to each stream; every other bound applies
  // to the process.

  // Open data streams of all kinds. A stream that has not sent Hello is closed to make room for a
  // new one.
  size_t max_streams = 4096;
  // Streams that have not sent Hello. The oldest is closed to make room for a new one, so that a
  // peer that sends Hello at once finds room, however many silent streams other peers open.
  size_t max_silent_streams = 256;
  // Streams whose Hello waits for the coordinator to admit the process.
  size_t max_unadmitted_streams = 256;
  // Streams of readers; they cannot take the room of workers and shards.
  size_t max_reader_streams = 64;
  // Workers and readers that the coordinator admits at one time.
  size_t max_admitted_processes = 1 << 16;
  // Payload bytes of a stream that its peer may have in flight and waiting
  // (HelloReply.window_bytes).
  uint64_t window_bytes = uint64_t{16} << 20;
  // Memory of a stream's frames, headers included, between the socket and the core. Exceeds the
  // window by the headers that a peer within its window may send.
  uint64_t max_received_bytes = uint64_t{24} << 20;
  // Frames of a stream that wait for a view, an admission, or the end of a pause.
  size_t max_waiting_frames = 1 << 14;
  // Memory of the headers of a stream's waiting frames.
  uint64_t max_waiting_header_bytes = uint64_t{8} << 20;
  // Waiting frames, headers included, of peers that are not members of the installed view. Members
  // are limited only by the bounds of their streams.
  uint64_t max_waiting_bytes = uint64_t{1} << 30;
  // Pulls of a stream that wait for a version or for a slow worker, one for each partition.
  size_t max_parked_pulls = 1 << 14;
  // Memory of a stream's parked pulls and of the rows that they name.
  uint64_t max_parked_bytes = uint64_t{32} << 20;
  // Bytes of a stream's answers that wait for the peer to read them. A stream with more is closed.
  // Most waiting answers refer to versions that are held anyway. The value is at least twice what a
  // peer may pull at once.
  uint64_t max_answer_bytes = uint64_t{4} << 30;
  // Snapshots open at the same time.
  size_t max_snapshots = 8;

  // A stream is closed if its Hello has not come within this time.
  absl::Duration hello_timeout = absl::Seconds(5);
  // A Hello waits this long for the coordinator to admit its process.
  absl::Duration admission_timeout = absl::Seconds(5);

  // ---- sizes and times

  // Payload of a Data frame, unless a single block is larger.
  uint64_t max_data_frame_bytes = uint64_t{2} << 20;
  // Payload of a CopyState frame. At most window_bytes.
  uint64_t copy_part_bytes = uint64_t{1} << 20;
  // Further transfers to a shard begin while those under way have less than can be sent during a
  // step, at most this, at least an eighth of it. Synchronous: a transfer begins only at a
  // committed version, which a slow job may have for a small part of each step.
  uint64_t copy_transfer_bytes = uint64_t{64} << 20;
  // Steps and applied updates that wait for the state of their copy, or for decisions: beyond this,
  // acks of their owners' entries are held back until a copy is whole.
  uint64_t max_copy_queue_bytes = uint64_t{256} << 20;
  // Asynchronous: permits are given for whole updates up to this much staged memory, over all
  // shards, and always for at least one update.
  uint64_t max_staged_bytes = uint64_t{1} << 30;
  // Bytes of idle blocks kept for reuse. Idle blocks never exceed the blocks that were once in use
  // at the same time, so this only has to exceed one version of everything that a shard holds.
  size_t max_idle_bytes = size_t{1} << 40;
  // ShardProgress is sent at most once per interval.
  absl::Duration progress_interval = absl::Milliseconds(100);
  // Computes the layers of jobs with server-side execution; must outlive the core. Null: such jobs
  // fail at their start.
  References* references = nullptr;
  // Optimizers that are not built in. Empty: jobs with such an optimizer fail at their start.
  OptimizerLibraries libraries;
};

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_CORE_BASE_OPTIONS_H_
