"""Cuts gradients into Push frames, as they become final.

Keeps, for each partition, what has been sent on the present stream to its owner. The last frame of
a partition names it as complete. See services/worker/core/push_sender.h.
"""

import dataclasses
import itertools
import typing

from sluice.protocol import codec as codec_lib
from sluice.protocol import encoder as encoder_lib
from sluice.protocol import frame
from sluice.protocol import gradients as gradients_lib
from sluice.protocol import wire

_EAGER_BYTES = 1 << 18


@dataclasses.dataclass
class Common:
    """Fields that all frames of a step or update share."""
    step: int = 0
    clock: int = 0
    samples: int = 0
    microbatches: int = 0
    ordinal: int = 0
    pull_next: bool = False
    # Asynchronous with one shard: rides on the last frame.
    apply: typing.Any = None


class _Partition:
    __slots__ = ('unresolved', 'pending', 'pending_bytes', 'named', 'closed')

    def __init__(self, closed=False):
        self.unresolved = 0  # (unit, block) pairs
        self.pending = {}    # unit -> blocks
        self.pending_bytes = 0
        self.named = False
        self.closed = closed


class PushSender:

    def __init__(self, context):
        self._context = context
        # Told by the mode what becomes of the contributions that are sent here.
        self.encoder = encoder_lib.GradientEncoder(context.job.training)
        self._gradients = None
        self._state = []
        self._changed = False  # since the last flush: there may be something to send
        self._codecs = []  # by tensor
        self.common = Common()

    @property
    def active(self):
        return self._gradients is not None

    def stop(self):
        self._gradients = None
        self._state = []

    def start(self, gradients, common):
        """Everything that `gradients` holds and will hold is to be sent, and was not."""
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
        """The partition needs nothing any more."""
        self._state[partition].closed = True

    def on_resolved(self, unit, tensor):
        if not self.active:
            return
        index = self._context.index
        has_gradient = self._gradients.get(unit, tensor) is not None
        self._changed = True
        for block in index.blocks_of_tensor[tensor]:
            state = self._state[index.blocks[block][3]]
            if state.unresolved:
                state.unresolved -= 1
            if has_gradient:
                state.pending.setdefault(unit, []).append(block)
                state.pending_bytes += index.bytes[block]

    def flush(self):
        # What waits for a stream to open is looked at again by send_again.
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
        """Every partition was named as complete, or closed."""
        if not self.active:
            return True
        return all(self._state[partition].named or self._state[partition].closed
                   for partition in self._context.owned.get(shard, ()))

    def _reset(self, partition):
        index = self._context.index
        state = _Partition(self._state[partition].closed)
        for unit in self._gradients.units:
            for block in index.blocks_of_partition[partition]:
                gradient = self._gradients.get(unit, index.blocks[block][0])
                if gradient is gradients_lib.UNRESOLVED:
                    state.unresolved += 1
                elif gradient is not None:
                    state.pending.setdefault(unit, []).append(block)
                    state.pending_bytes += index.bytes[block]
        self._state[partition] = state

    def _flush_to(self, link, partitions):
        frames = []
        bare = []  # complete, with nothing (more) to send
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

    def _new_frame(self):
        header = wire.Header()
        header.push.SetInParent()
        header.push.step = self.common.step
        header.push.clock = self.common.clock
        return header, []

    def _append_frames(self, partition, frames):
        state = self._state[partition]
        # By unit, each in the order of the layout: that is how a shard likes to find them.
        for unit in sorted(state.pending):
            self._append_unit(partition, unit, sorted(state.pending[unit]), frames)
        state.pending = {}
        state.pending_bytes = 0

    def _append_unit(self, partition, unit, blocks, frames):
        index = self._context.index
        pushed = 0
        room = -1
        push = taken = None  # of the present frame
        for block in blocks:
            tensor, offset, count, _ = index.blocks[block]
            codec = self._codecs[tensor]
            payload = None
            if codec == wire.CODEC_RAW:
                size = index.bytes[block]
            elif self.encoder.by_pieces(codec):
                size = codec_lib.encoded_bytes(codec, index.dtypes[tensor], count)
            else:
                values = self._gradients.get(unit, tensor)[offset:offset + count]
                payload = self.encoder.encode(unit, block, index.dtypes[tensor], values)
                size = len(payload)
            if size > room:
                if taken:
                    frames[-1][1].extend(self._pieces(unit, taken))
                room = frame.MAX_PAYLOAD_BYTES
                frames.append(self._new_frame())
                push, taken = frames[-1][0].push, []
                push.partition = partition
                push.microbatches.begin, push.microbatches.end = unit
            push.blocks.add(block=block, payload_bytes=size, codec=codec)
            taken.append((block, payload))
            room -= size
            pushed += size
        frames[-1][1].extend(self._pieces(unit, taken))
        self._context.progress.pushed_bytes += pushed
        self._context.progress.gradient_bytes += sum(index.bytes[block] for block in blocks)

    def _pieces(self, unit, taken):
        """The payload of a frame: what is one piece of a tensor stays one."""
        for encoded, blocks in itertools.groupby(taken, key=lambda entry: entry[1] is not None):
            if encoded:
                yield from (payload for _, payload in blocks)
            else:
                yield from self._joined_pieces(unit, [block for block, _ in blocks])

    def _joined_pieces(self, unit, blocks):
        index = self._context.index
        for tensor, begin, end in index.runs(blocks):
            values = self._gradients.get(unit, tensor)[begin:end]
            encoded = codec_lib.encode(self._codecs[tensor], index.dtypes[tensor], values)
            yield memoryview(encoded).cast('B')
