"""A worker's part of asynchronous and bounded-staleness training.

  Lease -> Pull -> compute (meanwhile PermitRequest -> Permit) -> Push -> Staged by all shards
        -> Apply, then the next Pull -> Applied by all shards -> next update

The update is kept until every shard has applied it; in a new view it starts again from its permit,
with the same clock. See services/worker/core/asynchronous_worker.h.
"""

import math

from sluice.protocol import actions
from sluice.protocol import gradients as gradients_lib
from sluice.protocol import push as push_lib
from sluice.protocol import receive
from sluice.protocol import times as times_lib
from sluice.protocol import wire

_LEASE_SECONDS = 30
_WHOLE_UPDATE = (0, 1)


class _Update:

    def __init__(self, table, clock, begin, end, base_version, started):
        self.clock = clock
        self.begin = begin
        self.end = end
        self.base_version = base_version
        self.started = started
        self.gradients = gradients_lib.StepGradients(table, tree=False)
        self.computing = None
        self.result = None
        self.begin_in_view()

    def begin_in_view(self):
        self.permit_asked = False
        self.permit = None
        self.bare_sent = set()  # shards without content; on the current stream
        self.staged = set()
        self.norms = {}  # partition -> Norms.PartitionNorm, if gradients are clipped or skipped
        self.apply_sent = set()  # on the current stream
        self.applied = set()


class AsynchronousWorker:

    def __init__(self, context):
        self._context = context
        self._clock = 0  # the highest clock that was applied, or to which it was raised
        self._lease = (0, 0)  # the rest of the lease after the update in progress
        self._lease_asked = False
        self._done = False  # no samples are left, and no worker has a lease
        self._update = None
        self._push = push_lib.PushSender(context)
        self._fresh = False  # the current buffer is for the next update
        self._base_version = 0
        self._pulling = False
        self._incoming = receive.VersionReceiver(actions.Buffer.INCOMING)
        self._pull_sent = set()  # on the current stream
        self._pull_request = 0
        self._counted = None  # the arbiter's answer to the current pull
        self._times = times_lib.StepTimes()  # of the update in progress and the pull after it
        self._samples_per_second = 0.0  # 0: not known yet

    def _is_bounded(self):
        return self._context.view.mode == wire.BOUNDED_STALENESS

    def current_version(self):
        return None  # unknown

    def step(self):
        return self._clock

    def is_finished(self):
        return self._done

    # ---- views and streams

    def on_view(self, old):
        self._push.stop()
        self._lease_asked = False
        self._done = False
        self._pulling = False
        self._pull_sent = set()
        self._counted = None
        self._times = times_lib.StepTimes()

        same_attempt = old is not None and old.id.attempt == self._context.view.id.attempt
        if not same_attempt or not self._context.member:
            # Restored: leases and computed gradients belong to another history.
            self._push.encoder.reset()
            if self._update is not None:
                if self._update.computing is not None:
                    self._context.actions.append(actions.CancelCompute(self._update.computing))
                self._context.count_recomputed(self._update.end - self._update.begin)
                self._clock = max(self._clock, self._update.clock)  # a clock is never used twice
            self._update = None
            self._lease = (0, 0)
            self._fresh = False

        if self._update is not None:
            self._update.begin_in_view()
            if self._update.computing is None:
                self._times.computed = self._context.now

    def on_link_ready(self, link):
        if not self._context.member:
            return
        update = self._update
        if link.id == self._context.arbiter():
            self._lease_asked = False
            if update is not None and update.permit is None:
                update.permit_asked = False
        if update is not None and link.id not in update.applied:
            update.apply_sent.discard(link.id)
            if link.id not in update.staged:
                update.bare_sent.discard(link.id)
                self._push.send_again(link.id)
        self._pull_sent.discard(link.id)

    # ---- work after each event

    def adopt(self):
        context = self._context
        if not context.member or not self._pulling or self._update is not None:
            return
        if not self._incoming.is_whole() or context.outstanding or not context.adoptable:
            return
        self._base_version = self._incoming.version(0)
        context.actions.append(actions.AdoptVersion(self._base_version))
        self._times.add_to(context.progress)
        self._times = times_lib.StepTimes()
        self._pulling = False
        self._fresh = True

    def proceed(self):
        if not self._context.member:
            return
        arbiter = self._context.ready_link(self._context.arbiter())
        has_lease = self._lease[0] < self._lease[1]

        if self._update is None and self._fresh and has_lease:
            self._start_update()
        if self._update is not None:
            if arbiter is not None:
                self._ask_for_permit(arbiter)
            self._send_update()
            self._send_applies()
            self._note_given()

        if arbiter is not None:
            self._ask_for_lease(arbiter)

        may_pull = not self._is_bounded() or self._lease[0] < self._lease[1]
        if self._update is None and not self._fresh and not self._pulling and may_pull:
            self._begin_pull()
        if self._pulling and may_pull:
            self._send_pulls()

    # ---- leases

    def _ask_for_lease(self, arbiter):
        if self._lease_asked or self._done or self._lease[0] < self._lease[1]:
            return
        # The update in progress is part of the old lease until all shards have applied it: the
        # clock in a worker's request tells them its progress (R13).
        if self._update is not None and (len(self._context.view.shards) > 1 or
                                         not self._update.apply_sent):
            return
        self._lease_asked = True
        clock = self._clock if self._update is None else self._update.clock
        request = wire.LeaseRequest(clock=clock, samples=self._samples_wished())
        self._context.send(arbiter, wire.Header(lease_request=request))

    def _samples_wished(self):
        batch = self._context.batch_size()
        return max(1, int(self._samples_per_second * _LEASE_SECONDS / batch)) * batch

    def _on_lease(self, lease):
        if not self._lease_asked or self._lease[0] < self._lease[1]:
            return
        if lease.done:
            self._lease_asked = False
            self._done = True
        # `wait`: the shard will answer the same request again.
        if lease.samples.begin >= lease.samples.end:
            return
        self._lease_asked = False
        self._lease = (lease.samples.begin, lease.samples.end)
        self._clock = max(self._clock, lease.clock)

    # ---- an update

    def _start_update(self):
        training = self._context.job.training
        begin, end = self._lease[0], min(self._lease[1],
                                         self._lease[0] + self._context.batch_size())
        self._update = _Update(self._context.table, self._clock + 1, begin, end,
                               self._base_version, self._context.now)
        self._lease = (end, self._lease[1])
        self._fresh = False
        self._update.gradients.assign([_WHOLE_UPDATE])
        self._update.computing = self._context.new_compute()
        self._context.actions.append(actions.Compute(
            self._update.computing, begin, 0, training.microbatch_size, begin, end))

    def _ask_for_permit(self, arbiter):
        update = self._update
        if update.permit is not None or update.permit_asked:
            return
        update.permit_asked = True
        request = wire.PermitRequest(clock=update.clock, base_version=update.base_version)
        self._context.send(arbiter, wire.Header(permit_request=request))

    def _make_apply(self):
        update = self._update
        norms = [update.norms[partition] for partition in sorted(update.norms)]
        return wire.Apply(
            clock=update.clock, samples=wire.Range(begin=update.begin, end=update.end),
            ordinal=update.permit.ordinal, staleness=update.permit.staleness,
            pull_next=not self._is_bounded(), square_sum=sum(norm.square_sum for norm in norms),
            non_finite=any(norm.non_finite for norm in norms))

    def _send_update(self):
        update = self._update
        if update.permit is None:
            return

        if not self._push.active:
            samples = update.end - update.begin
            microbatch = max(1, self._context.job.training.microbatch_size)
            common = push_lib.Common(clock=update.clock, samples=samples,
                                     microbatches=-(-samples // microbatch),
                                     ordinal=update.permit.ordinal)
            if len(self._context.view.shards) == 1 and len(self._context.owned) == 1:
                common.apply = self._make_apply()
            self._push.start(update.gradients, common)

        self._push.flush()
        if self._push.common.apply is None:
            self._push_to_others()
            return

        if update.computing is not None:
            return
        only = next(iter(self._context.owned))
        if self._context.ready_link(only) is None or not self._push.all_sent_to(only):
            return
        if only in update.apply_sent:
            return

        update.apply_sent.add(only)
        if not self._pulling:
            self._begin_pull()
        if not self._is_bounded():
            self._pull_sent.add(only)

    def _shards(self):
        return [shard.process.incarnation for shard in self._context.view.shards]

    def _push_to_others(self):
        """Stages the update on shards without content, because they record every update, too."""
        update = self._update
        for shard in self._shards():
            link = self._context.ready_link(shard)
            if link is None or shard in self._context.owned or shard in update.bare_sent:
                continue
            update.bare_sent.add(shard)
            self._context.send(link, wire.Header(push=wire.Push(clock=update.clock)))

    def _all_staged(self):
        update = self._update
        return all(shard in update.staged or shard in update.applied for shard in self._shards())

    def _send_applies(self):
        update = self._update
        if not self._push.active or self._push.common.apply is not None:
            return
        if update.computing is not None or not self._all_staged():
            return
        for shard in self._shards():
            link = self._context.ready_link(shard)
            if link is None or shard in update.applied or shard in update.apply_sent:
                continue
            update.apply_sent.add(shard)
            if not self._pulling:
                self._begin_pull()
            self._context.send(link, wire.Header(apply=self._make_apply()))
            if not self._is_bounded():
                self._pull_sent.add(shard)

    def _note_given(self):
        """Whether the update and its Apply were given to every shard's stream."""
        update, times = self._update, self._times
        if update.computing is not None or times.given != math.inf or self._context.queued_bytes():
            return
        if all(shard in update.apply_sent for shard in self._shards()):
            times.given = self._context.now

    def _on_applied(self, link, applied):
        update = self._update
        if update is None or applied.clock < update.clock:
            return
        update.applied.add(link.id)
        everywhere = all(shard in update.applied for shard in self._shards())
        # Before this view's first permit, the arbiter knows the clock from the Install, and an
        # update that one shard applied was applied by all.
        if everywhere or (update.permit is None and link.id == self._context.arbiter()):
            self._finish_update()

    def _finish_update(self):
        update = self._update
        self._times.on_answered(self._context.now, self._context.sent_at)

        samples = update.end - update.begin
        seconds = self._context.now - update.started
        if seconds > 0:
            speed = samples / seconds
            known = self._samples_per_second
            self._samples_per_second = 0.8 * known + 0.2 * speed if known else speed

        progress = self._context.progress
        step = progress.steps.add(step=update.clock, samples=samples)
        if update.result is not None:
            step.loss_sum = update.result.loss_sum
            step.correct = update.result.correct
            progress.data_seconds += update.result.data_seconds
            progress.compute_seconds += update.result.compute_seconds

        if update.permit is not None:
            step.staleness = update.permit.staleness
        self._context.samples_sent += samples

        self._clock = max(self._clock, update.clock)
        if update.computing is not None:
            self._context.actions.append(actions.CancelCompute(update.computing))
        self._update = None
        self._push.encoder.commit()
        self._push.stop()

    def on_tensor(self, compute, tensor, gradient):
        update = self._update
        if update is None or update.computing != compute:
            return
        partial_sum = update.gradients.resolve(_WHOLE_UPDATE, tensor, gradient)
        if partial_sum is not None:
            self._push.on_resolved(partial_sum, tensor)

    def on_computed(self, compute, result):
        update = self._update
        if update is None or update.computing != compute:
            return
        for tensor in range(len(self._context.table.tensors)):
            self.on_tensor(compute, tensor, None)
        update.computing = None
        update.result = result
        self._times.computed = self._context.now

    # ---- parameters

    def _begin_pull(self):
        self._pulling = True
        self._pull_sent = set()
        self._counted = None
        self._pull_request += 1
        self._incoming.reset(self._context.index)

    def _send_pulls(self):
        for shard in self._context.owned:
            link = self._context.ready_link(shard)
            if link is None or shard in self._pull_sent:
                continue
            # After the Apply, so that the result includes the worker's own update.
            if self._update is not None and shard not in self._update.apply_sent:
                continue
            first = not self._is_bounded() or shard == self._context.arbiter()
            if not first and self._counted is None:
                continue
            self._pull_sent.add(shard)
            self._pull_from(link)

    def _pull_from(self, link):
        clock = self._clock if self._update is None else max(self._clock, self._update.clock)
        pull = wire.Pull(clock=clock, request=self._pull_request)
        for partition in self._context.owned[link.id]:
            if not self._incoming.is_whole(partition):
                self._incoming.forget_partial(partition)
                pull.partitions.append(partition)
        if link.id != self._context.arbiter() and self._counted is not None:
            pull.counted.extend(self._counted.counted)
            pull.counted_from.extend(self._counted.counted_from)
        if pull.partitions:
            self._context.send(link, wire.Header(pull=pull))

    def on_frame(self, link, header, payload):
        if not self._context.member:
            return

        body = header.WhichOneof('body')
        if body == 'data':
            if self._pulling:
                self._incoming.accept(header.data, payload, self._context.actions)
                self._context.count_pulled(header.data, payload)
                self._times.on_data(self._context.now, self._context.sent_at)
                if self._incoming.is_whole():
                    self._times.whole = self._context.now
        elif body == 'pull_answer':
            if header.pull_answer.request == self._pull_request:
                self._counted = header.pull_answer
        elif body == 'lease':
            self._on_lease(header.lease)
        elif body == 'permit':
            if self._update is not None and header.permit.clock == self._update.clock:
                self._update.permit = header.permit
        elif body == 'staged':
            if self._update is not None and header.staged.clock == self._update.clock:
                self._update.staged.add(link.id)
                for norm in header.staged.norms:
                    self._update.norms[norm.partition] = norm
        elif body == 'applied':
            self._on_applied(link, header.applied)
