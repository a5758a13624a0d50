"""The worker's part of the protocol: what it sends and when, what it keeps and what it drops.

Intuition: services/worker/core/worker_core.h. A worker is defined by what it *holds* and what the
view *wants* from it. After every event it sends what is wanted, held and not yet sent on this
stream in this view, and computes what is wanted and not held.

Pure: events and the time in, actions out (actions.py). One thread at a time.
"""

import dataclasses
import math

from sluice.protocol import actions
from sluice.protocol import asynchronous
from sluice.protocol import context as context_lib
from sluice.protocol import elements
from sluice.protocol import evaluation
from sluice.protocol import init_pusher
from sluice.protocol import layout as layout_lib
from sluice.protocol import links
from sluice.protocol import sequence
from sluice.protocol import synchronous
from sluice.protocol import wire

_PROGRESS_PAUSE = 0.05
_DEFAULT_HEARTBEAT = 0.5


@dataclasses.dataclass
class Options:
    process: object  # ProcessId: role WORKER, index, and the incarnation of this instance
    job: str         # "<namespace>/<name>/<uid>"
    host: str = ''
    pid: int = 0
    wire_version: int = wire.WIRE_VERSION  # the newest and the oldest that it supports
    oldest_wire_version: int = wire.OLDEST_WIRE_VERSION


@dataclasses.dataclass
class ComputeResult:
    """The result of one Compute or EvaluateSamples."""
    samples: int = 0
    loss_sum: float = 0.0
    correct: float = 0.0
    data_seconds: float = 0.0
    compute_seconds: float = 0.0
    error: str = ''  # not empty: the model or the data failed, and so does the job
    cancelled: bool = False


def _check_view(view, layout):
    if len(view.owner) != layout.partitions:
        raise ValueError(f'view {wire.short_name(view.id)} maps {len(view.owner)} partitions, the '
                         f'layout has {layout.partitions}')
    for owner in view.owner:
        if owner >= len(view.shards):
            raise ValueError(f'view {wire.short_name(view.id)} has no shard {owner}')


class WorkerCore:

    def __init__(self, options):
        self._options = options
        self._wire_version = options.wire_version  # with which it registers
        self._context = context_lib.WorkerContext(options.process.incarnation)
        self._evaluations = evaluation.EvaluationQueue(self._context)
        self._init_pusher = init_pusher.InitPusher(self._context)
        self._modes = {}  # key: whether the mode is synchronous
        self._mode = None  # the one of the view

        self._connected = False   # to the coordinator
        self._registered = False  # on this stream
        self._opening = False
        self._ready = None
        self._was_member = False
        self._exited = False
        self._leave_reason = None
        self._leave_until = math.inf
        self._heartbeats = 0
        self._next_heartbeat = math.inf
        self._next_progress = -math.inf

    # ---- for the log, tests and progress displays

    @property
    def view(self):
        """The newest known view, or None."""
        return self._context.view

    @property
    def member(self):
        return self._context.member

    @property
    def job(self):
        return self._context.job

    @property
    def step(self):
        """Synchronous: the version in use; asynchronous: the last clock applied."""
        return 0 if self._mode is None else self._mode.step()

    @property
    def training_is_done(self):
        """Whether nothing is left to compute, unless a view change brings work back."""
        return self._mode is not None and self._context.plan is not None and (
            self._mode.is_finished())

    # ---- events

    def on_coordinator_connected(self, now):
        return self._handle(now, self._coordinator_connected)

    def on_coordinator_broken(self, now):
        return self._handle(now, self._coordinator_broken)

    def on_coordinator_message(self, message, now):
        return self._handle(now, self._coordinator_message, message)

    def on_shard_connected(self, shard, now):
        return self._handle(now, self._shard_connected, shard)

    def on_shard_broken(self, shard, now):
        return self._handle(now, self._shard_broken, shard)

    def on_shard_frame(self, shard, header, payload, now):
        return self.on_shard_frames(shard, [(header, payload)], now)

    def on_shard_frames(self, shard, frames, now):
        """[(header, payload)] that arrived together on one stream, in order."""
        return self._handle(now, self._shard_frames, shard, frames)

    def on_sent(self, at):
        """At time `at`, everything given with SendFrame had been passed to the system.

        Only used for the timing of a step. May be called late, with the next event, or not at all.
        """
        self._context.sent_at = max(self._context.sent_at, at)

    def on_model_ready(self, table, training_samples, evaluation_samples, now):
        return self._handle(now, self._model_ready, table, training_samples, evaluation_samples)

    def on_failed(self, reason, now):
        """The model, the data or the user's program failed, and so does the job."""
        return self._handle(now, self._fail, reason)

    def on_initial_tensor(self, init_id, tensor, content, now):
        return self._handle(now, self._initial_tensor, init_id, tensor, content)

    def on_tensor(self, compute, tensor, gradient, now):
        """A gradient of the Compute in progress: a flat array in storage type, or None for no
        gradient.

        Its memory must not change while it is referenced. For a buffer it is the buffer's change.
        """
        return self.on_tensors(compute, [(tensor, gradient)], now)

    def on_tensors(self, compute, gradients, now):
        """[(tensor, gradient)], which are sent together if possible."""
        return self._handle(now, self._tensors, compute, gradients)

    def on_computed(self, compute, result, now):
        return self._handle(now, self._computed, compute, result)

    def on_evaluated(self, compute, result, now):
        return self._handle(now, self._evaluated, compute, result)

    def on_adoptable(self, adoptable, now):
        """Sets whether AdoptVersion may be given from now on."""
        return self._handle(now, self._adoptable, adoptable)

    def on_leave(self, reason, grace, now):
        """Continues until a view without this worker, at most `grace` seconds, then exits."""
        return self._handle(now, self._leave, reason, grace)

    def on_tick(self, now):
        """Call this at next_deadline() at the latest; earlier calls are harmless."""
        return self._handle(now, lambda: None)

    def next_deadline(self):
        if self._exited:
            return math.inf
        deadlines = [self._leave_until]
        deadlines += [link.next_deadline() for link in self._context.links.values()]
        if self._registered:
            deadlines.append(self._next_heartbeat)
            if self._context.progress.steps:
                deadlines.append(self._next_progress)
        return min(deadlines)

    # ---- before and after every event

    def _handle(self, now, event, *arguments):
        if self._exited:
            return []
        self._context.now = now
        event(*arguments)
        if not self._exited:
            self._proceed()
        out, self._context.actions = self._context.actions, []
        return out

    def _proceed(self):
        context = self._context
        for link in context.links.values():
            link.tick(context.now, context.actions)

        if self._mode is not None and context.plan is not None:
            self._mode.adopt()
            self._evaluations.proceed(self._mode.current_version())
            self._mode.proceed()

        if self._registered:
            for result in self._evaluations.take_results():
                self._tell(evaluation_result=result)
        if context.now >= self._next_progress:
            self._send_progress()

        if self._registered and context.now >= self._next_heartbeat:
            self._heartbeats += 1
            self._tell(heartbeat=wire.Heartbeat(sequence=self._heartbeats))
            pause = context.job.timeouts.heartbeat
            self._next_heartbeat = context.now + (pause if pause > 0 else _DEFAULT_HEARTBEAT)

        if context.now >= self._leave_until:
            self._exit(actions.ExitReason.LEFT, self._leave_reason)

    def _exit(self, reason, message, code=0):
        if self._exited:
            return
        self._exited = True
        for link in self._context.links.values():
            link.close('the worker exits', self._context.actions)
        self._context.links = {}
        self._context.actions.append(actions.Exit(reason, message, code))

    def _fail(self, reason):
        self._tell(failure=wire.Failure(reason=reason))
        self._exit(actions.ExitReason.FAILED, reason)

    # ---- coordinator

    def _tell(self, **body):
        if self._connected:
            message = wire.MemberMessage(**body)
            self._context.actions.append(actions.SendToCoordinator(message))

    def _coordinator_connected(self):
        self._connected = True
        self._registered = False
        request = wire.Register(
            process=self._options.process, job=self._options.job, host=self._options.host,
            pid=self._options.pid, wire_version=self._wire_version)
        if self._context.view is not None:
            request.newest_view.CopyFrom(self._context.view.id)
        self._tell(register=request)

    def _coordinator_broken(self):
        self._connected = self._registered = False

    def _coordinator_message(self, message):
        if not self._connected:
            return
        body = message.WhichOneof('body')
        if body == 'registered':
            self._on_registered(message.registered)
        elif body == 'refusal':
            self._on_refusal(message.refusal)
        elif body == 'initialize':
            self._on_initialize(message.initialize)
        elif body == 'new_view':
            self._on_new_view(message.new_view)
        elif body == 'evaluate':
            self._evaluations.add(message.evaluate)
        elif body == 'finish':
            self._on_finish(message.finish)
        elif body == 'heartbeat_reply':
            self._context.told_batch_size = message.heartbeat_reply.batch_size
        # Other messages are for shards, or from a later version.

    def _on_registered(self, registered):
        self._registered = True
        self._next_heartbeat = self._context.now
        if not self._opening:
            self._opening = True
            self._context.job.CopyFrom(registered.job)
            if registered.job.training.dense.aggregation != 0:
                # The other workers would wait for its gradients.
                self._exit(actions.ExitReason.REFUSED,
                           'dense: {aggregation: AllReduce} is for the workers of Sluice itself')
                return
            self._context.actions.append(actions.OpenModel(self._context.job))
        self._send_ready()
        self._send_leave()

    def _on_refusal(self, refusal):
        reason = actions.ExitReason.REFUSED
        if (refusal.code == wire.Refusal_WIRE_VERSION and
                self._wire_version > self._options.oldest_wire_version):
            # The coordinator closes the stream; the next one starts with an older version.
            self._wire_version -= 1
            return
        if refusal.code == wire.Refusal_FINISHED:
            reason = actions.ExitReason.FINISHED
        elif refusal.code in (wire.Refusal_EXPELLED, wire.Refusal_DUPLICATE):
            reason = (actions.ExitReason.LEFT if self._leave_reason is not None else
                      actions.ExitReason.EXPELLED)
        self._exit(reason, refusal.reason, refusal.code)

    def _on_finish(self, finish):
        self._send_progress()
        self._tell(leave=wire.Leave(reason='the job has ended'))
        self._exit(actions.ExitReason.FINISHED if finish.succeeded else actions.ExitReason.FAILED,
                   finish.reason)

    def _set_layout(self, table, layout):
        layout_lib.validate_layout(table, layout)
        self._context.table = table
        self._context.layout = layout
        self._context.index = layout_lib.LayoutIndex(table, layout)

    def _on_initialize(self, initialize):
        view = self._context.view
        if view is not None and initialize.init_id.attempt <= view.id.attempt:
            return
        try:
            if len(initialize.owner) != initialize.layout.partitions or any(
                    owner >= len(initialize.shards) for owner in initialize.owner):
                raise ValueError('an initialization without an owner for each partition')
            self._set_layout(initialize.table, initialize.layout)
        except ValueError as error:
            self._fail(str(error))
            return
        if self._init_pusher.start(initialize):
            self._update_links()

    def _initial_tensor(self, init_id, tensor, content):
        if self._context.table is None or tensor >= len(self._context.table.tensors):
            return
        if self._size_fits(tensor, content):
            self._init_pusher.on_initial_tensor(init_id, tensor, content)
        else:
            self._fail_size('tensor', tensor, content)

    def _size_fits(self, tensor, content):
        spec = self._context.table.tensors[tensor]
        return (content.dtype == elements.STORAGE[spec.dtype] and
                content.size == elements.element_count(spec))

    def _fail_size(self, what, tensor, content):
        spec = self._context.table.tensors[tensor]
        self._fail(f'{what} {spec.name} has {content.size} elements of {content.dtype}, which does '
                   f'not fit its shape {list(spec.shape)} of {elements.NAMES[spec.dtype]}')

    def _on_new_view(self, message):
        try:
            if message.layout.partitions and self._context.index is None:
                self._set_layout(message.table, message.layout)
        except ValueError as error:
            self._fail(str(error))
            return
        if message.HasField('view'):
            self._adopt(message.view)

    # ---- views

    def _adopt(self, view):
        context = self._context
        if context.index is None:
            return  # the coordinator sends view and layout together
        if context.view is not None and wire.view_key(view.id) <= wire.view_key(context.view.id):
            return

        try:
            _check_view(view, context.layout)
        except ValueError as error:
            self._fail(str(error))
            return

        old, context.view = context.view, view
        self._init_pusher.stop()
        self._read_view()
        self._update_links()

        # The job continues without this instance: it was expelled, or may leave. A view without
        # members means that training ends: the previous members wait for Finish.
        left_out = self._was_member and not context.member
        if left_out and (view.workers or self._leave_reason is not None):
            self._exit(
                actions.ExitReason.LEFT if self._leave_reason is not None else
                actions.ExitReason.EXPELLED,
                f'view {wire.short_name(view.id)} is without this worker')
            return

        self._was_member = self._was_member or context.member
        self._choose_mode(old)
        self._mode.on_view(old)
        self._evaluations.on_view(old is not None and old.id.attempt == view.id.attempt)

    def _choose_mode(self, old):
        """An attempt may continue in another mode than the previous one."""
        context = self._context
        is_synchronous = context.view.mode == wire.SYNCHRONOUS
        wanted = self._modes.get(is_synchronous)
        if self._mode is not None and self._mode is not wanted:
            # Work in progress belongs to the older attempt.
            member, context.member = context.member, False
            self._mode.on_view(old)
            context.member = member
        if wanted is None:
            make = (synchronous.SynchronousWorker if is_synchronous else
                    asynchronous.AsynchronousWorker)
            wanted = self._modes[is_synchronous] = make(context)
        self._mode = wanted

    def _read_view(self):
        context = self._context
        view = context.view
        context.member = False
        context.assignment = []
        for member in view.workers:
            if member.process.incarnation == context.incarnation:
                context.member = True
                context.assignment += [(r.begin, r.end) for r in member.microbatches]
        owned = {}
        incarnations = [shard.process.incarnation for shard in view.shards]
        for partition, owner in enumerate(view.owner):
            if not context.index.is_empty(partition):
                owned.setdefault(incarnations[owner], []).append(partition)
        # In the same order as C++, so that both act in the same order.
        context.owned = {shard: owned[shard] for shard in sorted(owned)}

    def _update_links(self):
        context = self._context
        wanted = {}
        if self._init_pusher.active:
            shards = self._init_pusher.initialize.shards
            wanted.update((s.process.incarnation, s.address) for s in shards)
        if context.may_evaluate():
            wanted.update((s.process.incarnation, s.address) for s in context.view.shards)
        for shard, link in list(context.links.items()):
            link.drop_queue()  # it is of an older view
            if shard not in wanted:
                link.close('the shard is not in the view', context.actions)
                del context.links[shard]
        for shard, address in wanted.items():
            if shard not in context.links:
                context.links[shard] = links.ShardLink(shard, address, context.now)
        context.links = {shard: context.links[shard] for shard in sorted(context.links)}

    # ---- shards

    def _shard_connected(self, shard):
        link = self._context.links.get(shard)
        if link is None:
            return
        header = wire.Header(hello=wire.Hello(
            min_wire_version=wire.OLDEST_WIRE_VERSION, max_wire_version=wire.WIRE_VERSION,
            job=self._options.job, sender=self._options.process, shard_incarnation=shard))
        if self._context.view is not None:
            header.view.CopyFrom(self._context.view.id)
        link.on_connected(header, self._context.actions)

    def _shard_broken(self, shard):
        link = self._context.links.get(shard)
        if link is not None:
            link.on_broken(self._context.now)

    def _shard_frames(self, shard, frames):
        link = self._context.links.get(shard)
        for header, payload in frames:
            # A frame may end this link, or all of them.
            if self._exited or link is None or self._context.links.get(shard) is not link:
                return
            try:
                self._frame(link, header, payload)
            except context_lib.ContractError as error:
                if not self._exited and self._context.links.get(shard) is link:
                    link.reset(str(error), self._context.now, self._context.actions)
                return

    def _frame(self, link, header, payload):
        body = header.WhichOneof('body')
        if body == 'hello_reply':
            if not link.on_hello_reply(header.hello_reply):
                raise context_lib.ContractError('an unexpected HelloReply')
            self._link_ready(link)
        elif body == 'credit':
            link.on_credit(header.credit.bytes, self._context.actions)
        elif body == 'refused':
            self._on_refused(header.refused)
        elif body == 'initialized':
            self._init_pusher.on_initialized(link, header.initialized)
        elif self._mode is None or header.view != self._context.view.id:
            pass  # data of another view
        elif body == 'data' and header.data.snapshot_id:
            self._evaluations.on_data(header.data, payload)
        else:
            self._mode.on_frame(link, header, payload)

    def _link_ready(self, link):
        self._init_pusher.on_link_ready(link)
        if self._mode is None:
            return
        if self._context.member:
            self._mode.on_link_ready(link)
        if self._context.may_evaluate():
            self._evaluations.on_link_ready(link)

    def _on_refused(self, refused):
        view = self._context.view
        if view is None or wire.view_key(refused.newest.id) > wire.view_key(view.id):
            self._adopt(refused.newest)
        elif refused.snapshot_id:
            self._evaluations.on_pull_refused(refused.snapshot_id, refused.reason)

    # ---- model and compute

    def _model_ready(self, table, training_samples, evaluation_samples):
        training = self._context.job.training
        try:
            layout_lib.validate_table(table)
            self._context.plan = sequence.StepSchedule(
                training_samples, training.global_batch_size, training.microbatch_size)
        except ValueError as error:
            self._fail(str(error))
            return
        self._ready = wire.Ready(table=table, training_samples=training_samples,
                                 evaluation_samples=evaluation_samples)
        self._send_ready()

    def _send_ready(self):
        if self._registered and self._ready is not None:
            self._tell(ready=self._ready)

    def _tensors(self, compute, gradients):
        if self._mode is None or compute not in self._context.outstanding:
            return
        for tensor, gradient in gradients:
            if tensor >= len(self._context.table.tensors):
                continue
            if gradient is not None and not self._size_fits(tensor, gradient):
                self._fail_size('the gradient of', tensor, gradient)
                return
            self._mode.on_tensor(compute, tensor, gradient)

    def _computed(self, compute, result):
        if compute not in self._context.outstanding or self._mode is None:
            return
        self._context.outstanding.discard(compute)
        if result.error:
            self._fail(result.error)
        else:
            self._mode.on_computed(compute, result)

    def _evaluated(self, compute, result):
        if compute in self._context.outstanding:
            self._context.outstanding.discard(compute)
            self._evaluations.on_evaluated(compute, result)

    def _adoptable(self, adoptable):
        self._context.adoptable = adoptable

    # ---- leaving and progress

    def _leave(self, reason, grace):
        if self._leave_reason is not None:
            return
        self._leave_reason = reason
        self._leave_until = self._context.now + grace
        self._send_leave()
        if not self._context.member:
            self._exit(actions.ExitReason.LEFT, reason)

    def _send_leave(self):
        if self._leave_reason is not None:
            self._tell(leave=wire.Leave(reason=self._leave_reason))

    def _send_progress(self):
        progress = self._context.progress
        if not self._registered or not (
                progress.steps or progress.recomputed_samples or progress.owing):
            return
        progress.view.CopyFrom(self._context.view.id)
        self._tell(worker_progress=progress)
        self._context.progress = wire.WorkerProgress()
        self._next_progress = self._context.now + _PROGRESS_PAUSE
