"""What has arrived of a version that is being pulled."""

from sluice.protocol import actions
from sluice.protocol import context as context_lib
from sluice.protocol import wire


class _Partition:
    __slots__ = ('received', 'whole', 'version')

    def __init__(self, whole):
        self.received = set()
        self.whole = whole
        self.version = 0


class VersionReceiver:
    """Passes blocks on to a buffer and counts them. Empty partitions count as whole."""

    def __init__(self, buffer):
        self._buffer = buffer
        self._index = None
        self._state = []
        self._missing = 0

    def reset(self, index):
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
        """ContractError, with nothing stored, if the blocks are not what they should be."""
        headers = [(block.block, block.payload_bytes, block.codec) for block in data.blocks]
        self._check(data.partition, headers, payload)
        state = self._state[data.partition]
        if state.whole:
            return
        at = 0
        for block, size, codec in headers:
            tensor, offset, count, _ = self._index.blocks[block]
            out.append(actions.StoreBlock(self._buffer, tensor, offset, count, codec,
                                          payload[at:at + size]))
            at += size
            state.received.add(block)
        if not data.last:
            return
        missing = len(self._index.blocks_of_partition[data.partition]) - len(state.received)
        if missing:
            raise context_lib.ContractError(
                f'partition {data.partition} ends with {missing} blocks missing')
        state.whole = True
        state.version = data.version
        self._missing -= 1

    def _check(self, partition, headers, payload):
        if partition >= len(self._state):
            raise context_lib.ContractError(f'data of partition {partition} of {len(self._state)}')
        total = 0
        for block, size, codec in headers:
            if block >= len(self._index.blocks) or self._index.blocks[block][3] != partition:
                raise context_lib.ContractError(f'block {block} is not of partition {partition}')
            if size > len(payload) - total:
                raise context_lib.ContractError(f'block {block} is longer than its frame')
            if codec == wire.CODEC_RAW and size != self._index.bytes[block]:
                raise context_lib.ContractError(
                    f'block {block} has {size} bytes, not {self._index.bytes[block]}')
            total += size
        if total != len(payload):
            raise context_lib.ContractError(
                f'a payload of {len(payload)} bytes holds blocks of {total}')
