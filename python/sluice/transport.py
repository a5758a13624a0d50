"""Streams of frames to shards, and the control stream to the coordinator.

gRPC only sees bytes: frames are encoded and decoded here, so that an outgoing payload is copied
once, and an incoming one stays where gRPC, or the shard that shares memory, put it.
"""

import logging
import queue
import random
import threading

import grpc

from sluice import security
from sluice import shared_memory as shared_memory_lib
from sluice.protocol import frame
from sluice.protocol import outgoing as outgoing_lib
from sluice.protocol import wire

_LOG = logging.getLogger('sluice')
_EXCHANGE = '/sluice.v1.ParameterServer/Exchange'
_JOIN = '/sluice.v1.Coordinator/Join'
_CONTROL = '/sluice.v1.JobControl/'

_MAX_CONTROL_BYTES = 16 << 20
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0


# The same value as in services/transport/grpc_settings.cc.
_BULK_WINDOW_BYTES = 4 << 20


def open_channel(address, max_message_bytes=_MAX_CONTROL_BYTES, tls=None, role='coordinator'):
    """Opens a separate connection, so that a heartbeat never queues behind tensors.

    `tls`: the result of security.find; `role`: the other side's. Without TLS, calls must carry
    security.metadata.
    """
    options = [
        ('grpc.max_receive_message_length', max_message_bytes),
        ('grpc.max_send_message_length', max_message_bytes),
        ('grpc.use_local_subchannel_pool', 1),
        ('grpc.keepalive_time_ms', 5000),
        ('grpc.keepalive_timeout_ms', 10000),
        ('grpc.http2.max_pings_without_data', 0),
        ('grpc.min_reconnect_backoff_ms', 1000),
        ('grpc.initial_reconnect_backoff_ms', 100),
        ('grpc.max_reconnect_backoff_ms', 1000),
        ('grpc.enable_http_proxy', 0),
        # gRPC 1.51 can crash if the answer to a probe arrives while the connection closes. Without
        # probes, windows are fixed.
        ('grpc.http2.bdp_probe', 0),
    ]

    if role == 'ps':
        options.append(('grpc.http2.lookahead_bytes', _BULK_WINDOW_BYTES))
    if not security.is_encrypted(tls):
        return grpc.insecure_channel(address, options=options)
    return grpc.secure_channel(address, tls.credentials(),
                               options=options + security.server_options(role))


def describe(error):
    """Describes a gRPC error in one line."""
    if isinstance(error, grpc.RpcError) and hasattr(error, 'details'):
        return f'{error.code().name}: {error.details()}'
    return f'{type(error).__name__}: {error}'


class FrameStream:
    """One stream to a shard. Callbacks run on its own thread.

    `on_frames` gets a list of (header, payload). A payload may be in memory that the shard shares
    with us; the shard gets it back when no reference is left, so do not keep it. `shared_memory`:
    use it with a shard of this machine, in plain text; otherwise everything goes through the
    socket.
    """

    def __init__(self, address, on_frames, on_broken, tls=None, shared_memory=True):
        self._on_frames = on_frames
        self._on_broken = on_broken
        # Data that is encrypted on the wire must not be exposed in shared memory.
        self._sharing = shared_memory_lib.PayloadSharing(
            address, shared_memory and not security.is_encrypted(tls))
        self._outgoing = outgoing_lib.Outgoing(self._sharing.put)
        self._address = address
        self._closed = False
        self._channel = open_channel(address, frame.MAX_FRAME_BYTES, tls, 'ps')
        exchange = self._channel.stream_stream(
            _EXCHANGE, request_serializer=None, response_deserializer=None)
        self._call = exchange(self._outgoing.messages(), metadata=security.metadata(tls))
        threading.Thread(target=self._read, name='sluice-frames', daemon=True).start()

    def send(self, frames):
        """[(header, pieces)]. Returns immediately; pieces must not change until they are sent."""
        for header, _ in frames:
            if header.WhichOneof('body') == 'hello':
                header.hello.max_batch_frames = frame.MAX_BATCH_FRAMES
                self._sharing.greet(header.hello)
        self._outgoing.put(frames)

    @property
    def sent_at(self):
        """When the last message had been sent, by time.monotonic()."""
        return self._outgoing.sent_at

    def close(self):
        """No callback begins after this call, as the caller's lock orders them."""
        self._closed = True
        self._call.cancel()
        self._outgoing.end()

    def _read(self):
        why = 'the shard ended the stream'
        try:
            for data in self._call:
                self._receive(frame.decode_all(data, self._sharing.take))
        except grpc.RpcError as error:
            why = describe(error)
        except frame.MalformedFrame as error:
            why = str(error)
            _LOG.warning('Malformed frame from the shard at %s; its stream is reopened: %s',
                         self._address, why)
            self._call.cancel()
        self._outgoing.end()
        self._sharing.close()
        self._channel.close()
        if not self._closed:
            self._on_broken(why)

    def _receive(self, frames):
        for header, _ in frames:
            if header.WhichOneof('body') == 'hello_reply':
                self._outgoing.peer_takes = header.hello_reply.max_batch_frames
                self._sharing.on_hello_reply(header.hello_reply)
        self._on_frames(frames)


class CoordinatorStream:
    """Maintains a stream to the coordinator; if it breaks, it is reopened with growing pauses."""

    def __init__(self, address, on_connected, on_message, on_broken, tls=None):
        self._address = address
        self._tls = tls
        self._on_connected = on_connected
        self._on_message = on_message
        self._on_broken = on_broken
        self._channel = None
        self._join = None
        self._open()
        self._outgoing = None
        self._call = None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._loop, name='sluice-control', daemon=True)

    def _open(self):
        if self._channel is not None:
            self._channel.close()
        self._channel = open_channel(self._address, tls=self._tls)
        self._join = self._channel.stream_stream(
            _JOIN, request_serializer=wire.MemberMessage.SerializeToString,
            response_deserializer=wire.CoordinatorMessage.FromString)

    def start(self):
        self._thread.start()

    def send(self, message):
        outgoing = self._outgoing
        if outgoing is not None:
            outgoing.put(message)

    def reconnect(self):
        """Breaks the current stream; a new one follows."""
        if self._call is not None:
            self._call.cancel()

    def finish(self, timeout):
        """Ends the stream after everything queued was sent."""
        self._ending.set()
        if self._outgoing is not None:
            self._outgoing.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)
        if self._call is not None:
            self._call.cancel()

    def _loop(self):
        pause = _FIRST_PAUSE
        while not self._ending.is_set():
            outgoing = queue.SimpleQueue()
            self._outgoing = outgoing
            self._call = self._join(iter(outgoing.get, None),
                                    metadata=security.metadata(self._tls))

            self._on_connected()
            why = 'the coordinator ended the stream'
            try:
                for message in self._call:
                    pause = _FIRST_PAUSE
                    self._on_message(message)
            except grpc.RpcError as error:
                why = describe(error)

            outgoing.put(None)
            self._on_broken(why)
            self._ending.wait(pause * random.uniform(0.5, 1))
            pause = min(2 * pause, _LONGEST_PAUSE)
            if security.is_encrypted(self._tls) and not self._ending.is_set():
                self._open()  # reads the credential files again
        self._channel.close()


class JobControl:
    """The coordinator's calls for users and programs. Each raises grpc.RpcError."""

    def __init__(self, address, timeout=5, tls=None):
        self._channel = open_channel(address, tls=tls)
        self._metadata = security.metadata(tls)
        self._timeout = timeout

    def close(self):
        self._channel.close()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def progress(self, events_after=0):
        return self._call('GetProgress', wire.GetProgressRequest(events_after=events_after),
                          wire.JobProgress)

    def open_snapshot(self, incarnation, hold_seconds):
        """Pins a version until the call is cancelled. Returns (snapshot, call).

        `incarnation`: the one with which the caller greets the shards, as a reader.
        """
        call = self._channel.unary_stream(
            _CONTROL + 'OpenSnapshot',
            request_serializer=wire.OpenSnapshotRequest.SerializeToString,
            response_deserializer=wire.Snapshot.FromString)
        request = wire.OpenSnapshotRequest(
            hold_seconds=hold_seconds,
            reader=wire.ProcessId(role=wire.READER, incarnation=incarnation))
        answers = call(request, timeout=hold_seconds, metadata=self._metadata)
        return next(answers), answers

    def _call(self, method, request, response, timeout=None):
        call = self._channel.unary_unary(
            _CONTROL + method, request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=response.FromString)
        return call(request, timeout=timeout or self._timeout, metadata=self._metadata)
