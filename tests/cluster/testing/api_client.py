"""A small client of the API server, for tests that read objects between two commands of kubectl."""

import http.client
import json
import ssl
import threading
import time
import urllib.parse

# The API paths of the kinds that tests use.
PATHS = {
    'namespaces': '/api/v1',
    'nodes': '/api/v1',
    'pods': '/api/v1',
    'services': '/api/v1',
    'configmaps': '/api/v1',
    'secrets': '/api/v1',
    'serviceaccounts': '/api/v1',
    'persistentvolumeclaims': '/api/v1',
    'resourcequotas': '/api/v1',
    'events': '/apis/events.k8s.io/v1',
    'deployments': '/apis/apps/v1',
    'poddisruptionbudgets': '/apis/policy/v1',
    'networkpolicies': '/apis/networking.k8s.io/v1',
    'leases': '/apis/coordination.k8s.io/v1',
    'clusterroles': '/apis/rbac.authorization.k8s.io/v1',
    'customresourcedefinitions': '/apis/apiextensions.k8s.io/v1',
    'trainingjobs': '/apis/sluice.dev/v1alpha1',
}


class ApiError(Exception):

    def __init__(self, status, body):
        super().__init__(f'{status}: {body.get("message", body)}')
        self.status = status
        self.reason = body.get('reason', '')


def path_of(resource, namespace=None, name=None, subresource=None):
    path = PATHS[resource]
    if namespace:
        path += f'/namespaces/{namespace}'
    path += f'/{resource}'
    for part in (name, subresource):
        if part:
            path += f'/{part}'
    return path


class ApiClient:
    """One connection, reopened when it breaks; for one thread."""

    def __init__(self, host, port, authority, certificate, key):
        self._host = host
        self._port = port
        self._context = ssl.create_default_context(cafile=authority)
        self._context.load_cert_chain(certificate, key)
        self._connection = None

    def connect(self, timeout=30):
        return http.client.HTTPSConnection(self._host, self._port, timeout=timeout, context=self._context)

    def request(self, method, path, body=None, content_type='application/json'):
        """Returns the parsed answer; raises ApiError if it is an error. The body is text, or a value to send as JSON."""
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode() if body is not None else None
        if method != 'GET':
            self._connection = None  # a write is not sent over a connection that may have ended meanwhile
        for again in (True, False):
            if self._connection is None:
                self._connection = self.connect()
            try:
                self._connection.request(method, path, body=data, headers={'Content-Type': content_type})
                answer = self._connection.getresponse()
                content = answer.read()
                break
            except (OSError, http.client.HTTPException):
                # The server may have ended an idle connection, or be restarting.
                self._connection = None
                if not again or method != 'GET':
                    raise
        parsed = json.loads(content) if content[:1] in (b'{', b'[') else {'message': content.decode(errors='replace')}
        if answer.status >= 400:
            raise ApiError(answer.status, parsed)
        return parsed

    def get(self, resource, namespace=None, name=None):
        """The object, or None if there is none."""
        try:
            return self.request('GET', path_of(resource, namespace, name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def list(self, resource, namespace=None, selector=''):
        path = path_of(resource, namespace)
        if selector:
            path += '?labelSelector=' + urllib.parse.quote(selector)
        return self.request('GET', path)['items']

    def create(self, resource, value, namespace=None):
        return self.request('POST', path_of(resource, namespace), value)

    def merge(self, resource, namespace, name, change, subresource=None):
        return self.request('PATCH', path_of(resource, namespace, name, subresource), change,
                            'application/merge-patch+json')

    def delete(self, resource, namespace, name, grace_seconds=None):
        options = {'kind': 'DeleteOptions', 'apiVersion': 'v1'}
        if grace_seconds is not None:
            options['gracePeriodSeconds'] = grace_seconds
        try:
            self.request('DELETE', path_of(resource, namespace, name), options)
        except ApiError as error:
            if error.status != 404:
                raise


class History(threading.Thread):
    """Records every change of a kind's objects in a namespace since its construction, with the time of its arrival."""

    def __init__(self, client, resource, namespace):
        super().__init__(daemon=True)
        self._client = client
        self._path = path_of(resource, namespace)
        listed = client.request('GET', self._path)
        self._version = listed['metadata']['resourceVersion']
        self._lock = threading.Lock()
        self._changes = [(time.monotonic(), 'ADDED', item) for item in listed['items']]
        self._ended = threading.Event()
        self.start()

    def run(self):
        while not self._ended.is_set():
            connection = self._client.connect()
            try:
                connection.request('GET', f'{self._path}?watch=true&resourceVersion={self._version}&timeoutSeconds=60')
                answer = connection.getresponse()
                while not self._ended.is_set() and (line := answer.readline()):
                    change = json.loads(line)
                    if change['type'] == 'ERROR':
                        break
                    self._version = change['object']['metadata']['resourceVersion']
                    with self._lock:
                        self._changes.append((time.monotonic(), change['type'], change['object']))
            except (OSError, http.client.HTTPException, ValueError):
                time.sleep(0.1)
            finally:
                connection.close()

    def changes(self):
        with self._lock:
            return list(self._changes)

    def end(self):
        self._ended.set()
