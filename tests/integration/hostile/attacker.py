"""A client that means harm: one attack a run, made from proto/ and, below gRPC, by hand.

    attacker.py ATTACK '{"coordinator": "127.0.0.1:1234", "job": "default/test/test", "seconds": 2, ...}'

It knows what a process of the job knows: where the coordinator is, the job's name, and either a certificate of the job (or
of another one) or its secret; the rest it asks for. The last line that it prints is what came of it, as JSON.
"""

import concurrent.futures
import json
import os
import queue
import random
import resource
import secrets
import socket
import struct
import sys
import threading
import time

import grpc

from sluice import security
from sluice.protocol import frame as frame_lib
from sluice.protocol import wire
from tests.integration.hostile import http2

EXCHANGE = '/sluice.v1.ParameterServer/Exchange'
JOIN = '/sluice.v1.Coordinator/Join'
CONTROL = '/sluice.v1.JobControl/'
HUGE = (1 << 64) - 1
_SECRET = 'sluice-secret'


class Stream:
    """A call of two streams of bytes: what is sent, and what came of it."""

    def __init__(self, channel, method, metadata, keep=True):
        """`keep`: replies are read, and kept; else they stay where they are."""
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
        """Whether `condition()` came to be before the stream's end, and in time."""
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
        """`target`: coordinator, job, seconds, metrics (addresses); certificate (a folder) or secret, or neither; `index`, of the
        worker that it would be."""
        self.coordinator = target['coordinator']
        self.job = target['job']
        self.seconds = target.get('seconds', 2.0)
        self.metrics = target.get('metrics', [])
        self.index = target.get('index', 0)
        self.target = target
        self.certificate = target.get('certificate')
        self._tls = security.TlsDirectory(self.certificate) if self.certificate else None
        self._secret = target.get('secret')
        self._channels = {}
        self.counts = {}
        self._lock = threading.Lock()

    # ---- what it is made of

    def count(self, what, number=1):
        with self._lock:
            self.counts[what] = self.counts.get(what, 0) + number

    def metadata(self):
        return [(_SECRET, self._secret)] if self._secret else []

    def channel(self, address, role, fresh=False):
        if not fresh and (address, role) in self._channels:
            return self._channels[address, role]
        options = [('grpc.max_send_message_length', -1), ('grpc.max_receive_message_length', -1),
                   ('grpc.use_local_subchannel_pool', 1), ('grpc.enable_http_proxy', 0)]
        if self._tls is None:
            made = grpc.insecure_channel(address, options=options)
        else:
            made = grpc.secure_channel(address, self._tls.credentials(),
                                       options=options + security.server_options(role))
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

    def raw_metadata(self):
        return self.metadata()

    def until_end(self):
        """Yields until the attack's time is over."""
        deadline = time.monotonic() + self.seconds
        while time.monotonic() < deadline:
            yield

    def hello(self, shard, role=wire.WORKER, index=None, incarnation=None, **more):
        index = self.index if index is None else index
        if incarnation is None:
            incarnation = secrets.randbits(64) or 1
        message = wire.Hello(min_wire_version=wire.OLDEST_WIRE_VERSION, max_wire_version=wire.WIRE_VERSION, job=self.job,
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
            job=self.job, host='elsewhere', pid=4711, wire_version=wire.WIRE_VERSION, **more))
        return message.SerializeToString()

    def ready(self):
        """What the job's workers say of their model and data."""
        message = wire.MemberMessage()
        message.ready.CopyFrom(wire.Ready(training_samples=self.target['samples']))
        message.ready.table.tensors.add(name='counts', shape=[self.target['samples']], dtype=wire.FLOAT64)
        return message.SerializeToString()

    def identities(self, view):
        """(role, index, incarnation) under which it may get in: as itself with another's incarnation, as that one, and as a reader."""
        for member in view.workers:
            yield wire.WORKER, self.index, member.process.incarnation
            yield wire.WORKER, member.process.index, member.process.incarnation
            yield wire.READER, 0, member.process.incarnation
        yield wire.WORKER, self.index, None
        yield wire.READER, 0, None

    def say_on_each(self, frames_of):
        """`frames_of(view, shard)`, behind a Hello, on a stream of each identity to each shard, as long as the attack lasts."""
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

    # ---- S1: steps that nobody made

    def push_of_a_huge_step(self):
        def frames(view, shard):
            del shard
            for step in (self.target.get('steps', 1000), self.target.get('steps', 1000) + 1, 1 << 40, HUGE):
                yield frame_lib.encode(header(view.id, push=wire.Push(step=step)))
                yield frame_lib.encode(header(view.id, push=wire.Push(step=step, clock=step, complete=[], samples=HUGE,
                                                                      microbatch_count=HUGE)))
        self.say_on_each(frames)

    # ---- S2: in another's name

    def _gradient(self, view, shard, step, microbatches):
        """Frames of a whole contribution, of enormous numbers."""
        snapshot = self.layout
        position = [each.process.incarnation for each in view.shards].index(shard.process.incarnation)
        partitions = [p for p, owner in enumerate(view.owner) if owner == position]
        frames = []
        for number in partitions:
            blocks = [(i, block) for i, block in enumerate(snapshot.blocks) if block.partition == number]
            for i, block in blocks:
                payload = struct.pack('<d', 1e6) * block.count
                frames.append((header(view.id, push=wire.Push(
                    step=step, clock=0, partition=number, microbatches=microbatches,
                    blocks=[wire.BlockHeader(block=i, payload_bytes=len(payload))])), [payload]))
            if blocks:
                frames.append((header(view.id, push=wire.Push(
                    step=step, complete=[number], samples=1, microbatch_count=1)), []))
        return [frame_lib.encode(*each) for each in frames]

    def push_in_the_name_of_a_worker(self):
        snapshot, call = self._open_snapshot()
        call.cancel()
        self.layout = snapshot.layout
        for _ in self.until_end():
            progress = self.progress()
            view = progress.view
            for member in view.workers:
                for shard in view.shards:
                    for role, index in ((wire.WORKER, self.index), (wire.WORKER, member.process.index)):
                        stream = self.exchange(shard)
                        stream.send(self.hello(shard, role, index, member.process.incarnation))
                        for step in range(progress.step, progress.step + 3):
                            for data in self._gradient(view, shard, step, member.microbatches[0]):
                                stream.send(data)
                        stream.wait(lambda: False, 0.05)
                        self.count(f'ended {stream.end[0]}' if stream.end else 'took it')
                        stream.cancel()

    def _open_snapshot(self, reader=None, seconds=1.0, timeout=20):
        """The answer and the call, which holds the version as long as it lives (and the coordinator lets it)."""
        request = wire.OpenSnapshotRequest(hold_seconds=seconds)
        request.reader.CopyFrom(wire.ProcessId(role=wire.READER, incarnation=reader or secrets.randbits(63) + 1))
        call = self.control('OpenSnapshot', request, wire.Snapshot, timeout=timeout, stream=True)
        return next(iter(call)), call

    def take_over_streams(self):
        """Hello with the incarnation of each worker: a newer stream closes the one before."""
        view = self.progress().view
        role = wire.READER if self.target.get('as') == 'reader' else wire.WORKER
        index = 0 if role == wire.READER else self.index
        deadline = time.monotonic() + self.seconds

        def take_over(shard, incarnation):
            while time.monotonic() < deadline:
                stream = self.exchange(shard)
                stream.send(self.hello(shard, role, index, incarnation))
                taken = stream.wait(lambda: len(stream.replies) > 0, 0.2)
                self.count('taken' if taken else f'ended {stream.end[0]}' if stream.end else 'no answer')
                stream.cancel()

        threads = [threading.Thread(target=take_over, args=(shard, member.process.incarnation), daemon=True)
                   for shard in view.shards for member in view.workers for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(self.seconds + 5)

    # ---- S3: words about terms

    def newer_coordinators(self):
        attempt = self.progress().attempt
        views = [wire.ViewId(attempt=HUGE, term=wire.Term(counter=HUGE, coordinator=1), number=1),
                 wire.ViewId(attempt=attempt + 1, term=wire.Term(counter=1, coordinator=1), number=1),
                 wire.ViewId(attempt=attempt, term=wire.Term(counter=HUGE, coordinator=7), number=HUGE)]
        for _ in self.until_end():
            for view in views:
                stream = self.join()
                stream.send(self.register(newest_view=view))
                stream.wait(lambda: len(stream.replies) > 0, 0.5)
                self.count(f'ended {stream.end[0]}' if stream.end else 'registered')
                leave = wire.MemberMessage()
                leave.leave.reason = 'done'
                stream.send(leave.SerializeToString())
                stream.cancel()

    # ---- S4: memory

    def _pour(self, shard, identity, frames, keep):
        """The frames again and again, as fast as they are taken; answers are read or left where they are."""
        role, index, incarnation = identity
        while time.monotonic() < self._deadline:
            stream = self.exchange(shard, keep, fresh=True)
            stream.send(self.hello(shard, role, index, incarnation))
            while time.monotonic() < self._deadline and not stream.is_over():
                if stream.backlog() > 16:
                    time.sleep(0.002)
                    continue
                for data in frames:
                    stream.send(data)
                    self.count('sent bytes', len(data))
            self.count(f'ended {stream.end[0]}' if stream.end else 'open')
            stream.cancel()
            time.sleep(0.02)

    def _pour_on_all(self, view, identities, frames_of, keep=True):
        self._deadline = time.monotonic() + self.seconds
        threads = [threading.Thread(target=self._pour, args=(shard, identity, list(frames_of(view)), keep), daemon=True)
                   for shard in view.shards for identity in identities]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(self.seconds + 5)

    def headers_of_a_future_view(self):
        """Frames without payload that wait for a view: their headers are what costs."""
        def frames(view):
            future = wire.ViewId()
            future.CopyFrom(view.id)
            future.number += 1000
            for body in (dict(push=wire.Push(step=1, clock=1, complete=[1] * 60000)),
                         dict(pull=wire.Pull(version=1, rows=[wire.RowSelection()] * 30000))):
                yield frame_lib.encode(header(future, **body))
            small = frame_lib.parts(header(future, lease_request=wire.LeaseRequest(clock=1)))
            yield frame_lib.join([small] * 256)
        view = self.progress().view
        # Those of other incarnations are closed by these workers' next streams.
        fresh = [(wire.WORKER, self.index, None), (wire.WORKER, 0, None), (wire.WORKER, 1, None)]
        self._pour_on_all(view, [*fresh, next(self.identities(view))], frames)

    def one_partition_many_times(self):
        """Pulls of a pinned version that name a partition thousands of times, whose answers the reader does not take."""
        reader = secrets.randbits(63) + 1
        snapshot, call = self._open_snapshot(reader, self.seconds + 5)
        view = snapshot.view
        self._deadline = time.monotonic() + self.seconds
        threads = []
        for position, shard in enumerate(view.shards):
            # Of the partitions that hold anything, those of this shard.
            owned = sorted({block.partition for block in snapshot.layout.blocks if view.owner[block.partition] == position})
            pulls = [frame_lib.encode(header(view.id, pull=wire.Pull(
                version=snapshot.version, cut=snapshot.cut, partitions=[number] * 20000, request=number))) for number in owned]
            threads.append(threading.Thread(target=self._pour, daemon=True,
                                            args=(shard, (wire.READER, 0, reader), pulls, False)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(self.seconds + 5)
        call.cancel()

    def unfinished_messages(self):
        """Messages of which the last byte never comes: many streams on some connections."""
        deadline = time.monotonic() + self.seconds
        view = self.progress().view
        targets = [(shard.address, EXCHANGE, 2 << 20) for shard in view.shards] + [(self.coordinator, JOIN, 15 << 20)]

        def one(target):
            address, path, size = target
            try:
                connection = self.raw(address)
            except OSError:
                self.count('connections refused')
                return
            body = b'\0' + struct.pack('>I', size) + b'\x0a' * (1 << 20)
            streams = []
            try:
                for _ in range(100):
                    streams.append(connection.open_stream(path, self.raw_metadata()))
                sent = {stream: 0 for stream in streams}
                while time.monotonic() < deadline and not connection.closed:
                    for stream in streams:
                        if sent[stream] >= size or time.monotonic() >= deadline:
                            continue
                        data = body[:1 << 16] if sent[stream] == 0 else body[5:min(5 + size - sent[stream], 1 << 16)]
                        sent[stream] += connection.send_data(stream, data, 0.02)
                self.count('sent bytes', sum(sent.values()))
                # They stay as they are for the rest of the attack.
                time.sleep(max(0, deadline - time.monotonic()))
            except OSError:
                self.count('connections closed')
            connection.close()

        with concurrent.futures.ThreadPoolExecutor(18) as pool:
            list(pool.map(one, targets * 6))

    def large_messages_to_the_coordinator(self):
        """Registered as a worker: tables, failures and progress of many megabytes."""
        table = wire.MemberMessage()
        for i in range(200000):
            table.ready.table.tensors.add(name=f't{i}', shape=[1, 1, 1, 1, 1, 1], dtype=wire.FLOAT32)
        table = table.SerializeToString()
        progress = wire.MemberMessage()
        for i in range(200000):
            progress.worker_progress.steps.add(step=i, samples=1, loss_sum=1)
        progress = progress.SerializeToString()
        progress_of_view = wire.MemberMessage()
        progress_of_view.worker_progress.owing.extend(range(500000))
        progress_of_view = progress_of_view.SerializeToString()
        deadline = time.monotonic() + self.seconds
        while time.monotonic() < deadline:
            stream = self.join(fresh=True)
            stream.send(self.register())
            while time.monotonic() < deadline and not stream.end:
                if stream.backlog() < 4:
                    for message in (progress, progress_of_view):
                        stream.send(message)
                        self.count('sent bytes', len(message))
                time.sleep(0.01)
            stream.send(table)
            stream.wait(lambda: False, 0.2)
            self.count(f'ended {stream.end[0]}' if stream.end else 'open')
            stream.cancel()

    # ---- S5: snapshots held

    def hold_snapshots(self):
        """Keeps a version pinned, and asks for the next before it lets go."""
        deadline = time.monotonic() + self.seconds
        calls = []
        while time.monotonic() < deadline:
            try:
                calls.append(self._open_snapshot(seconds=600, timeout=self.seconds + 5)[1])
                self.count('held')
                if len(calls) == 1:
                    print('READY', flush=True)
            except (grpc.RpcError, StopIteration) as error:
                self.count(f'refused {error.code().name}' if isinstance(error, grpc.RpcError) else 'ended')
            time.sleep(0.3)
        for call in calls:
            call.cancel()

    # ---- S6, S7: places taken

    def silent_streams(self):
        """Thousands of streams to each shard, and control streams, on which nothing is said: as many as can be opened in half of
        the time, and held for the rest."""
        deadline = time.monotonic() + self.seconds
        opened_by = time.monotonic() + self.seconds / 2
        view = self.progress().view
        connections = []
        for address, path in [(shard.address, EXCHANGE) for shard in view.shards] + [(self.coordinator, JOIN)]:
            connection = None
            for number in range(4500):
                try:
                    if connection is None or connection.closed or number % 90 == 0:
                        connection = self.raw(address)
                        connections.append(connection)
                    connection.open_stream(path, self.raw_metadata())
                    self.count('opened')
                except OSError:
                    self.count('refused')
                    connection = None
                if time.monotonic() > opened_by:
                    break
        print('READY', flush=True)
        time.sleep(max(0, deadline - time.monotonic()))
        for connection in connections:
            connection.close()

    def silent_connections(self):
        """To each port: connections that say nothing, and some that begin a request and never end it."""
        view = self.progress().view
        starts = [b'', b'GET /healthz HTTP/1.1\r\nHost: x\r\nX-A: ', b'P', b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0']
        open_ones = []
        for address in [*self.metrics, self.coordinator, *(shard.address for shard in view.shards)]:
            host, port = address.rsplit(':', 1)
            for number in range(100):
                try:
                    one = socket.create_connection((host, int(port)), timeout=2)
                    one.sendall(starts[number % len(starts)])
                    open_ones.append(one)
                    self.count('opened')
                except OSError:
                    self.count('refused')
        print('READY', flush=True)
        for _ in self.until_end():
            for one in open_ones:
                try:
                    one.send(b'x')  # a byte now and then
                except OSError:
                    self.count('closed')
            time.sleep(0.5)

    # ---- S13: below gRPC

    def _flood(self, address, prepare, chunk):
        """`chunk(connection)` gives bytes to send, again and again; a connection that is closed is opened again."""
        while time.monotonic() < self._deadline:
            try:
                connection = self.raw(address)
            except OSError:
                self.count('connections refused')
                time.sleep(0.05)
                continue
            self.count('connections')
            try:
                prepare(connection)
                while time.monotonic() < self._deadline and not connection.closed:
                    data = chunk(connection)
                    connection.send(data)
                    self.count('sent bytes', len(data))
            except OSError:
                pass
            connection.close()

    def _flood_all(self, prepare, chunk):
        self._deadline = time.monotonic() + self.seconds
        view = self.progress().view
        paths = [(shard.address, EXCHANGE) for shard in view.shards] + [(self.coordinator, JOIN)]
        only = self.target.get('only')
        threads = [threading.Thread(target=self._flood, daemon=True, args=(address, prepare, lambda c, p=path: chunk(c, p)))
                   for address, path in paths if only is None or (only == 'coordinator') == (path == JOIN)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(self.seconds + 12)

    def rapid_reset(self):
        blocks = {path: http2.grpc_headers(path, self.raw_metadata()) for path in (EXCHANGE, JOIN)}

        def chunk(connection, path):
            frames = []
            for _ in range(200):
                stream = connection.new_stream()
                frames.append(http2.frame(http2.HEADERS, http2.END_HEADERS, stream, blocks[path]))
                frames.append(http2.frame(http2.RST_STREAM, 0, stream, http2.CANCEL))
            self.count('streams', 200)
            return b''.join(frames)
        self._flood_all(lambda connection: None, chunk)

    def continuation_flood(self):
        """Headers that never end."""
        some = http2.header_block([(f'x-{i}', 'y') for i in range(1800)])[:16000]

        def chunk(connection, path):
            if not hasattr(connection, 'flooded'):
                connection.flooded = connection.new_stream()
                return http2.frame(http2.HEADERS, 0, connection.flooded, http2.grpc_headers(path, self.raw_metadata()))
            return http2.frame(http2.CONTINUATION, 0, connection.flooded, some) * 16
        self._flood_all(lambda connection: None, chunk)

    def many_headers(self):
        """Calls with many small headers, each ended properly, on streams that stay open."""
        more = http2.header_block([(f'x-{i}', 'y') for i in range(1200)])

        def chunk(connection, path):
            stream = connection.new_stream()
            block = http2.grpc_headers(path, self.raw_metadata()) + more
            pieces = [block[at:at + 16000] for at in range(0, len(block), 16000)]
            out = b''
            for i, piece in enumerate(pieces):
                kind = http2.HEADERS if i == 0 else http2.CONTINUATION
                out += http2.frame(kind, http2.END_HEADERS if i == len(pieces) - 1 else 0, stream, piece)
            return out
        self._flood_all(lambda connection: None, chunk)

    def ping_flood(self):
        ping = http2.frame(http2.PING, 0, 0, b'12345678') * 500
        settings = http2.frame(http2.SETTINGS, 0, 0) * 500
        self._flood_all(lambda connection: None, lambda connection, path: ping + settings)

    def empty_data(self):
        """DATA frames without a byte, and messages without a byte, on one stream."""
        def chunk(connection, path):
            if not hasattr(connection, 'flooded'):
                connection.flooded = connection.open_stream(path, self.raw_metadata())
            return http2.frame(http2.DATA, 0, connection.flooded) * 1000
        self._flood_all(lambda connection: None, chunk)

    def random_frames(self):
        """HTTP/2 frames of any kind, and bytes that are none."""
        generator = random.Random(self.target.get('seed', 1))

        def chunk(connection, path):
            frames = b''
            for _ in range(20):
                kind = generator.randrange(12)
                payload = generator.randbytes(generator.choice((0, 1, 4, 8, 40, 300)))
                frames += http2.frame(kind, generator.randrange(256), generator.randrange(8), payload)
            return frames
        self._flood_all(lambda connection: connection.open_stream(EXCHANGE, self.raw_metadata()), chunk)

    # ---- S14: clocks and ranges

    def clocks(self):
        """Asynchronous modes: what nobody reached, and samples that nobody was given."""
        def frames(view, shard):
            del shard
            yield frame_lib.encode(header(view.id, pull=wire.Pull(clock=HUGE)))
            yield frame_lib.encode(header(view.id, lease_request=wire.LeaseRequest(clock=HUGE, samples=HUGE)))
        self.say_on_each(frames)

    def updates_without_samples(self):
        def frames(view, shard):
            position = [each.process.incarnation for each in view.shards].index(shard.process.incarnation)
            # A model of two blocks: partitions 0 and 1, and no others, hold anything.
            owned = [number for number in (0, 1) if view.owner[number] == position]
            for clock in (HUGE, 1 << 20):
                for samples in (wire.Range(), wire.Range(begin=HUGE - 1, end=HUGE), wire.Range(begin=5, end=1)):
                    apply = wire.Apply(clock=clock, samples=samples, ordinal=HUGE, square_sum=float('nan'))
                    yield frame_lib.encode(header(view.id, push=wire.Push(clock=clock, complete=owned, samples=1,
                                                                          microbatch_count=1, apply=apply)))
        self.say_on_each(frames)

    # ---- S15: whoever joins

    def stranger(self):
        """Registers beyond the wanted number of workers (or in a place that is free), with the job's model; heartbeats, and no work."""
        deadline = time.monotonic() + self.seconds
        index = self.target.get('register_as', self.index)
        while time.monotonic() < deadline:
            stream = self.join()
            stream.send(self.register(index=index))
            stream.send(self.ready())
            sequence = 0
            while time.monotonic() < deadline and not stream.end:
                beat = wire.MemberMessage()
                sequence += 1
                beat.heartbeat.sequence = sequence
                stream.send(beat.SerializeToString())
                if self.target.get('lies'):
                    stream.send(self._lies())
                if self.target.get('fails'):
                    failure = wire.MemberMessage()
                    failure.failure.reason = 'because a stranger says so'
                    stream.send(failure.SerializeToString())
                time.sleep(0.1)
            self.count(f'ended {stream.end[0]}' if stream.end else 'stayed' if sequence > 5 else 'no answer')
            # A place that is taken yet is tried again.
            if self.target.get('until_expelled') and stream.end and sequence > 10:
                return
            stream.cancel()
            time.sleep(0.1)

    def _lies(self):
        message = wire.MemberMessage()
        report = message.worker_progress
        report.view.CopyFrom(self.progress().view.id)
        for value in (1e289, -1e300, float('inf'), float('nan')):
            report.steps.add(step=HUGE, samples=1, loss_sum=value, correct=1e300, staleness=HUGE)
        report.steps.add(step=0, samples=HUGE, loss_sum=1e300)
        report.data_seconds = report.compute_seconds = report.push_seconds = 1e-300
        report.recomputed_samples = report.pushed_bytes = report.gradient_bytes = HUGE
        return message.SerializeToString()

    def owing(self):
        """Names each shard as one that owes it a version."""
        for _ in self.until_end():
            progress = self.progress()
            for owed in (0, 1, progress.step, HUGE):
                message = wire.MemberMessage()
                message.worker_progress.view.CopyFrom(progress.view.id)
                message.worker_progress.owed_version = owed
                message.worker_progress.owing.extend(shard.process.incarnation for shard in progress.view.shards)
                stream = self.join()
                stream.send(self.register())
                stream.send(message.SerializeToString())
                stream.wait(lambda: False, 0.2)
                self.count(f'ended {stream.end[0]}' if stream.end else 'said')
                stream.cancel()
                time.sleep(0.1)

    def come_and_go(self):
        """Registers, is ready, and leaves, under a new incarnation each time."""
        for _ in self.until_end():
            stream = self.join()
            stream.send(self.register())
            stream.send(self.ready())
            leave = wire.MemberMessage()
            leave.leave.reason = 'elsewhere'
            stream.send(leave.SerializeToString())
            stream.wait(lambda: False, 0.05)
            self.count(f'ended {stream.end[0]}' if stream.end else 'left')
            stream.cancel()

    def long_words(self):
        """In a place of its own: names, addresses and reasons of megabytes, each under a new incarnation."""
        long = 'x' * (5 << 20)
        ready = wire.MemberMessage()
        ready.ready.training_samples = 1
        ready.ready.table.tensors.add(name=long, shape=[self.target['samples']], dtype=wire.FLOAT64)
        failure = wire.MemberMessage()
        failure.failure.reason = long
        leave = wire.MemberMessage()
        leave.leave.reason = long
        for _ in self.until_end():
            for more, then in (({}, ready), (dict(address=long), leave), (dict(metrics_address=long), leave), ({}, failure)):
                stream = self.join()
                stream.send(self.register(**more))
                stream.send(then.SerializeToString())
                stream.wait(lambda: False, 0.2)
                self.count(f'ended {stream.end[0]}' if stream.end else 'said')
                stream.cancel()

    def answers_never_read(self):
        """Calls on connections that take no byte of an answer."""
        request = struct.pack('>BI', 0, 0)  # a message without fields
        shut = http2.frame(http2.SETTINGS, 0, 0, struct.pack('>HI', 4, 0))  # no window for any stream
        deadline = time.monotonic() + self.seconds
        connections = []
        for _ in range(10):
            connection = self.raw(self.coordinator)
            connection.send(shut)
            connections.append(connection)
        while time.monotonic() < deadline:
            for connection in connections:
                try:
                    for _ in range(50):
                        stream = connection.open_stream(CONTROL + 'GetProgress', self.raw_metadata())
                        connection.send(http2.frame(http2.DATA, http2.END_STREAM, stream, request))
                        self.count('calls')
                except OSError:
                    self.count('connections closed')
            time.sleep(0.05)
        for connection in connections:
            connection.close()

    def many_connections(self):
        """More connections than a process may have files open, to each port; they say nothing."""
        resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
        deadline = time.monotonic() + self.seconds
        view = self.progress().view
        open_ones = []
        for address in [self.coordinator, *(shard.address for shard in view.shards)]:
            host, port = address.rsplit(':', 1)
            for _ in range(1500):
                try:
                    open_ones.append(socket.create_connection((host, int(port)), timeout=1))
                    self.count('opened')
                except OSError:
                    self.count('refused')
                if time.monotonic() > deadline:
                    break
        time.sleep(max(0, deadline - time.monotonic()))

    # ---- S8, S9: those who have no business here

    def everything_without_leave(self):
        """As one that is not of the job: reads, suspends, ends, registers. What was let through is counted as 'let through: ...'."""
        def attempt(what, call):
            try:
                call()
                self.count(f'let through: {what}')
            except grpc.RpcError as error:
                self.count(f'refused {what}: {error.code().name}')
            except StopIteration:
                self.count(f'refused {what}: no answer')

        attempt('OpenSnapshot', self._open_snapshot)
        attempt('SetDesired', lambda: self.control(
            'SetDesired', wire.SetDesiredRequest(suspend=True), wire.SetDesiredResponse))
        attempt('GetProgress', self.progress)
        for name, channel, method, first in self._first_messages():
            stream = Stream(channel, method, self.metadata())
            stream.send(first)
            if stream.wait(lambda: len(stream.replies) > 0, 3):
                refused = name == 'Join' and wire.CoordinatorMessage.FromString(stream.replies[0]).HasField('refusal')
                self.count(f'refused {name}: Refusal' if refused else f'let through: {name}')
            else:
                self.count(f'refused {name}: {stream.end[0] if stream.end else "no answer"}')
            stream.cancel()

    def _first_messages(self):
        yield 'Join', self.channel(self.coordinator, 'coordinator'), JOIN, self.register()
        shards = [tuple(each) for each in self.target.get('shards', [])]
        if 'let through: GetProgress' in self.counts:  # which names the incarnations
            shards = [(each.address, each.process.incarnation) for each in self.progress().view.shards]
        for address, incarnation in shards:
            shard = wire.View().shards.add(address=address, process=wire.ProcessId(incarnation=incarnation))
            for role in (wire.WORKER, wire.READER, wire.SHARD):
                yield f'Exchange as {role}', self.channel(address, 'ps'), EXCHANGE, self.hello(shard, role)


def main():
    name, target = sys.argv[1], json.loads(sys.argv[2])
    if 'user' in target:
        os.setgroups([])
        os.setgid(target['user'])
        os.setuid(target['user'])
    client = HostileClient(target)
    error = None
    try:
        getattr(client, name)()
    except (grpc.RpcError, OSError) as raised:
        error = f'{type(raised).__name__}: {raised}'
    print(json.dumps({'counts': client.counts, 'error': error}), flush=True)
    os._exit(0)  # threads of streams that are still open must not keep it


if __name__ == '__main__':
    main()
