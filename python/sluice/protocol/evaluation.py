"""Evaluations that the coordinator gave to this worker.

If the current buffer has the wanted version, it is evaluated there; otherwise the version is pulled
by its snapshot into the evaluation buffer, one snapshot at a time.
"""

from sluice.protocol import actions
from sluice.protocol import receive
from sluice.protocol import wire

_MAX_WAITING = 1024


class EvaluationQueue:

    def __init__(self, context):
        self._context = context
        # (request, attempt): each coordinator numbers evaluations from 1.
        self._waiting = []
        self._running = {}
        self._results = []
        self._receiver = receive.VersionReceiver(actions.Buffer.EVALUATION)
        self._snapshot_id = 0  # in the evaluation buffer, or being pulled into it; 0: none

    def add(self, request):
        view = self._context.view
        asked = (request, 0 if view is None else view.id.attempt)

        def same(other):
            return (other[1] == asked[1] and other[0].version == request.version and
                    other[0].evaluation == request.evaluation and
                    other[0].samples == request.samples)

        if any(map(same, self._waiting)) or any(map(same, self._running.values())):
            return
        if not self._context.may_evaluate():
            self._fail(asked, 'not a member of the view')
        elif len(self._waiting) >= _MAX_WAITING:
            self._fail(asked, 'too many evaluations are waiting')
        elif request.samples.begin >= request.samples.end:
            self._fail(asked, 'no samples')
        else:
            self._waiting.append(asked)

    def on_view(self, same_attempt):
        # In this view the version may be pinned again, and partitions may have other owners.
        self._snapshot_id = 0
        if same_attempt and self._context.may_evaluate():
            return
        for asked in self._waiting:
            self._fail(asked, 'the version is gone: the view has changed')
        self._waiting = []

    def on_link_ready(self, link):
        if self._snapshot_id and not self._receiver.is_whole():
            self._pull_from(link)

    def on_data(self, data, payload):
        if self._snapshot_id and data.snapshot_id == self._snapshot_id:
            self._receiver.accept(data, payload, self._context.actions)

    def on_pull_refused(self, snapshot_id, reason):
        """A shard does not have the snapshot, or no longer has it."""
        if self._snapshot_id != snapshot_id or self._receiver.is_whole():
            return
        for asked in [a for a in self._waiting if a[0].snapshot_id == self._snapshot_id]:
            self._fail(asked, reason)
            self._waiting.remove(asked)
        self._snapshot_id = 0

    def on_evaluated(self, compute, result):
        asked = self._running.pop(compute, None)
        if asked is None:
            return
        answer = self._answer(asked)
        if result.error:
            answer.error = result.error
        else:
            answer.loss_sum = result.loss_sum
            answer.correct = result.correct
            answer.count = result.samples
        self._results.append(answer)

    def proceed(self, current_version):
        still = []
        for asked in self._waiting:
            request, _ = asked
            if current_version is not None and current_version == request.version:
                self._issue(asked, actions.Buffer.CURRENT)
            elif (self._snapshot_id and self._snapshot_id == request.snapshot_id
                  and self._receiver.is_whole()):
                self._issue(asked, actions.Buffer.EVALUATION)
            else:
                still.append(asked)
        self._waiting = still
        # The buffer is free for another snapshot once no evaluation reads or waits for the
        # current one.
        wanted = self._snapshot_id and any(
            request.snapshot_id == self._snapshot_id for request, _ in still)
        if still and not wanted and not self._running:
            self._start_pull(still[0][0].snapshot_id)

    def take_results(self):
        results, self._results = self._results, []
        return results

    def _issue(self, asked, buffer):
        request, _ = asked
        compute = self._context.new_compute()
        self._running[compute] = asked
        self._context.actions.append(actions.EvaluateSamples(
            compute, buffer, request.samples.begin, request.samples.end))

    @staticmethod
    def _answer(asked):
        request, attempt = asked
        return wire.EvaluationResult(
            evaluation=request.evaluation, samples=request.samples,
            name=wire.CheckpointRef(attempt=attempt, step=request.version))

    def _fail(self, asked, reason):
        answer = self._answer(asked)
        answer.error = reason
        self._results.append(answer)

    def _start_pull(self, snapshot_id):
        self._snapshot_id = snapshot_id
        self._receiver.reset(self._context.index)
        for link in self._context.links.values():
            if link.ready:
                self._pull_from(link)

    def _pull_from(self, link):
        partitions = []
        for partition in self._context.owned.get(link.id, ()):
            if not self._receiver.is_whole(partition):
                self._receiver.forget_partial(partition)
                partitions.append(partition)
        if partitions:
            header = wire.Header(
                pull=wire.Pull(snapshot_id=self._snapshot_id, partitions=partitions))
            self._context.send(link, header)
