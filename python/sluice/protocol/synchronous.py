"""A worker's part of synchronous training (services/worker/core/synchronous_worker.h).

  no current version --Pull(m)--> incoming m whole --adopt--> current s
  current s --compute, Push(s, pull_next)--> incoming s + 1 whole --adopt--> current s + 1
  stragglers dropped: what comes in is above s + 1 --Pull--> no current version, incoming that
  new view (m): current stays if it is m; what came in of m stays; everything else is dropped (R9)
"""

import math

from sluice.protocol import actions
from sluice.protocol import gradients as gradients_lib
from sluice.protocol import intervals
from sluice.protocol import push as push_lib
from sluice.protocol import receive
from sluice.protocol import times as times_lib
from sluice.protocol import wire


class SynchronousWorker:

    def __init__(self, context):
        self._context = context
        self._tree = context.job.training.bit_exact
        self._has_current = False
        self._step = 0  # the current version, or the one that is being pulled to become it
        self._incoming = receive.VersionReceiver(actions.Buffer.INCOMING)
        self._incoming_version = 0
        self._assigned = False
        self._gradients = None
        self._computing = {}
        self._results = {}  # of the partial sums that are held, by first microbatch
        self._push = push_lib.PushSender(context)
        self._times = times_lib.StepTimes()  # of the step in progress
        self._owed_since = math.inf  # since when it has only waited for data
        # The microbatches of the furthest step that were begun; computing them again is waste.
        self._begun_step = 0
        self._begun = intervals.IntervalSet()

    def current_version(self):
        return self._step if self._has_current else None

    def step(self):
        return self._step

    def is_finished(self):
        training = self._context.job.training
        last = training.steps or self._context.plan.steps_of_epochs(training.epochs)
        return self._step >= last

    # ---- views and streams

    def on_view(self, old):
        self._settle_residuals(old)
        self._keep_or_drop_versions(old)
        if not self._context.member:
            self._drop_gradients()
            self._push.stop()
            return
        self._owed_since = math.inf if self._has_current else self._context.now
        if self._has_current:
            self._assign()
            return
        self._drop_gradients()
        self._push.stop()
        for link in self._context.links.values():
            if link.ready:
                self._pull_from(link)

    def _settle_residuals(self, old):
        """Called before any state of the new view is adopted."""
        view = self._context.view
        if old is None or old.id.attempt != view.id.attempt:
            self._push.encoder.reset()
        elif self._has_current and view.first_step > self._step:
            # No shard closes a step without each member's contribution, so this worker's is
            # included.
            self._push.encoder.commit()
        else:
            # The shards dropped the sums; the contribution is encoded again, in new partial sums.
            self._push.encoder.rollback()

    def _keep_or_drop_versions(self, old):
        view = self._context.view
        same_attempt = old is not None and old.id.attempt == view.id.attempt
        skipped = not same_attempt or view.previous != old.id
        drop_all = not self._context.member or skipped
        first = view.first_step
        if not drop_all and self._has_current and self._step == first:
            # Received parts of the next version are of the older view.
            self._expect_incoming(self._step + 1)
            return
        keep_incoming = not drop_all and self._incoming_version == first
        self._has_current = False
        self._step = first
        if keep_incoming:
            self._incoming.forget_partial()
        else:
            self._expect_incoming(first)

    def _expect_incoming(self, version):
        self._incoming_version = version
        self._incoming.reset(self._context.index)

    def _drop_gradients(self):
        for compute in self._computing:
            self._context.actions.append(actions.CancelCompute(compute))
        self._computing = {}
        self._results = {}
        self._gradients = None
        self._assigned = False

    def on_link_ready(self, link):
        if not self._context.member or link.id not in self._context.owned:
            return
        for partition in self._context.owned[link.id]:
            self._incoming.forget_partial(partition)
        if self._has_current:
            self._push.send_again(link.id)
        else:
            self._pull_from(link)

    def _skip_to(self, version, partition):
        """This worker's contribution was dropped: it continues at a later version, of which
        `partition` is being received."""
        if self._has_current:
            if self._results:
                self._report_step()
            self._push.encoder.rollback()
        self._drop_gradients()
        self._push.stop()
        self._has_current = False
        self._step = version
        self._owed_since = self._context.now
        self._expect_incoming(version)
        for link in self._context.links.values():
            if link.ready:
                self._pull_from(link, but=partition)

    def _pull_from(self, link, but=None):
        partitions = [partition for partition in self._context.owned.get(link.id, ())
                      if partition != but and not self._incoming.is_whole(partition)]
        if partitions:
            pull = wire.Pull(version=self._incoming_version, partitions=partitions)
            self._context.send(link, wire.Header(pull=pull))

    def on_frame(self, link, header, payload):
        del link
        if header.WhichOneof('body') != 'data' or not self._context.member:
            return

        data = header.data
        stragglers = self._context.job.training.stragglers
        if (stragglers.policy == stragglers.DROP and data.version > self._incoming_version and
                data.partition < self._context.index.partitions):
            self._skip_to(data.version, data.partition)
        if data.version != self._incoming_version:
            return

        self._incoming.accept(data, payload, self._context.actions)
        self._context.count_pulled(data, payload)
        self._times.on_data(self._context.now, self._context.sent_at)
        if self._incoming.is_whole():
            self._times.whole = self._context.now

        if self._owed_since != math.inf:
            self._owed_since = self._context.now
        if self._push.active and self._incoming.is_whole(data.partition):
            self._push.close(data.partition)

    # ---- work after each event

    def adopt(self):
        context = self._context
        if not context.member or not self._incoming.is_whole():
            return
        if context.outstanding or not context.adoptable:
            return
        if self._has_current:
            self._report_step()
            self._push.encoder.commit()
        self._step = self._incoming_version
        self._has_current = True
        self._owed_since = math.inf
        context.actions.append(actions.AdoptVersion(self._step))
        self._drop_gradients()
        self._push.stop()
        self._expect_incoming(self._step + 1)

    def _report_owing(self):
        """Reports the shards whose part of the incoming version is overdue (timeouts.weights)."""
        limit = self._context.job.timeouts.weights
        if limit <= 0 or self._context.now < self._owed_since + limit:
            return
        self._owed_since = self._context.now
        progress = self._context.progress
        del progress.owing[:]
        progress.owed_version = self._incoming_version
        for shard, partitions in sorted(self._context.owned.items()):
            if not all(self._incoming.is_whole(partition) for partition in partitions):
                progress.owing.append(shard)

    def proceed(self):
        if not self._context.member:
            return
        self._report_owing()
        if not self._has_current:
            return
        if not self._assigned and not self.is_finished():
            self._assign()
        self._push.flush()
        if not self._push.active or self._times.given != math.inf or not self._push.all_sent():
            return
        if not self._context.queued_bytes():
            self._times.given = self._context.now
            self._owed_since = self._context.now

    def _assign(self):
        """Computes the microbatches of the assignment that are not held."""
        if self.is_finished():
            return
        if self._gradients is None:
            self._gradients = gradients_lib.StepGradients(self._context.table, self._tree)

        self._assigned = True
        ranges = self._gradients.assign(self._context.assignment)
        for compute, computed in list(self._computing.items()):
            # Microbatches to be computed again were dropped together with this computation's
            # results, so how it ends does not affect what is held.
            if not self._gradients.wants(computed) or computed in ranges:
                self._context.actions.append(actions.CancelCompute(compute))
                del self._computing[compute]

        for computed in ranges:
            self._issue(computed)

        self._times = times_lib.StepTimes()
        if not self._computing:
            self._times.computed = self._context.now
        self._push.start(self._gradients, self._common_of_step())

    def _issue(self, computed):
        begin, end = self._context.plan.positions_of(self._step, *computed)
        if begin == end:
            for tensor in range(len(self._context.table.tensors)):
                self._gradients.resolve(computed, tensor, None)
            return
        self._count_if_recomputed(computed, end - begin)
        compute = self._context.new_compute()
        self._computing[compute] = computed
        self._context.actions.append(actions.Compute(
            compute, self._step, computed[0], self._context.job.training.microbatch_size, begin,
            end))

    def _count_if_recomputed(self, computed, samples):
        if self._step > self._begun_step:
            self._begun = intervals.IntervalSet()
        if self._step < self._begun_step:
            self._context.count_recomputed(samples)
            return
        self._begun_step = self._step
        for microbatch in range(*computed):
            if self._begun.contains_all(microbatch, microbatch + 1):
                begin, end = self._context.plan.positions_of(
                    self._step, microbatch, microbatch + 1)
                self._context.count_recomputed(end - begin)
        self._begun.add(*computed)

    def _common_of_step(self):
        common = push_lib.Common(step=self._step, pull_next=True)
        plan = self._context.plan
        microbatches = plan.microbatches_of_step(self._step)
        for begin, end in self._context.assignment:
            first, last = plan.positions_of(self._step, begin, end)
            common.samples += last - first
            common.microbatches += max(0, min(end, microbatches) - begin)
        return common

    # ---- results

    def on_tensor(self, compute, tensor, gradient):
        computed = self._computing.get(compute)
        if computed is None:
            return
        partial_sum = self._gradients.resolve(computed, tensor, gradient)
        if partial_sum is not None:
            self._push.on_resolved(partial_sum, tensor)

    def on_computed(self, compute, result):
        computed = self._computing.get(compute)
        if computed is None:
            return
        for tensor in range(len(self._context.table.tensors)):
            self.on_tensor(compute, tensor, None)  # tensors that were not reported have no gradient
        self._results[computed[0]] = result
        del self._computing[compute]
        if not self._computing:
            self._times.computed = self._context.now

    def _report_step(self):
        progress = self._context.progress
        step = progress.steps.add(step=self._step)
        for _, result in sorted(self._results.items()):
            step.samples += result.samples
            step.loss_sum += result.loss_sum
            step.correct += result.correct
            progress.data_seconds += result.data_seconds
            progress.compute_seconds += result.compute_seconds
        self._context.samples_sent += step.samples
        self._times.add_to(progress)
