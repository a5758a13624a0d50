"""Cuts gradients into Push frames as they become final.

Tracks for each partition what was sent on the current stream to its owner. The last frame of a
partition marks it as complete. See services/worker/core/push_sender.h.
"""

import dataclasses
import typing

from sluice.protocol import codec as codec_lib
from sluice.protocol import encoder as encoder_lib
from sluice.protocol import frame
from sluice.protocol import gradients as gradients_lib
from sluice.protocol import wire

_EAGER_BYTES = 1 << 18
# Cached frame plans, before all are dropped.
_MAX_PLANS = 4096


@dataclasses.dataclass
class Common:
    """The fields that all frames of a step or update share."""
    step: int = 0
    clock: int = 0
    samples: int = 0
    microbatches: int = 0
    ordinal: int = 0
    pull_next: bool = False
    # Asynchronous with one shard: sent with the last frame.
    apply: typing.Any = None


class _Partition:
    __slots__ = ('unresolved', 'pending', 'pending_bytes', 'named', 'closed')

    def __init__(self, closed=False):
        self.unresolved = 0  # (partial sum, block) pairs
        self.pending = {}    # partial sum -> blocks
        self.pending_bytes = 0
        self.named = False
        self.closed = closed


@dataclasses.dataclass
class _FramePlan:
    """A frame with blocks of a partition, without the fields that change from step to step."""
    push: typing.Any  # Push with partition and blocks
    runs: list        # of the payload: (tensor, first element, end)


@dataclasses.dataclass
class _Plan:
    frames: list
    payload_bytes: int
    gradient_bytes: int


class PushSender:

    def __init__(self, context):
        self._context = context
        # (partition, blocks) -> _Plan, or None if the codec handles each block. Every step sends
        # the same blocks, and for small blocks handling each one dominates the cost.
        self._plans = {}
        self._planned = None  # the LayoutIndex of the plans
        # The mode tells it what happens to the contributions that it sends.
        self.encoder = encoder_lib.GradientEncoder(context.job.training)
        self._gradients = None
        self._state = []
        self._changed = False  # since the last flush, so there may be something to send
        self._codecs = []  # by tensor
        self.common = Common()

    @property
    def active(self):
        return self._gradients is not None

    def stop(self):
        self._gradients = None
        self._state = []

    def start(self, gradients, common):
        """Starts over: all present and future content of `gradients` must be sent."""
        self._gradients = gradients
        self._changed = True
        self._codecs = [self.encoder.codec_of(tensor) for tensor in self._context.table.tensors]
        self.common = common
        self._state = [_Partition() for _ in range(self._context.index.partitions)]
        for partition in range(len(self._state)):
            self._reset(partition)

    def send_again(self, shard):
        if self.active:
            self._changed = True
            for partition in self._context.owned.get(shard, ()):
                self._reset(partition)

    def close(self, partition):
        """The partition needs nothing more."""
        self._state[partition].closed = True

    def on_resolved(self, partial_sum, tensor):
        if not self.active:
            return
        index = self._context.index
        has_gradient = self._gradients.get(partial_sum, tensor) is not None
        self._changed = True
        for block in index.blocks_of_tensor[tensor]:
            state = self._state[index.blocks[block][3]]
            if state.unresolved:
                state.unresolved -= 1
            if has_gradient:
                state.pending.setdefault(partial_sum, []).append(block)
                state.pending_bytes += index.bytes[block]

    def flush(self):
        # send_again handles frames that wait for a stream to open.
        if not self.active or not self._changed:
            return
        self._changed = False
        for shard, partitions in self._context.owned.items():
            link = self._context.ready_link(shard)
            if link is not None:
                self._flush_to(link, partitions)

    def all_sent(self):
        return all(self.all_sent_to(shard) for shard in self._context.owned)

    def all_sent_to(self, shard):
        """Whether every partition is marked as complete, or closed."""
        if not self.active:
            return True
        return all(self._state[partition].named or self._state[partition].closed
                   for partition in self._context.owned.get(shard, ()))

    def _reset(self, partition):
        index = self._context.index
        state = _Partition(self._state[partition].closed)
        for partial_sum in self._gradients.partial_sums:
            for block in index.blocks_of_partition[partition]:
                gradient = self._gradients.get(partial_sum, index.blocks[block][0])
                if gradient is gradients_lib.UNRESOLVED:
                    state.unresolved += 1
                elif gradient is not None:
                    state.pending.setdefault(partial_sum, []).append(block)
                    state.pending_bytes += index.bytes[block]
        self._state[partition] = state

    def _flush_to(self, link, partitions):
        frames = []
        bare = []  # complete partitions with nothing (more) to send
        for partition in partitions:
            state = self._state[partition]
            if state.closed or state.named:
                continue
            complete = state.unresolved == 0
            if not complete and state.pending_bytes < _EAGER_BYTES:
                continue
            had_blocks = bool(state.pending)
            self._append_frames(partition, frames)
            if not complete:
                continue
            state.named = True
            if had_blocks:
                frames[-1][0].push.complete.append(partition)
            else:
                bare.append(partition)

        if bare and not frames:
            frames.append(self._new_frame())
        if bare:
            frames[-1][0].push.complete.extend(bare)

        for header, _ in frames:
            push = header.push
            if push.complete:
                push.samples = self.common.samples
                push.microbatch_count = self.common.microbatches
                push.pull_next = self.common.pull_next
                push.ordinal = self.common.ordinal

        if frames and self.common.apply is not None and self.all_sent_to(link.id):
            frames[-1][0].push.apply.CopyFrom(self.common.apply)
        for header, pieces in frames:
            self._context.send(link, header, pieces)

    def _new_frame(self, push=None):
        """Starts from the constant fields in `push`, if given."""
        header = wire.Header()
        if push is None:
            header.push.SetInParent()
        else:
            header.push.CopyFrom(push)
        header.push.step = self.common.step
        header.push.clock = self.common.clock
        return header, []

    def _append_frames(self, partition, frames):
        state = self._state[partition]
        # By partial sum, each in the order of the layout, which is fastest for the shard.
        for partial_sum in sorted(state.pending):
            self._append_unit(partition, partial_sum, sorted(state.pending[partial_sum]), frames)
        state.pending = {}
        state.pending_bytes = 0

    def _append_unit(self, partition, partial_sum, blocks, frames):
        plan = self._plan(partition, tuple(blocks))
        if plan is None:
            self._append_block_by_block(partition, partial_sum, blocks, frames)
            return
        for planned in plan.frames:
            header, pieces = self._new_frame(planned.push)
            header.push.microbatches.begin, header.push.microbatches.end = partial_sum
            pieces.extend(self._pieces_of_runs(partial_sum, planned.runs))
            frames.append((header, pieces))
        self._context.progress.pushed_bytes += plan.payload_bytes
        self._context.progress.gradient_bytes += plan.gradient_bytes

    def _plan(self, partition, blocks):
        index = self._context.index
        if index is not self._planned:
            self._plans.clear()
            self._planned = index
        key = (partition, blocks)
        if key not in self._plans:
            if len(self._plans) == _MAX_PLANS:
                self._plans.clear()
            self._plans[key] = self._make_plan(partition, blocks)
        return self._plans[key]

    def _make_plan(self, partition, blocks):
        index = self._context.index
        if not all(self.encoder.by_pieces(self._codecs[index.blocks[block][0]])
                   for block in blocks):
            return None

        frames = []  # (Push, its blocks)
        room = -1
        payload_bytes = 0
        for block in blocks:
            tensor, _, count, _ = index.blocks[block]
            codec = self._codecs[tensor]
            size = codec_lib.encoded_bytes(codec, index.dtypes[tensor], count)
            if size > room:
                room = frame.MAX_PAYLOAD_BYTES
                frames.append((wire.Push(partition=partition), []))
            frames[-1][0].blocks.add(block=block, payload_bytes=size, codec=codec)
            frames[-1][1].append(block)
            room -= size
            payload_bytes += size

        return _Plan([_FramePlan(push, index.runs(taken)) for push, taken in frames],
                     payload_bytes, sum(index.bytes[block] for block in blocks))

    def _append_block_by_block(self, partition, partial_sum, blocks, frames):
        index = self._context.index
        pushed = 0
        room = -1
        push = pieces = None  # of the current frame
        for block in blocks:
            tensor, offset, count, _ = index.blocks[block]
            codec = self._codecs[tensor]
            values = self._gradients.get(partial_sum, tensor)[offset:offset + count]

            if self.encoder.by_pieces(codec):
                payload = _bytes(codec_lib.encode(codec, index.dtypes[tensor], values))
            else:
                payload = self.encoder.encode(partial_sum, block, index.dtypes[tensor], values)

            size = len(payload)
            if size > room:
                room = frame.MAX_PAYLOAD_BYTES
                frames.append(self._new_frame())
                push, pieces = frames[-1][0].push, frames[-1][1]
                push.partition = partition
                push.microbatches.begin, push.microbatches.end = partial_sum
            push.blocks.add(block=block, payload_bytes=size, codec=codec)
            pieces.append(payload)
            room -= size
            pushed += size

        self._context.progress.pushed_bytes += pushed
        self._context.progress.gradient_bytes += sum(index.bytes[block] for block in blocks)

    def _pieces_of_runs(self, partial_sum, runs):
        """The payload of a frame; adjacent blocks of a tensor stay one piece."""
        memory = {}
        for tensor, begin, end in runs:
            codec = self._codecs[tensor]
            gradient = self._gradients.get(partial_sum, tensor)
            if codec == wire.CODEC_RAW:
                if tensor not in memory:
                    memory[tensor] = _bytes(gradient)
                size = gradient.itemsize
                yield memory[tensor][begin * size:end * size]
            else:
                yield _bytes(codec_lib.encode(codec, self._context.index.dtypes[tensor],
                                              gradient[begin:end]))


def _bytes(array):
    return memoryview(array).cast('B')
