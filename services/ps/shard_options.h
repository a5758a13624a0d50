#ifndef SLUICE_SERVICES_PS_SHARD_OPTIONS_H_
#define SLUICE_SERVICES_PS_SHARD_OPTIONS_H_

#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"
#include "proto/control.pb.h"

namespace sluice::ps {

class References;

struct ShardOptions {
  // What the shard registers with: process (role SHARD, index, incarnation), job, address, host,
  // pid, wire_version, metrics_address. `newest_view` is filled in by the core.
  v1::Register identity;

  // Payload bytes that a peer may have under way and waiting (HelloReply.window_bytes); one that
  // sends more is closed.
  uint64_t window_bytes = uint64_t{16} << 20;
  // Frames without payload count too: at most so many may wait in one stream.
  size_t max_waiting_frames = 1 << 14;
  // Payload of a Data frame, unless a single block is larger.
  uint64_t max_data_frame_bytes = uint64_t{2} << 20;
  size_t max_streams = 4096;
  // Pulls parked by one stream.
  size_t max_parked_pulls = 1 << 14;
  // Asynchronous: permits are given for whole updates up to this much staged memory, over all
  // shards; at least one update, whatever its size.
  uint64_t max_staged_bytes = uint64_t{1} << 30;
  // Cuts open at one time.
  size_t max_cuts = 8;
  // Idle blocks kept for use again. There are never more than were once in use at the same time, so
  // this only has to be above a version of all that a shard holds.
  size_t max_idle_bytes = size_t{1} << 40;
  // ShardProgress is sent at most once in this time.
  absl::Duration progress_interval = absl::Milliseconds(100);
  // Who computes the layers of jobs with server-side execution; must outlive the core. Null: such
  // jobs fail at their start.
  References* references = nullptr;
};

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_SHARD_OPTIONS_H_
