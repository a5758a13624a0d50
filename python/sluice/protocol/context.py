"""What the parts of a WorkerCore share: the job, the view, the streams, the actions so far."""

import math

from sluice.protocol import wire


class ContractError(Exception):
    """A frame broke the contract: its stream is broken off with this reason."""


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
        self.member = False  # of it
        self.assignment = []
        # Partitions with content, by owner. Shards without any are left out.
        self.owned = {}

        self.links = {}
        self.outstanding = set()  # given to the compute thread and not answered
        # Whether the current buffer may be exchanged: the shell says no while its user, who has no
        # work of ours at the moment, may be looking at the parameters.
        self.adoptable = True

        self.now = 0.0
        self.sent_at = -math.inf  # when there was last nothing left to send
        self.actions = []
        self.progress = wire.WorkerProgress()  # not sent yet
        self.samples_sent = 0
        self.samples_recomputed = 0
        self._last_compute = 0

    def may_evaluate(self):
        """Members do; in a view of nobody, which is how training ends at a target, all do."""
        return self.member or (self.view is not None and not self.view.workers)

    def batch_size(self):
        """Of an asynchronous update that begins now."""
        return self.told_batch_size or self.job.training.global_batch_size

    def ready_link(self, shard):
        link = self.links.get(shard)
        return link if link is not None and link.ready else None

    def queued_bytes(self):
        """Payload that waits for credit."""
        return sum(link.queued_bytes for link in self.links.values())

    def arbiter(self):
        """The owner of partition 0."""
        return self.view.shards[self.view.owner[0]].process.incarnation

    def send(self, link, header, pieces=()):
        """Under the present view."""
        header.view.CopyFrom(self.view.id)
        link.send(header, list(pieces), self.actions)

    def new_compute(self):
        self._last_compute += 1
        self.outstanding.add(self._last_compute)
        return self._last_compute

    def count_pulled(self, data, payload):
        """Parameters that came for training."""
        self.progress.pulled_bytes += len(payload)
        self.progress.parameter_bytes += sum(self.index.bytes[block.block] for block in data.blocks)

    def count_recomputed(self, samples):
        self.samples_recomputed += samples
        self.progress.recomputed_samples += samples
