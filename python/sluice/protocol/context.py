"""The state that the parts of a WorkerCore share: the job, the view, the streams, the actions."""

import math

from sluice.protocol import wire


class ContractError(Exception):
    """A frame violated the protocol: its stream is closed with this reason."""


class WorkerContext:

    def __init__(self, incarnation):
        self.incarnation = incarnation
        self.job = wire.JobSpec()
        self.table = None
        self.layout = None
        self.index = None   # with table and layout
        self.plan = None    # once the model is ready

        self.told_batch_size = 0  # HeartbeatReply.batch_size

        self.view = None    # the newest
        self.member = False  # of the view
        self.assignment = []
        # Non-empty partitions by owner. Shards without any are left out.
        self.owned = {}

        self.links = {}
        self.outstanding = set()  # given to the compute thread, not answered yet
        # Whether the current buffer may be swapped. The shell clears it while the user's program is
        # outside of our work and may read the parameters.
        self.adoptable = True

        self.now = 0.0
        self.sent_at = -math.inf  # when the send queues were last empty
        self.actions = []
        self.progress = wire.WorkerProgress()  # not sent yet
        self.samples_sent = 0
        self.samples_recomputed = 0
        self._last_compute = 0

    def may_evaluate(self):
        """Members train; in a view without members, by which training ends at a target, all workers
        do."""
        return self.member or (self.view is not None and not self.view.workers)

    def batch_size(self):
        """The size of an asynchronous update that begins now."""
        return self.told_batch_size or self.job.training.global_batch_size

    def ready_link(self, shard):
        link = self.links.get(shard)
        return link if link is not None and link.ready else None

    def queued_bytes(self):
        """Bytes of payload that wait for credit."""
        return sum(link.queued_bytes for link in self.links.values())

    def arbiter(self):
        """The owner of partition 0."""
        return self.view.shards[self.view.owner[0]].process.incarnation

    def send(self, link, header, pieces=()):
        """Sends under the current view."""
        header.view.CopyFrom(self.view.id)
        link.send(header, list(pieces), self.actions)

    def new_compute(self):
        self._last_compute += 1
        self.outstanding.add(self._last_compute)
        return self._last_compute

    def count_pulled(self, data, payload):
        """Counts parameters that arrived for training."""
        self.progress.pulled_bytes += len(payload)
        self.progress.parameter_bytes += sum(self.index.bytes[block.block] for block in data.blocks)

    def count_recomputed(self, samples):
        self.samples_recomputed += samples
        self.progress.recomputed_samples += samples
