"""Reads metrics of pods, from the network namespace that reaches them."""

import http.client
import re
import socket
import threading
import time

from tests.cluster.testing import namespaces

PORT = 9090


class _Inside(http.client.HTTPConnection):

    def __init__(self, namespace, host, port):
        super().__init__(host, port, timeout=2)
        self._namespace = namespace

    def connect(self):
        self.sock = namespaces.socket_inside(
            self._namespace, lambda: socket.create_connection((self.host, self.port), self.timeout))


def scrape_text(cluster, address, port=PORT):
    """The metrics page of a pod, or of a process beside the API server; '' if it does not answer."""
    connection = _Inside(f'/run/netns/{cluster.name}-cp', address, port)
    try:
        connection.request('GET', '/metrics')
        return connection.getresponse().read().decode()
    except (OSError, http.client.HTTPException):
        return ''
    finally:
        connection.close()


def scrape(cluster, address, port=PORT):
    """{metric: value} of a pod, summed over all labels; {} if it does not answer."""
    values = {}
    for name, value in re.findall(r'^([a-z_]+)(?:\{[^}]*\})? (\S+)', scrape_text(cluster, address, port), flags=re.MULTILINE):
        values[name] = values.get(name, 0.0) + float(value)
    return values


class Progress(threading.Thread):
    """Samples a metric of a pod 20 times a second, to measure for how long it did not change."""

    def __init__(self, cluster, address, metric):
        super().__init__(daemon=True)
        self._cluster = cluster
        self._address = address
        self._metric = metric
        self._lock = threading.Lock()
        self._moves = []
        self._ended = threading.Event()
        self.start()

    def run(self):
        last = None
        while not self._ended.wait(0.05):
            value = scrape(self._cluster, self._address).get(self._metric)
            if value is not None and value != last:
                last = value
                with self._lock:
                    self._moves.append(time.monotonic())

    def longest_stop(self, since):
        """The longest time without a change that ended after `since`."""
        with self._lock:
            moves = list(self._moves)
        gaps = [after - before for before, after in zip(moves, moves[1:]) if after > since]
        return max(gaps, default=float('inf'))

    def end(self):
        self._ended.set()
