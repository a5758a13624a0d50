"""The building blocks of an attacker: streams and calls under any identity, and bytes below gRPC.

The attacker knows what a process of the job knows: the coordinator's address, the job's name, and either a certificate of this job
or another one, or the job's secret. It asks the job for everything else.
"""

import queue
import secrets
import threading
import time

import grpc

from sluice import wire
from tests.integration.hostile import frames as frame_lib
from tests.integration.hostile import http2
from tests.python import job_control

EXCHANGE = '/sluice.v1.ParameterServer/Exchange'
JOIN = '/sluice.v1.Coordinator/Join'
CONTROL = '/sluice.v1.JobControl/'
HUGE = (1 << 64) - 1
_SECRET = 'sluice-secret'
_WIRE_VERSION = 1  # services/protocol/wire_version.cc


class Stream:
    """A call with a stream of bytes in each direction, and how it ended."""

    def __init__(self, channel, method, metadata, keep=True):
        """`keep`: replies are read and kept; otherwise they are never read."""
        self._outgoing = queue.SimpleQueue()
        self._changed = threading.Condition()
        self.replies = []
        self.end = None  # (code, details) once it has ended
        call = channel.stream_stream(method, request_serializer=None, response_deserializer=None)
        self._call = call(iter(self._outgoing.get, None), metadata=metadata)
        if keep:
            threading.Thread(target=self._read, daemon=True).start()

    def send(self, data):
        self._outgoing.put(data)

    def backlog(self):
        return self._outgoing.qsize()

    def finish(self):
        self._outgoing.put(None)

    def cancel(self):
        self._outgoing.put(None)
        self._call.cancel()

    def is_over(self):
        return not self._call.is_active()

    def wait(self, condition, timeout):
        """Whether `condition()` became true within `timeout` and before the stream's end."""
        with self._changed:
            self._changed.wait_for(lambda: condition() or self.end, timeout)
            return condition()

    def _read(self):
        end = ('OK', '')
        try:
            for reply in self._call:
                with self._changed:
                    self.replies.append(reply)
                    self._changed.notify_all()
        except grpc.RpcError as error:
            end = (error.code().name, error.details())
        with self._changed:
            self.end = end
            self._changed.notify_all()


def header(view=None, **body):
    message = wire.Header(**body)
    if view is not None:
        message.view.CopyFrom(view)
    return message


class HostileClient:

    def __init__(self, target):
        """`target`: coordinator, job, seconds, metrics (addresses); certificate (a directory) or secret, or neither; `index` of the
        worker that it pretends to be."""
        self.coordinator = target['coordinator']
        self.job = target['job']
        self.seconds = target.get('seconds', 2.0)
        self.metrics = target.get('metrics', [])
        self.index = target.get('index', 0)
        self.target = target
        self.certificate = target.get('certificate')
        self._secret = target.get('secret')
        self._channels = {}
        self.counts = {}
        self._lock = threading.Lock()

    # ---- building blocks

    def count(self, what, number=1):
        with self._lock:
            self.counts[what] = self.counts.get(what, 0) + number

    def metadata(self):
        return [(_SECRET, self._secret)] if self._secret else []

    def channel(self, address, role, fresh=False):
        if not fresh and (address, role) in self._channels:
            return self._channels[address, role]
        options = [('grpc.max_send_message_length', -1), ('grpc.max_receive_message_length', -1),
                   ('grpc.http2.bdp_probe', 0)]  # gRPC 1.51 can crash where the connection closes meanwhile
        made = job_control.open_channel(address, self.certificate, role, options)
        self._channels[address, role] = made
        return made

    def exchange(self, shard, keep=True, fresh=False):
        return Stream(self.channel(shard.address, 'ps', fresh), EXCHANGE, self.metadata(), keep)

    def join(self, fresh=False):
        return Stream(self.channel(self.coordinator, 'coordinator', fresh), JOIN, self.metadata())

    def control(self, method, request, response, timeout=5, stream=False):
        channel = self.channel(self.coordinator, 'coordinator')
        kind = channel.unary_stream if stream else channel.unary_unary
        call = kind(CONTROL + method, request_serializer=lambda message: message.SerializeToString(),
                    response_deserializer=response.FromString)
        return call(request, timeout=timeout, metadata=self.metadata())

    def progress(self):
        return self.control('GetProgress', wire.GetProgressRequest(), wire.JobProgress)

    def raw(self, address):
        return http2.Connection(address, self.certificate)

    def until_end(self):
        """Yields until the attack's time is over."""
        deadline = time.monotonic() + self.seconds
        while time.monotonic() < deadline:
            yield

    def hello(self, shard, role=wire.WORKER, index=None, incarnation=None, **more):
        index = self.index if index is None else index
        if incarnation is None:
            incarnation = secrets.randbits(64) or 1
        message = wire.Hello(min_wire_version=_WIRE_VERSION, max_wire_version=_WIRE_VERSION, job=self.job,
                             shard_incarnation=shard.process.incarnation, max_batch_frames=256,
                             sender=wire.ProcessId(role=role, index=index, incarnation=incarnation))
        for name, value in more.items():
            setattr(message, name, value)
        return frame_lib.encode(header(hello=message))

    def register(self, index=None, incarnation=None, role=wire.WORKER, **more):
        message = wire.MemberMessage()
        message.register.CopyFrom(wire.Register(
            process=wire.ProcessId(role=role, index=self.index if index is None else index,
                                   incarnation=incarnation or secrets.randbits(64) or 1),
            job=self.job, host='elsewhere', pid=4711, wire_version=_WIRE_VERSION, **more))
        return message.SerializeToString()

    def ready(self):
        """The same description of model and data as the job's workers send."""
        message = wire.MemberMessage()
        message.ready.CopyFrom(wire.Ready(training_samples=self.target['samples']))
        message.ready.table.tensors.add(name='counts', shape=[self.target['samples']], dtype=wire.FLOAT64)
        return message.SerializeToString()

    def identities(self, view):
        """Each (role, index, incarnation) under which it may get in: as itself or as a reader, with the incarnation of another worker
        or its own; and, with certificates, which distinguish the two, under the index of that worker."""
        for member in view.workers:
            yield wire.WORKER, self.index, member.process.incarnation
            if self.certificate:
                yield wire.WORKER, member.process.index, member.process.incarnation
            yield wire.READER, 0, member.process.incarnation
        yield wire.WORKER, self.index, None
        yield wire.READER, 0, None

    def say_on_each(self, frames_of):
        """Sends a Hello and then `frames_of(view, shard)` on a stream of each identity to each shard, until the attack ends."""
        for _ in self.until_end():
            view = self.progress().view
            for role, index, incarnation in self.identities(view):
                streams = []
                for shard in view.shards:
                    stream = self.exchange(shard)
                    stream.send(self.hello(shard, role, index, incarnation))
                    for data in frames_of(view, shard):
                        stream.send(data)
                    streams.append(stream)
                for stream in streams:
                    stream.wait(lambda: False, 0.1)
                    self.count(f'ended {stream.end[0]}' if stream.end else 'took it')
                    stream.cancel()

    def open_snapshot(self, reader=None, seconds=1.0, timeout=20):
        """The answer, and the call, which keeps the version pinned while it is open (and the coordinator permits it)."""
        request = wire.OpenSnapshotRequest(hold_seconds=seconds)
        request.reader.CopyFrom(wire.ProcessId(role=wire.READER, incarnation=reader or secrets.randbits(63) + 1))
        call = self.control('OpenSnapshot', request, wire.Snapshot, timeout=timeout, stream=True)
        return next(iter(call)), call
