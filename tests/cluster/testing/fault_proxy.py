"""A proxy between the operator and the API server that injects the faults of networks and servers.

It listens in the control plane's network namespace with the API server's certificate, and passes credentials on, so that the
operator sees an API server. One function from Request to Fault decides what happens to a request.
"""

import dataclasses
import http.client
import http.server
import json
import re
import socket
import ssl
import threading
import time
import urllib.parse

from tests.cluster.testing import namespaces

WRITES = ('POST', 'PUT', 'PATCH', 'DELETE')


@dataclasses.dataclass(frozen=True)
class Request:
    """The input of a rule."""

    number: int  # counts all requests, from 1
    method: str
    path: str
    query: dict
    body: bytes

    @property
    def watch(self):
        return self.query.get('watch') in ('1', 'true')

    @property
    def write(self):
        return self.method in WRITES

    @property
    def lease(self):
        return '/leases' in self.path

    @property
    def resource(self):
        """`pods`, `trainingjobs/status`, ..."""
        found = re.match(r'/(?:api/v1|apis/[^/]+/[^/]+)(?:/namespaces/[^/]+)?/([a-z]+)(?:/[^/]+(/[a-z]+)?)?$', self.path)
        return found[1] + (found[2] or '') if found else ''


@dataclasses.dataclass(frozen=True)
class Fault:
    """Faults of one request, in the order in which they happen; none by default."""

    delay_seconds: float = 0
    drop_before: bool = False  # the connection ends, and the API server never gets the request
    status: int = 0  # answered by the proxy
    reason: str = ''
    retry_after: int = 0
    drop_after: bool = False  # the API server handles the request, but the answer is lost
    cut_after_seconds: float = 0  # a watch ends in the middle of a line
    stale: bool = False  # answer with an earlier answer to the same request, if there is one


NONE = Fault()


class FaultProxy:
    """`with FaultProxy(cluster) as proxy:`; proxy.rule may be changed at any time."""

    def __init__(self, cluster, rule=None):
        self._cluster = cluster
        self.rule = rule or (lambda request: NONE)
        self.after_write = None  # called with the Request when the API server has answered, before the client gets the answer
        self._lock = threading.Lock()
        self._number = 0
        self._requests = []
        self._answers = {}  # path and query of a list -> the first answer to it

    def __enter__(self):
        pki = self._cluster.directory / 'pki'
        listener = namespaces.listener_inside(f'/run/netns/{self._cluster.name}-cp')
        self.url = f'https://127.0.0.1:{listener.getsockname()[1]}'
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pki / 'apiserver.crt', pki / 'apiserver.key')
        self._upstream = ssl.create_default_context(cafile=pki / 'ca.crt')

        class Handler(_Handler):
            proxy = self

        self._server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler, bind_and_activate=False)
        self._server.socket.close()
        self._server.socket = _TlsListener(listener, context)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={'poll_interval': 0.1}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.socket.close()

    def connect(self):
        return http.client.HTTPSConnection('127.0.0.1', self._cluster.port, timeout=120, context=self._upstream)

    def note(self, method, target, body):
        """Numbers a request."""
        parsed = urllib.parse.urlsplit(target)
        query = dict(urllib.parse.parse_qsl(parsed.query))
        with self._lock:
            self._number += 1
            request = Request(self._number, method, parsed.path, query, body)
            self._requests.append(request)
        return request

    def requests(self):
        with self._lock:
            return list(self._requests)

    def first_answer(self, target, answer):
        """The first answer to this request: that of a server that lags behind."""
        with self._lock:
            return self._answers.setdefault(target, answer)


class _TlsListener:
    """Accepts connections; each connection's own thread does the handshake."""

    def __init__(self, listener, context):
        self._listener = listener
        self._context = context

    def accept(self):
        connection, address = self._listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False), address

    def fileno(self):
        return self._listener.fileno()

    def close(self):
        self._listener.close()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    timeout = 300
    proxy = None
    _upstream = None

    def log_message(self, *_):
        pass

    def handle(self):
        try:
            super().handle()
        except (OSError, ValueError, http.client.HTTPException):
            pass  # either side has disconnected
        finally:
            if self._upstream is not None:
                self._upstream.close()

    def _serve(self):
        body = self.rfile.read(int(self.headers.get('Content-Length') or 0))
        request = self.proxy.note(self.command, self.path, body)
        fault = self.proxy.rule(request)
        if fault.delay_seconds:
            time.sleep(fault.delay_seconds)
        if fault.drop_before:
            self._drop()
        elif fault.status:
            self._refuse(fault)
        elif request.watch:
            self._watch(fault)
        else:
            self._pass_on(request, fault, body)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve

    def _drop(self):
        self.close_connection = True
        self.connection.close()

    def _refuse(self, fault):
        answer = json.dumps({'kind': 'Status', 'apiVersion': 'v1', 'status': 'Failure', 'code': fault.status,
                             'reason': fault.reason, 'message': f'the test said {fault.status}'}).encode()
        self.send_response(fault.status)
        if fault.retry_after:
            self.send_header('Retry-After', str(fault.retry_after))
        self._answer(answer, 'application/json')

    def _answer(self, content, content_type):
        self.send_header('Content-Type', content_type)
        self.send_header('Content-Length', str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _ask(self, body):
        headers = {key: value for key, value in self.headers.items()
                   if key.lower() not in ('host', 'connection', 'content-length', 'accept-encoding')}
        for again in (True, False):
            if self._upstream is None:
                self._upstream = self.proxy.connect()
            try:
                self._upstream.request(self.command, self.path, body=body or None, headers=headers)
                return self._upstream.getresponse()
            except (OSError, http.client.HTTPException):
                # An idle connection may have ended; a write is not sent twice.
                self._upstream = None
                if not again or self.command != 'GET':
                    raise
        raise AssertionError('not reached')

    def _pass_on(self, request, fault, body):
        answer = self._ask(body)
        content = answer.read()
        if request.write and not request.lease and self.proxy.after_write:
            self.proxy.after_write(request)
        if fault.drop_after:
            self._drop()
            return
        if request.method == 'GET' and answer.status == 200:
            first = self.proxy.first_answer(self.path, content)
            if fault.stale:
                content = first
        self.send_response(answer.status)
        if answer.getheader('Retry-After'):
            self.send_header('Retry-After', answer.getheader('Retry-After'))
        self._answer(content, answer.getheader('Content-Type', 'application/json'))

    def _watch(self, fault):
        answer = self._ask(b'')
        self.send_response(answer.status)
        self.send_header('Content-Type', answer.getheader('Content-Type', 'application/json'))
        self.send_header('Transfer-Encoding', 'chunked')
        self.end_headers()
        if fault.cut_after_seconds:
            threading.Timer(fault.cut_after_seconds, self._cut).start()
        while data := answer.read1(65536):
            self.wfile.write(f'{len(data):x}\r\n'.encode() + data + b'\r\n')
        self.wfile.write(b'0\r\n\r\n')

    def _cut(self):
        try:
            self.connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it has already ended
