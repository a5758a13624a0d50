"""HTTP/2 by hand (RFC 9113), as far as a client that breaks its rules needs it."""

import pathlib
import select
import socket
import ssl
import struct
import threading
import time

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, ACK, END_HEADERS = 1, 1, 4

_PREFACE = b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n'
_INITIAL_WINDOW = 65535
_MAX_FRAME_BYTES = 16384
_INITIAL_WINDOW_SIZE = 4  # the setting of this name
CANCEL = struct.pack('>I', 8)


def frame(kind, flags, stream, payload=b''):
    return struct.pack('>I', len(payload))[1:] + bytes((kind, flags)) + struct.pack('>I', stream) + payload


def _string(text):
    """HPACK: a length with a prefix of 7 bits, then the bytes without compression."""
    length = len(text)
    if length < 127:
        return bytes((length,)) + text
    out = bytearray((127,))
    length -= 127
    while length > 127:
        out.append(length & 127 | 128)
        length >>= 7
    out.append(length)
    return bytes(out) + text


def header_block(headers):
    """HPACK: literal fields, never indexed."""
    return b''.join(b'\x10' + _string(name.encode()) + _string(value.encode()) for name, value in headers)


def grpc_headers(path, more=()):
    return header_block([(':method', 'POST'), (':scheme', 'http'), (':path', path), (':authority', 'sluice'),
                         ('te', 'trailers'), ('content-type', 'application/grpc'), *more])


def connect(address, tls=None):
    """A socket; with `tls`, through TLS with the certificate in that directory. The server's name is not checked."""
    host, port = address.rsplit(':', 1)
    plain = socket.create_connection((host, int(port)), timeout=10)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if tls is None:
        return plain
    directory = pathlib.Path(tls)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(directory / 'ca.crt')
    context.load_cert_chain(directory / 'tls.crt', directory / 'tls.key')
    context.set_alpn_protocols(['h2'])
    return context.wrap_socket(plain, server_hostname='sluice.internal')


class Connection:
    """A connection whose frames the caller writes. `received` counts the frames that arrive, by kind.

    Raises OSError when the server has closed it.
    """

    def __init__(self, address, tls=None):
        self._socket = connect(address, tls)
        self._socket.settimeout(10)
        self._changed = threading.Condition()
        # Held during each use of the socket: a TLS socket serves one thread at a time.
        self._socket_lock = threading.Lock()
        self._window = _INITIAL_WINDOW
        self._windows = {}
        self._initial_window = _INITIAL_WINDOW
        self._next_stream = 1
        self.received = {}
        self.closed = False
        self.send(_PREFACE + frame(SETTINGS, 0, 0))
        threading.Thread(target=self._read, daemon=True).start()

    def close(self):
        self.closed = True
        with self._socket_lock:
            try:
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            self._socket.close()

    def send(self, data):
        with self._socket_lock:
            self._socket.sendall(data)

    def new_stream(self):
        stream, self._next_stream = self._next_stream, self._next_stream + 2
        return stream

    def open_stream(self, path, more=()):
        """Begins a call and sends no message."""
        stream = self.new_stream()
        self.send(frame(HEADERS, END_HEADERS, stream, grpc_headers(path, more)))
        return stream

    def send_data(self, stream, data, timeout):
        """Sends as much as the server's windows permit within `timeout` seconds; returns the number of bytes."""
        sent = 0
        deadline = time.monotonic() + timeout
        with self._changed:
            self._windows.setdefault(stream, 0)  # in excess of the initial one
        while sent < len(data):
            with self._changed:
                while (room := min(self._window, self._initial_window + self._windows[stream])) <= 0:
                    left = deadline - time.monotonic()
                    if left <= 0 or self.closed:
                        return sent
                    self._changed.wait(left)
                size = min(room, _MAX_FRAME_BYTES, len(data) - sent)
                self._window -= size
                self._windows[stream] -= size
            self.send(frame(DATA, 0, stream, data[sent:sent + size]))
            sent += size
        return sent

    def _receive(self, poller):
        """The bytes that have arrived, waiting for up to a second; None: nothing; b'': the server has closed the connection."""
        if not poller.poll(1000):
            return None
        received = None
        with self._socket_lock:
            timeout = self._socket.gettimeout()
            self._socket.settimeout(0)
            try:
                # TLS may have read more than the first call returns.
                while data := self._socket.recv(1 << 16):
                    received = (received or b'') + data
                return received or b''
            except (BlockingIOError, ssl.SSLWantReadError):
                return received
            finally:
                self._socket.settimeout(timeout)

    def _read(self):
        pending = b''
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        try:
            while not self.closed:
                data = self._receive(poller)
                if data is None:
                    continue
                if not data:
                    break
                pending += data
                while len(pending) >= 9:
                    size = int.from_bytes(pending[:3], 'big')
                    if len(pending) < 9 + size:
                        break
                    self._on_frame(pending[3], pending[4], int.from_bytes(pending[5:9], 'big'), pending[9:9 + size])
                    pending = pending[9 + size:]
        except (OSError, ValueError):
            pass
        with self._changed:
            self.closed = True
            self._changed.notify_all()

    def _on_frame(self, kind, flags, stream, payload):
        with self._changed:
            self.received[kind] = self.received.get(kind, 0) + 1
            if kind == WINDOW_UPDATE:
                count = struct.unpack('>I', payload)[0]
                if stream == 0:
                    self._window += count
                else:
                    self._windows[stream] = self._windows.get(stream, 0) + count
            elif kind == SETTINGS and not flags & ACK:
                for at in range(0, len(payload), 6):
                    key, value = struct.unpack('>HI', payload[at:at + 6])
                    if key == _INITIAL_WINDOW_SIZE:
                        self._initial_window = value
            self._changed.notify_all()
        if kind == SETTINGS and not flags & ACK:
            self.send(frame(SETTINGS, ACK, 0))
        elif kind == PING and not flags & ACK:
            self.send(frame(PING, ACK, 0, payload))
