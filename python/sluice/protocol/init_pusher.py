"""Brings version 0 to the shards when this worker is asked to (R12)."""

from sluice.protocol import actions
from sluice.protocol import frame
from sluice.protocol import wire


class InitPusher:

    def __init__(self, context):
        self._context = context
        self.initialize = None
        self.active = False
        self._tensors = []
        self._owned = {}
        self._answered = set()

    def start(self, initialize):
        """Returns False if it is not newer than the last one."""
        if self.initialize is not None and (
                wire.view_key(initialize.init_id) <= wire.view_key(self.initialize.init_id)):
            return False
        self.initialize = initialize
        self.active = True
        self._tensors = []
        self._answered = set()
        self._owned = {shard.process.incarnation: [] for shard in initialize.shards}
        for partition, owner in enumerate(initialize.owner):
            if not self._context.index.is_empty(partition):
                self._owned[initialize.shards[owner].process.incarnation].append(partition)
        if initialize.table.tensors:
            self._context.actions.append(actions.ReadInitialTensor(initialize.init_id, 0))
        return True

    def stop(self):
        self.active = False
        self._tensors = []

    def on_initial_tensor(self, init_id, tensor, content):
        if not self.active or init_id != self.initialize.init_id or tensor != len(self._tensors):
            return
        self._tensors.append(content)
        if len(self._tensors) < len(self.initialize.table.tensors):
            self._context.actions.append(actions.ReadInitialTensor(init_id, tensor + 1))
            return
        for link in self._context.links.values():
            if link.ready:
                self._push_to(link)

    def on_link_ready(self, link):
        if self.active:
            self._push_to(link)

    def on_initialized(self, link, initialized):
        if self.initialize is not None and initialized.init_id == self.initialize.init_id:
            self._answered.add(link.id)

    def _push_to(self, link):
        owned = self._owned.get(link.id)
        if owned is None or link.id in self._answered:
            return
        if len(self._tensors) < len(self.initialize.table.tensors):
            return
        for partition in owned:
            self._push_partition(link, partition, last=partition == owned[-1])
        if not owned:
            header = wire.Header()
            header.init_push.init_id.CopyFrom(self.initialize.init_id)
            header.init_push.last = True
            link.send(header, [], self._context.actions)

    def _push_partition(self, link, partition, last):
        index = self._context.index
        frames = []
        room = 0
        for block in index.blocks_of_partition[partition]:
            tensor, offset, count, _ = index.blocks[block]
            values = self._tensors[tensor][offset:offset + count]
            if not frames or values.nbytes > room:
                header = wire.Header()
                header.init_push.init_id.CopyFrom(self.initialize.init_id)
                header.init_push.partition = partition
                frames.append((header, []))
                room = frame.MAX_PAYLOAD_BYTES

            header, pieces = frames[-1]
            header.init_push.blocks.add(block=block, payload_bytes=values.nbytes)
            pieces.append(memoryview(values).cast('B'))
            room -= values.nbytes

        if frames and last:
            frames[-1][0].init_push.last = True
        for header, pieces in frames:
            link.send(header, pieces, self._context.actions)
