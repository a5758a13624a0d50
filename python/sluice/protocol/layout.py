"""How a job's tensors are cut into blocks and placed on partitions (docs/protocol.md, 2.2)."""

import heapq

from sluice.protocol import elements
from sluice.protocol import wire

MAX_PARTITIONS = 4096
_MIN_BLOCK_BYTES = 256 << 10
_MAX_BLOCK_BYTES = 1 << 20
_MAX_TABLE_BYTES = 1 << 40


def validate_table(table):
    """Raises ValueError naming a tensor that cannot be part of a job's state."""
    names = set()
    total = 0
    for tensor in table.tensors:
        if not tensor.name:
            raise ValueError('a tensor has no name')

        size = elements.element_bytes(tensor.dtype)
        if size == 0:
            raise ValueError(f"tensor '{tensor.name}' has an unknown data type")
        if (tensor.dtype == wire.INT64) != (tensor.kind == wire.COUNTER):
            raise ValueError(f"tensor '{tensor.name}' " + (
                'is int64: only counters may be' if tensor.dtype == wire.INT64 else
                'is a counter and must be int64'))
        if any(extent < 0 for extent in tensor.shape):
            raise ValueError(f"tensor '{tensor.name}' has a negative extent")

        if tensor.name in names:
            raise ValueError(f"the model has two tensors named '{tensor.name}'")
        names.add(tensor.name)
        total += elements.element_count(tensor) * size
    if total > _MAX_TABLE_BYTES:
        raise ValueError(f'the model is larger than {_MAX_TABLE_BYTES} bytes')


def _deal_largest_first(sizes, bins):
    least = [(0, number) for number in range(bins)]
    bin_of = [0] * len(sizes)
    for item in sorted(range(len(sizes)), key=lambda i: -sizes[i]):  # stable
        held, number = least[0]
        bin_of[item] = number
        heapq.heapreplace(least, (held + sizes[item], number))
    return bin_of


def make_layout(table, partitions):
    validate_table(table)
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise ValueError(f'partitions is {partitions}; it must be from 1 to {MAX_PARTITIONS}')
    counts = [elements.element_count(tensor) for tensor in table.tensors]
    sizes = [elements.element_bytes(tensor.dtype) for tensor in table.tensors]
    total = sum(count * size for count, size in zip(counts, sizes))
    block_bytes = min(max(total // 64, _MIN_BLOCK_BYTES), _MAX_BLOCK_BYTES)
    blocks = []
    for tensor, (count, size) in enumerate(zip(counts, sizes)):
        step = max(1, block_bytes // size)
        for offset in range(0, count, step):
            blocks.append((tensor, offset, min(step, count - offset)))
    partition_of = _deal_largest_first([count * sizes[t] for t, _, count in blocks], partitions)
    layout = wire.Layout(partitions=partitions)
    for partition, (tensor, offset, count) in sorted(zip(partition_of, blocks)):
        layout.blocks.add(tensor=tensor, offset=offset, count=count, partition=partition)
    return layout


def validate_layout(table, layout):
    """Raises ValueError unless every element is in exactly one block and the blocks are in
    order."""
    validate_table(table)
    if not 1 <= layout.partitions <= MAX_PARTITIONS:
        raise ValueError("the layout's number of partitions is out of range")

    previous = None
    spans = [[] for _ in table.tensors]
    for number, block in enumerate(layout.blocks):
        def fail(why, number=number):
            raise ValueError(f'block {number} of the layout {why}')

        if block.tensor >= len(table.tensors):
            fail('names a tensor that does not exist')
        if block.partition >= layout.partitions:
            fail('names an unknown partition')

        key = (block.partition, block.tensor, block.offset)
        if previous is not None and previous >= key:
            fail('is out of order')
        previous = key
        spans[block.tensor].append((block.offset, block.count))

    for tensor, span in zip(table.tensors, spans):
        at = 0
        for offset, count in sorted(span):
            if offset != at or count == 0:
                break
            at += count
        if at != elements.element_count(tensor):
            raise ValueError(
                f"the layout does not cover tensor '{tensor.name}' exactly once")


class LayoutIndex:
    """Properties of a layout that are used often, computed once."""

    def __init__(self, table, layout):
        self.partitions = layout.partitions
        self.blocks_of_partition = [[] for _ in range(layout.partitions)]
        self.blocks_of_tensor = [[] for _ in table.tensors]
        # By block: (tensor, offset, count, partition), and bytes. Accessing protobuf fields is
        # slow.
        self.blocks = []
        self.bytes = []
        sizes = [elements.element_bytes(tensor.dtype) for tensor in table.tensors]
        self.dtypes = [tensor.dtype for tensor in table.tensors]
        for number, block in enumerate(layout.blocks):
            self.blocks_of_partition[block.partition].append(number)
            self.blocks_of_tensor[block.tensor].append(number)
            self.blocks.append((block.tensor, block.offset, block.count, block.partition))
            self.bytes.append(block.count * sizes[block.tensor])
        for blocks in self.blocks_of_tensor:
            blocks.sort(key=lambda number: self.blocks[number][1])

    def runs(self, blocks):
        """[tensor, first element, end] of blocks in order, with adjacent blocks of a tensor
        joined."""
        runs = []
        for block in blocks:
            tensor, offset, count, _ = self.blocks[block]
            if runs and runs[-1][0] == tensor and runs[-1][2] == offset:
                runs[-1][2] += count
            else:
                runs.append([tensor, offset, offset + count])
        return runs

    def is_empty(self, partition):
        return not self.blocks_of_partition[partition]

    def partition_bytes(self, partition):
        return sum(self.bytes[block] for block in self.blocks_of_partition[partition])


def place_partitions(index, shards):
    """Partition -> position in a list of shards."""
    return _deal_largest_first(
        [index.partition_bytes(partition) for partition in range(index.partitions)], shards)
