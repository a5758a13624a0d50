"""The gradients of one step that a worker holds, by microbatches.

Intuition: services/worker/core/step_gradients.h, which this follows. A worker pushes a few *partial
sums* per step, sums over contiguous microbatches: those computed as one batch or, with BitExact, the
maximal complete subtrees of its assignment in the binary tree over the step's microbatches.
`assign` keeps the partial sums that are completely inside the new assignment.
"""

from sluice.protocol import elements
from sluice.protocol import intervals
from sluice.protocol import wire

UNRESOLVED = object()  # marks a tensor whose gradient is not known yet; None: it has no gradient


def maximal_subtrees(ranges):
    """Aligned ranges whose sizes are powers of two, ascending; adjacent ranges count as one."""
    roots = []
    for begin, end in intervals.IntervalSet(ranges).ranges():
        while begin < end:
            size = begin & -begin if begin else 1 << 62
            while size > end - begin:
                size >>= 1
            roots.append((begin, begin + size))
            begin += size
    return roots


class StepGradients:

    def __init__(self, table, tree):
        self._dtypes = [tensor.dtype for tensor in table.tensors]
        # The shards advance counters themselves.
        self._counters = [tensor.kind == wire.COUNTER for tensor in table.tensors]
        self._tree = tree
        self.partial_sums = []
        self._nodes = {}  # (begin, end) -> [gradient, None or UNRESOLVED of each tensor]

    def assign(self, assignment):
        """The microbatches to compute now; with a tree, one at a time."""
        return self._assign_tree(assignment) if self._tree else self._assign_ranges(assignment)

    def wants(self, computed):
        return computed in self._nodes

    def get(self, partial_sum, tensor):
        node = self._nodes.get(partial_sum)
        return UNRESOLVED if node is None else node[tensor]

    def resolve(self, computed, tensor, gradient):
        """Adds a tensor's gradient (None: it has none). Returns the partial sum that now has the
        tensor, if any."""
        node = self._nodes.get(computed)
        if node is None or node[tensor] is not UNRESOLVED:
            return None
        node[tensor] = gradient
        return self._merge_up(computed, tensor)

    def is_complete(self):
        return all(partial_sum in self._nodes and self._is_whole(self._nodes[partial_sum])
                   for partial_sum in self.partial_sums)

    @staticmethod
    def _is_whole(node):
        return not any(state is UNRESOLVED for state in node)

    def _new_node(self, key):
        node = [None if counter else UNRESOLVED for counter in self._counters]
        self._nodes[key] = node
        return node

    def _assign_ranges(self, assignment):
        wanted = intervals.IntervalSet(assignment)
        rest = intervals.IntervalSet(assignment)
        for key in sorted(self._nodes):
            if wanted.contains_all(*key):
                rest.remove(*key)
            else:
                del self._nodes[key]
        compute = rest.ranges()
        for key in compute:
            self._new_node(key)
        self.partial_sums = sorted(self._nodes)
        return compute

    def _assign_tree(self, assignment):
        self.partial_sums = maximal_subtrees(assignment)
        rest = intervals.IntervalSet(self.partial_sums)
        for key in sorted(self._nodes):
            if not self._inside_partial_sum(key):
                del self._nodes[key]
            elif key[1] - key[0] == 1 or self._is_whole(self._nodes[key]):
                # Any other node is a sum whose halves are both kept, so they cover it.
                rest.remove(*key)
        compute = [(leaf, leaf + 1) for begin, end in rest.ranges() for leaf in range(begin, end)]
        for key in compute:
            self._new_node(key)
        # Kept nodes may have become siblings within a larger partial sum.
        for key in sorted(self._nodes, key=lambda key: (key[1] - key[0], key)):
            for tensor in range(len(self._dtypes)):
                self._merge_up(key, tensor)
        return compute

    def _inside_partial_sum(self, key):
        return any(begin <= key[0] and key[1] <= end for begin, end in self.partial_sums)

    def _merge_up(self, key, tensor):
        """Sums a tensor upwards while both halves are present. Returns the partial sum that it
        reaches, if any."""
        while True:
            node = self._nodes.get(key)
            if node is None or node[tensor] is UNRESOLVED:
                return None
            if key in self.partial_sums:
                return key
            if not self._tree:
                return None

            begin, end = key
            size = end - begin
            is_left = begin // size % 2 == 0
            sibling = (end, end + size) if is_left else (begin - size, begin)
            parent = (begin, sibling[1]) if is_left else (sibling[0], end)
            other = self._nodes.get(sibling)
            if other is None or other[tensor] is UNRESOLVED:
                return None

            total = self._nodes.get(parent)
            if total is None:
                total = self._new_node(parent)
            if total[tensor] is not UNRESOLVED:
                return None

            left, right = (node, other) if is_left else (other, node)
            if left[tensor] is None or right[tensor] is None:
                total[tensor] = right[tensor] if left[tensor] is None else left[tensor]
            else:
                total[tensor] = elements.add(self._dtypes[tensor], left[tensor], right[tensor])

            # The halves are kept until the sum is complete: a view change may still need one.
            if self._is_whole(total):
                self._drop_inside(parent)
            key = parent

    def _drop_inside(self, key):
        for other in list(self._nodes):
            if other != key and key[0] <= other[0] and other[1] <= key[1]:
                del self._nodes[other]
