"""Tracks which parts of a version that is being pulled have arrived."""

from sluice.protocol import actions
from sluice.protocol import context as context_lib
from sluice.protocol import wire


# Cached frame layouts, before all are dropped.
_MAX_READ = 4096


class _Partition:
    __slots__ = ('received', 'whole', 'version')

    def __init__(self, whole):
        self.received = set()
        self.whole = whole
        self.version = 0


class VersionReceiver:
    """Passes blocks on to a buffer and counts them. Empty partitions count as complete."""

    def __init__(self, buffer):
        self._buffer = buffer
        self._index = None
        self._state = []
        self._missing = 0
        # (partition, payload's length, encoded blocks) -> the result of `_read`. A shard sends
        # every version in the same frames, and handling each block dominates the cost.
        self._read_before = {}

    def reset(self, index):
        if index is not self._index:
            self._read_before.clear()
        self._index = index
        self._state = [_Partition(index.is_empty(p)) for p in range(index.partitions)]
        self._missing = sum(not state.whole for state in self._state)

    def forget_partial(self, partition=None):
        for state in self._state if partition is None else [self._state[partition]]:
            if not state.whole:
                state.received.clear()

    def is_whole(self, partition=None):
        if partition is None:
            return self._index is not None and self._missing == 0
        return self._state[partition].whole

    def version(self, partition):
        return self._state[partition].version

    def accept(self, data, payload, out):
        """Raises ContractError, with nothing stored, if the blocks are invalid."""
        partition = data.partition
        blocks, runs = self._blocks_of(data, len(payload))
        state = self._state[partition]
        if state.whole:
            return

        for tensor, codec, begin, count, first, last in runs:
            out.append(actions.StoreBlock(self._buffer, tensor, begin, count, codec,
                                          payload[first:last]))
        state.received.update(blocks)

        if not data.last:
            return
        missing = len(self._index.blocks_of_partition[partition]) - len(state.received)
        if missing:
            raise context_lib.ContractError(
                f'partition {partition} ends with {missing} blocks missing')

        state.whole = True
        state.version = data.version
        self._missing -= 1

    def _blocks_of(self, data, length):
        blocks = wire.Data()
        blocks.blocks.MergeFrom(data.blocks)
        key = (data.partition, length, blocks.SerializeToString())
        read = self._read_before.get(key)
        if read is None:
            read = self._read(data.partition, data.blocks, length)
            if len(self._read_before) == _MAX_READ:
                self._read_before.clear()
            self._read_before[key] = read
        return read

    def _read(self, partition, headers, length):
        """The numbers of a frame's blocks, and the pieces to store, with adjacent blocks joined:
        (tensor, codec, first element, elements, first byte, end)."""
        if partition >= len(self._state):
            raise context_lib.ContractError(f'data of partition {partition} of {len(self._state)}')

        places, sizes = self._index.blocks, self._index.bytes
        numbers = []
        runs = []  # [tensor, codec, first element, end, first byte, end]
        last = [None] * 6
        at = 0
        for header in headers:
            block, size, codec = header.block, header.payload_bytes, header.codec
            if block >= len(places) or places[block][3] != partition:
                raise context_lib.ContractError(f'block {block} is not of partition {partition}')
            if size > length - at:
                raise context_lib.ContractError(f'block {block} is longer than its frame')
            if codec == wire.CODEC_RAW and size != sizes[block]:
                raise context_lib.ContractError(
                    f'block {block} has {size} bytes, not {sizes[block]}')

            tensor, offset, count, _ = places[block]
            numbers.append(block)
            if last[0] == tensor and last[1] == codec and last[3] == offset:
                last[3], last[5] = offset + count, at + size
            else:
                last = [tensor, codec, offset, offset + count, at, at + size]
                runs.append(last)
            at += size

        if at != length:
            raise context_lib.ContractError(f'a payload of {length} bytes holds blocks of {at}')
        return numbers, [(tensor, codec, begin, end - begin, first, last)
                         for tensor, codec, begin, end, first, last in runs]
