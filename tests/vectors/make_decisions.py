"""Makes decisions.json: runs of a worker in a small random world, and its actions.

    PYTHONPATH=python python3 tests/vectors/make_decisions.py tests/vectors/decisions.json

The world (two shards, a coordinator, a compute thread) loses streams, repeats and reorders messages
as far as the protocol allows, and changes views. The file contains every event of the worker and
every action that followed. The tests compare both cores, C++ and Python, with it, and so with each
other.
"""

import json
import random
import sys

from sluice.protocol import actions
from sluice.protocol import core as core_lib
from sluice.protocol import elements
from sluice.protocol import layout as layout_lib
from sluice.protocol import wire

import numpy as np

_SELF = 100
_OTHER = 101
_SHARDS = (201, 202, 203)
_JOB_NAME = 'default/vectors/1'
_MICROBATCHES = 8
_PARTITIONS = 2


def describe(action):
    """[name, fields...]; messages and payloads as hexadecimal bytes."""
    entry = [type(action).__name__]
    for field, value in vars(action).items():
        if field == 'code':
            continue  # a field that only the Python core has
        if field in ('pieces', 'payload'):
            pieces = value if field == 'pieces' else [value]
            entry.append(b''.join(bytes(piece) for piece in pieces).hex())
        elif hasattr(value, 'SerializeToString'):
            entry.append(value.SerializeToString(deterministic=True).hex())
        else:
            entry.append(value.value if hasattr(value, 'value') else value)
    return entry


def make_table():
    return wire.TensorTable(tensors=[
        wire.TensorSpec(name='a', shape=[2], dtype=wire.FLOAT64),
        wire.TensorSpec(name='b', shape=[1, 2], dtype=wire.FLOAT32),
        wire.TensorSpec(name='running', shape=[1], dtype=wire.FLOAT32, kind=wire.BUFFER),
        wire.TensorSpec(name='count', dtype=wire.INT64, kind=wire.COUNTER),
    ])


class World:

    def __init__(self, name, seed, mode, bit_exact=False, shards=2, push_codec=wire.CODEC_RAW,
                 epochs=0, error_feedback=False, stragglers=False, batch_sizes=()):
        self.random = random.Random(seed)
        self.shards = _SHARDS[:shards]
        self.table = make_table()
        self.layout = layout_lib.make_layout(self.table, _PARTITIONS)
        self.job = wire.JobSpec(name='vectors', namespace='default', uid='1')
        training = self.job.training
        training.mode = mode
        training.global_batch_size = _MICROBATCHES
        training.microbatch_size = 1
        training.bit_exact = bit_exact
        training.push_codec = push_codec
        training.compression.error_feedback = error_feedback
        if stragglers:
            training.stragglers.policy = training.stragglers.DROP
            training.stragglers.backup = 1
            self.job.timeouts.weights = 1.5
        training.steps = 0 if epochs else 1000
        training.epochs = epochs
        self.job.timeouts.heartbeat = 0.5
        self.core = core_lib.WorkerCore(core_lib.Options(
            process=wire.ProcessId(role=wire.WORKER, index=2, incarnation=_SELF), job=_JOB_NAME,
            host='here', pid=7))
        self.life = {'name': name, 'events': []}
        self.now = 0.0
        self.view = None
        self.number = 0
        self.connecting = []
        self.connected = set()
        self.computes = []
        self.evaluations = []
        self.requests = []  # (shard, header) that shards have not answered
        self.version = 3
        self.lease_from = 0
        self.batch_sizes = batch_sizes  # the coordinator sometimes assigns one of them

    # ---- events; each is recorded with the actions that follow

    def event(self, kind, entry=None, **arguments):
        entry = {'event': kind, 'at': self.now, **(entry or {})}
        done = getattr(self.core, 'on_' + kind)(**arguments, now=self.now)
        entry['actions'] = [describe(action) for action in done]
        self.life['events'].append(entry)
        for action in done:
            self.note(action)

    def note(self, action):
        if isinstance(action, actions.ConnectShard):
            self.connecting.append(action.shard)
        elif isinstance(action, actions.DisconnectShard):
            self.forget(action.shard)
        elif isinstance(action, actions.SendFrame):
            self.requests.append((action.shard, action.header))
        elif isinstance(action, actions.Compute):
            self.computes.append(action)
        elif isinstance(action, actions.EvaluateSamples):
            self.evaluations.append(action)
        elif isinstance(action, actions.ReadInitialTensor):
            self.initial(action)

    def forget(self, shard):
        self.connecting = [other for other in self.connecting if other != shard]
        self.connected.discard(shard)
        self.requests = [(other, header) for other, header in self.requests if other != shard]

    def tell(self, **body):
        message = wire.CoordinatorMessage(**body)
        self.event('coordinator_message', {'message': message.SerializeToString().hex()},
                   message=message)

    def frame(self, shard, header, payload=b''):
        if header.WhichOneof('body') not in ('hello_reply', 'initialized') and not header.HasField('view'):
            header.view.CopyFrom(self.view.id)
        self.event('shard_frame', {'shard': shard, 'header': header.SerializeToString().hex(),
                                   'payload': payload.hex()},
                   shard=shard, header=header, payload=memoryview(payload))

    def initial(self, action):
        content = self.values(action.tensor, 1)
        self.event('initial_tensor', {'init_id': action.init_id.SerializeToString().hex(),
                                      'tensor': action.tensor, 'content': content.tobytes().hex()},
                   init_id=action.init_id, tensor=action.tensor, content=content)

    def values(self, tensor, start):
        spec = self.table.tensors[tensor]
        count = elements.element_count(spec)
        return (np.arange(count) * 0.5 + start).astype(elements.STORAGE[spec.dtype])

    # ---- the coordinator

    def begin(self):
        self.event('coordinator_connected')
        self.tell(registered=wire.Registered(job=self.job))
        self.event('model_ready', {'table': self.table.SerializeToString().hex(),
                                   'training_samples': 1000, 'evaluation_samples': 50},
                   table=self.table, training_samples=1000, evaluation_samples=50)

    def initialize(self, number):
        initialize = wire.Initialize(table=self.table, layout=self.layout)
        initialize.init_id.attempt, initialize.init_id.number = 1, number
        for shard in self.shards:
            initialize.shards.add(address=f'host-{shard}').process.incarnation = shard
        initialize.owner.extend(p % len(self.shards) for p in range(_PARTITIONS))
        self.tell(initialize=initialize)

    def change_view(self, first_step, attempt=1, skip=False, member=True, others=True,
                    ranges=None):
        old = self.view
        self.number += 2 if skip else 1
        view = wire.View(mode=self.job.training.mode, first_step=first_step)
        view.id.attempt, view.id.number = attempt, self.number
        view.id.term.counter = 1
        if old is not None:
            view.previous.CopyFrom(old.id)
            if skip:
                view.previous.number += 1
        if ranges is None:
            middle = self.random.randint(0, _MICROBATCHES)
            ranges = [(0, middle), (middle, _MICROBATCHES)]
            self.random.shuffle(ranges)
        for incarnation, (begin, end) in zip((_SELF, _OTHER), ranges):
            if not (member if incarnation == _SELF else others):
                continue
            entry = view.workers.add()
            entry.process.incarnation = incarnation
            if begin < end and view.mode == wire.SYNCHRONOUS:
                entry.microbatches.add(begin=begin, end=end)
        for shard in self.shards:
            view.shards.add(address=f'host-{shard}').process.incarnation = shard
        view.owner.extend(p % len(self.shards) for p in range(_PARTITIONS))
        self.view = view
        self.requests = []
        if old is None or self.random.random() < 0.7:
            self.tell(new_view=wire.NewView(view=view, table=self.table, layout=self.layout))
        elif self.connected:
            shard = self.random.choice(sorted(self.connected))
            header = wire.Header(refused=wire.Refused(newest=view, reason='a new view'))
            self.frame(shard, header)
        else:
            self.tell(new_view=wire.NewView(view=view))

    # ---- shards

    def connect(self):
        shard = self.connecting.pop(self.random.randrange(len(self.connecting)))
        self.connected.add(shard)
        self.event('shard_connected', {'shard': shard}, shard=shard)
        self.frame(shard, wire.Header(hello_reply=wire.HelloReply(window_bytes=1 << 20)))

    def cut_stream(self):
        shard = self.random.choice(sorted(self.connected))
        self.forget(shard)
        self.event('shard_broken', {'shard': shard}, shard=shard)

    def sent(self):
        """All data given to the streams so far was sent between the last event and this one."""
        at = self.now - 0.125
        self.core.on_sent(at)
        self.life['events'].append({'event': 'sent', 'at': at, 'actions': []})

    def answer(self):
        if len(self.requests) % 2 == 1:
            self.sent()
        shard, header = self.requests.pop(0)
        body = header.WhichOneof('body')
        if body == 'pull':
            self.answer_pull(shard, header.pull)
        elif body == 'push':
            self.answer_push(shard, header.push)
        elif body == 'apply':
            self.answer_apply(shard, header.apply)
        elif body == 'lease_request':
            self.give_lease(shard)
        elif body == 'permit_request':
            clock = header.permit_request.clock
            self.frame(shard, wire.Header(permit=wire.Permit(
                clock=clock, ordinal=clock + 40, staleness=clock % 3)))
        elif body == 'init_push' and header.init_push.last:
            self.frame(shard, wire.Header(initialized=wire.Initialized(init_id=header.init_push.init_id)))

    def answer_pull(self, shard, pull):
        synchronous = self.job.training.mode == wire.SYNCHRONOUS
        if self.job.training.mode == wire.BOUNDED_STALENESS and shard == self.shards[0]:
            self.frame(shard, wire.Header(pull_answer=wire.PullAnswer(
                request=pull.request, clock=pull.clock, counted=[_SELF, _OTHER],
                counted_from=[2, 1])))
        version = pull.version if synchronous or pull.snapshot_id else self.version
        self.send_data(shard, list(pull.partitions), version, pull.request, pull.snapshot_id)

    def send_data(self, shard, partitions, version, request=0, snapshot_id=0):
        index = layout_lib.LayoutIndex(self.table, self.layout)
        for partition in partitions:
            payload = b''
            data = wire.Data(version=version, partition=partition, last=True, request=request,
                             snapshot_id=snapshot_id)
            for block in index.blocks_of_partition[partition]:
                tensor, offset, count, _ = index.blocks[block]
                content = self.values(tensor, version)[offset:offset + count].tobytes()
                data.blocks.add(block=block, payload_bytes=len(content))
                payload += content
            self.frame(shard, wire.Header(data=data), payload)

    def answer_push(self, shard, push):
        if self.job.training.mode == wire.SYNCHRONOUS:
            if push.pull_next and push.complete:
                # This step, and some more, may close without the worker.
                drops = self.job.training.stragglers.policy == self.job.training.stragglers.DROP
                ahead = self.random.choice((0, 0, 0, 1, 3)) if drops else 0
                self.send_data(shard, list(push.complete), push.step + 1 + ahead)
        elif push.HasField('apply'):
            self.answer_apply(shard, push.apply)
        elif push.complete or not self.owned(shard):
            staged = wire.Staged(clock=push.clock)
            for partition in push.complete:
                staged.norms.add(partition=partition, square_sum=0.5 + partition)
            self.frame(shard, wire.Header(staged=staged))

    def answer_apply(self, shard, apply):
        self.version += 1
        self.frame(shard, wire.Header(applied=wire.Applied(clock=apply.clock,
                                                           version=self.version)))
        if apply.pull_next:
            self.send_data(shard, self.owned(shard), self.version)

    def owned(self, shard):
        return [p for p in range(_PARTITIONS) if self.shards[p % len(self.shards)] == shard]

    def give_lease(self, shard):
        samples = wire.Range(begin=self.lease_from, end=self.lease_from + 20)
        self.lease_from += 20
        self.frame(shard, wire.Header(lease=wire.Lease(samples=samples, clock=0)))

    # ---- the compute thread

    def compute(self):
        work = self.computes.pop(0)
        self.give_tensors(work)
        self.end(work)

    def give_tensors(self, work):
        for tensor in (1, 0, 2):
            if tensor == 2 or self.random.random() < 0.9:
                gradient = self.values(tensor, work.begin + 1)
                content = gradient.tobytes().hex()
            else:
                gradient, content = None, None
            self.event('tensor', {'compute': work.id, 'tensor': tensor, 'gradient': content},
                       compute=work.id, tensor=tensor, gradient=gradient)

    def end(self, work):
        samples = work.end - work.begin
        self.event('computed', {'compute': work.id, 'samples': samples, 'loss_sum': 0.5 * samples,
                                'correct': 1.0, 'data_seconds': 0.25, 'compute_seconds': 0.5},
                   compute=work.id, result=core_lib.ComputeResult(
                       samples, 0.5 * samples, 1.0, 0.25, 0.5))

    def evaluate(self):
        work = self.evaluations.pop(0)
        samples = work.end - work.begin
        self.event('evaluated', {'compute': work.id, 'samples': samples, 'loss_sum': 0.25,
                                 'correct': 2.0, 'data_seconds': 0.0, 'compute_seconds': 0.0},
                   compute=work.id, result=core_lib.ComputeResult(samples, 0.25, 2.0))

    # ---- a run

    def live(self, turns):
        for turn in range(turns):
            self.now += 0.25
            choices = [self.connect] * 3 * bool(self.connecting)
            choices += [self.answer] * 6 * bool(self.requests)
            choices += [self.compute] * 5 * bool(self.computes)
            choices += [self.evaluate] * 2 * bool(self.evaluations)
            chance = self.random.random()
            if chance < 0.03 and self.connected:
                self.cut_stream()
            elif chance < 0.065:
                self.change_view(max(0, self.core.step - turn % 2), skip=chance < 0.04,
                                 attempt=self.view.id.attempt if self.view is not None else 1)
            elif chance < 0.085 and self.view is not None:
                snapshot_id = turn + 1
                self.tell(evaluate=wire.Evaluate(
                    evaluation=snapshot_id, snapshot_id=snapshot_id,
                    version=self.core.step + snapshot_id % 2, samples=wire.Range(begin=0, end=10)))
            elif self.batch_sizes and chance < 0.3:
                self.tell(heartbeat_reply=wire.HeartbeatReply(
                    sequence=turn, batch_size=self.random.choice(self.batch_sizes)))
            elif choices:
                self.random.choice(choices)()
            else:
                self.event('tick')
        return self.life


def lives():
    init = World('an initialization, requested twice', 1, wire.SYNCHRONOUS)
    init.begin()
    init.initialize(1)
    init.initialize(2)
    for _ in range(12):
        init.now += 0.25
        init.connect() if init.connecting else init.answer() if init.requests else None
    init.change_view(0)
    yield init.live(12)
    for name, seed, options in (
            ('synchronous', 2, {'mode': wire.SYNCHRONOUS}),
            ('synchronous, one shard, float16', 3, {
                'mode': wire.SYNCHRONOUS, 'shards': 1, 'push_codec': wire.CODEC_FLOAT16}),
            ('synchronous, float16 with error feedback', 13, {
                'mode': wire.SYNCHRONOUS, 'push_codec': wire.CODEC_FLOAT16,
                'error_feedback': True}),
            ('synchronous, one shard, 1 bit with error feedback', 14, {
                'mode': wire.SYNCHRONOUS, 'shards': 1, 'push_codec': wire.CODEC_ONE_BIT,
                'error_feedback': True}),
            ('asynchronous, int8 with error feedback', 15, {
                'mode': wire.ASYNCHRONOUS, 'push_codec': wire.CODEC_INT8,
                'error_feedback': True}),
            ('synchronous, a straggler', 16, {
                'mode': wire.SYNCHRONOUS, 'stragglers': True, 'push_codec': wire.CODEC_FLOAT16,
                'error_feedback': True}),
            ('BitExact', 4, {'mode': wire.SYNCHRONOUS, 'bit_exact': True}),
            ('asynchronous', 5, {'mode': wire.ASYNCHRONOUS}),
            ('asynchronous, batches by speed', 18, {
                'mode': wire.ASYNCHRONOUS, 'batch_sizes': (0, 1, 3, 7)}),
            ('asynchronous, one shard', 6, {'mode': wire.ASYNCHRONOUS, 'shards': 1}),
            ('bounded staleness', 7, {'mode': wire.BOUNDED_STALENESS}),
            ('asynchronous, a shard without partitions', 11, {
                'mode': wire.ASYNCHRONOUS, 'shards': 3})):
        world = World(name, seed, **options)
        world.begin()
        world.change_view(0)
        life = world.live(31)
        yield life
    late = World('BitExact, computations that end after a view change', 17,
                 wire.SYNCHRONOUS, bit_exact=True)
    late.begin()
    late.change_view(0, ranges=[(0, 4), (4, _MICROBATCHES)])
    while late.connecting or late.requests:
        late.now += 0.25
        late.connect() if late.connecting else late.answer()
    begun, late.computes = late.computes, []
    for work in begun:
        late.give_tensors(work)
    late.change_view(0, ranges=[(3, 5), (5, _MICROBATCHES)])
    for work in begun:
        late.end(work)
    yield late.live(12)
    end = World('leaving, and the end', 8, wire.SYNCHRONOUS)
    end.begin()
    end.change_view(0)
    end.live(8)
    end.event('leave', {'reason': 'asked to', 'grace': 10.0}, reason='asked to', grace=10.0)
    end.event('coordinator_broken')
    end.now += 1
    end.event('coordinator_connected')
    end.tell(registered=wire.Registered(job=end.job))
    end.change_view(1, member=False)
    yield end.life
    finish = World('the job fails', 9, wire.SYNCHRONOUS)
    finish.begin()
    finish.change_view(0)
    finish.live(10)
    finish.tell(finish=wire.Finish(succeeded=False, reason='a reason'))
    yield finish.life
    suspended = World('an empty view, and the end', 12, wire.SYNCHRONOUS)
    suspended.begin()
    suspended.change_view(0)
    suspended.live(10)
    suspended.change_view(suspended.core.step, member=False, others=False)
    # As at a target: the previous member evaluates the final version.
    suspended.tell(evaluate=wire.Evaluate(evaluation=1, snapshot_id=1, version=suspended.core.step + 1,
                                          samples=wire.Range(begin=0, end=10)))
    for _ in range(10):
        suspended.now += 0.25
        if suspended.requests:
            suspended.answer()
        elif suspended.evaluations:
            suspended.evaluate()
        else:
            suspended.event('tick')
    suspended.tell(finish=wire.Finish(succeeded=True, reason='suspended'))
    yield suspended.life
    modes = World('attempts in other modes', 13, wire.ASYNCHRONOUS)
    modes.begin()
    modes.change_view(0)
    modes.live(15)
    for attempt, mode in ((2, wire.SYNCHRONOUS), (3, wire.BOUNDED_STALENESS), (4, wire.SYNCHRONOUS)):
        modes.job.training.mode = mode
        modes.change_view(5, attempt=attempt)
        modes.live(15)
    yield modes.life
    refused = World('refused', 10, wire.SYNCHRONOUS)
    refused.event('coordinator_connected')
    refused.tell(refusal=wire.Refusal(code=wire.Refusal_MODEL_DIFFERS, reason='it differs'))
    yield refused.life


def write(path):
    with open(path, 'w', encoding='utf-8') as file:
        file.write('[\n')
        for number, life in enumerate(lives()):
            file.write(',\n' if number else '')
            events = ',\n  '.join(json.dumps(event, separators=(',', ':')) for event in
                                  life['events'])
            file.write(f'{{"name":{json.dumps(life["name"])},"events":[\n  {events}]}}')
        file.write('\n]\n')


if __name__ == '__main__':
    write(sys.argv[1])
